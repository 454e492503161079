// limits RESOURCE LIMIT [MIB]: a program that limits itself, as test runners and shells do. It prints what
// mmap, malloc, brk, a thread and a fork granted, and checks the content of all of it. RESOURCE is a
// name of setrlimit(2) without RLIMIT_, LIMIT a number, with an M or a K behind it in MiB or KiB. MIB is what
// it maps.
#include "t.h"

static const struct { const char *name; int resource; } NAMES[] = {
    {"AS", RLIMIT_AS}, {"CORE", RLIMIT_CORE}, {"CPU", RLIMIT_CPU}, {"DATA", RLIMIT_DATA}, {"FSIZE", RLIMIT_FSIZE},
    {"MEMLOCK", RLIMIT_MEMLOCK}, {"NOFILE", RLIMIT_NOFILE}, {"NPROC", RLIMIT_NPROC}, {"STACK", RLIMIT_STACK},
};

static int resource(const char *name) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(NAMES[i].name, name) == 0) return NAMES[i].resource;
    }
    CHECK(!"a resource");
    return -1;
}

// The first whole page of the memory.
static void *pages(void *memory) { return (void *)(((uintptr_t)memory + PAGE - 1) & ~(PAGE - 1)); }

static void *report(const char *how, void *memory) {
    printf("%s: %s\n", how, memory ? "granted" : strerror(errno));
    return memory;
}

static void *deep(void *unused) {
    char memory[64 << 10];
    fill(pages(memory), sizeof memory - PAGE, 5);
    return (void *)wrong(pages(memory), sizeof memory - PAGE, 5);
}

int main(int count, char **arguments) {
    size_t unit = strchr(arguments[2], 'M') ? MIB : strchr(arguments[2], 'K') ? 1024 : 1;
    rlim_t value = strtoul(arguments[2], 0, 0) * unit;
    size_t bytes = (count > 3 ? strtoul(arguments[3], 0, 0) : 160) * MIB;
    struct rlimit limit = {value, value};
    CHECK(setrlimit(resource(arguments[1]), &limit) == 0);

    void *mapped = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) mapped = 0;
    report("mmap", mapped);
    if (mapped) fill(mapped, bytes, 1);

    size_t small = 30 * MIB;
    void *allocated = report("malloc", malloc(small + PAGE));
    if (allocated) fill(pages(allocated), small, 2);

    void *end = sbrk(small + PAGE);
    if (end == (void *)-1) end = 0;
    report("brk", end);
    if (end) fill(pages(end), small, 3);

    pthread_t thread;
    void *bad;
    int created = pthread_create(&thread, 0, deep, 0);
    printf("thread: %s\n", created ? strerror(created) : "granted");
    if (created == 0) CHECK(pthread_join(thread, &bad) == 0 && bad == 0);

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        size_t count = mapped ? wrong(mapped, bytes, 1) : 0;
        _exit(count != 0 || (allocated && wrong(pages(allocated), small, 2)));
    }
    if (child < 0) printf("fork: %s\n", strerror(errno));
    int status = 0;
    if (child > 0) CHECK(waitpid(child, &status, 0) == child && status == 0);

    if (mapped) CHECK(wrong(mapped, bytes, 1) == 0);
    if (allocated) CHECK(wrong(pages(allocated), small, 2) == 0);
    if (end) CHECK(wrong(pages(end), small, 3) == 0);
    struct rlimit after;
    CHECK(getrlimit(resource(arguments[1]), &after) == 0);
    CHECK(after.rlim_cur == value && after.rlim_max == value);
    return 0;
}
