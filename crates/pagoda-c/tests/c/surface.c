// Tests the calls that the example does not use: refusals and their messages, adopted memory, files, threads, a fork, and the
// abort hook. With --measure it prints the cost of a call instead. It ends with 77 where no manager can be made. Compiles as C11
// and as C++17.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pagoda.h>

#define PAGE 4096u
#define MIB ((uint64_t)1 << 20)

static pagoda_error error;

#define CHECK(is_so)                                                                              \
    do {                                                                                          \
        if (!(is_so)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #is_so, error.message);        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)
#define OK(call) CHECK((call) == PAGODA_CODE_OK && error.code == PAGODA_CODE_OK)
#define REFUSED(call, as, says)                                                                   \
    CHECK((call) == (as) && error.code == (as) && strstr(error.message, says) != NULL)

static pagoda_manager *manager_of(uint64_t bytes) {
    pagoda_builder *builder = NULL;
    pagoda_manager *manager = NULL;
    OK(pagoda_builder_new(&builder, &error));
    OK(pagoda_builder_budget(builder, bytes, &error));
    OK(pagoda_builder_base_page(builder, 65536, &error));
    OK(pagoda_builder_user_mode_only(builder, true, &error));
    OK(pagoda_builder_build(builder, &manager, &error));
    return manager;
}

static void what_is_refused(void) {
    pagoda_builder *builder = NULL;
    pagoda_manager *manager = NULL;
    pagoda_region *region = (pagoda_region *)&error;
    REFUSED(pagoda_builder_new(NULL, &error), PAGODA_CODE_ARGUMENT, "null");
    OK(pagoda_builder_new(&builder, &error));
    REFUSED(pagoda_builder_base_page(builder, 5000, &error), PAGODA_CODE_ARGUMENT, "4096");
    REFUSED(pagoda_builder_spill_to(builder, NULL, 0, &error), PAGODA_CODE_ARGUMENT, "directory is null");
    OK(pagoda_builder_budget(builder, 1, &error));
    REFUSED(pagoda_builder_build(builder, &manager, &error), PAGODA_CODE_START, "budget");
    CHECK(manager == NULL);
    REFUSED(pagoda_builder_build(NULL, &manager, &error), PAGODA_CODE_ARGUMENT, "builder is null");
    REFUSED(pagoda_region_create(NULL, PAGE, 0, 0, &region, &error), PAGODA_CODE_ARGUMENT, "manager is null");
    CHECK(region == NULL);
    REFUSED(pagoda_set_abort_hook(NULL, NULL, &error), PAGODA_CODE_ARGUMENT, "hook is null");
    // The message is optional: null is allowed for it.
    CHECK(pagoda_builder_build(NULL, &manager, NULL) == PAGODA_CODE_ARGUMENT);
    pagoda_builder_close(NULL);
    pagoda_region_close(NULL);
    pagoda_manager_close(NULL);
    pagoda_adopted_close(NULL);
    OK(pagoda_file_close(NULL, &error));
    CHECK(pagoda_region_address(NULL) == NULL && pagoda_region_bytes(NULL) == 0);
    CHECK(strchr(pagoda_version(), '.') != NULL);
}

static void a_region(pagoda_manager *manager) {
    pagoda_region *region = NULL;
    unsigned char word[8] = "content", back[8];
    REFUSED(pagoda_region_create(manager, 0, 0, 0, &region, &error), PAGODA_CODE_MEMORY, "at least one byte");
    OK(pagoda_region_create(manager, 4 * MIB, 4096, 3 * MIB, &region, &error));
    CHECK(pagoda_region_bytes(region) == 4 * MIB);
    OK(pagoda_region_write_at(region, MIB - 4, word, sizeof word, &error));
    unsigned char *memory = (unsigned char *)pagoda_region_address(region);
    CHECK(memcmp(memory + MIB - 4, word, sizeof word) == 0);
    // Pages that a thread of the manager holds may stay in memory: only the content is checked.
    OK(pagoda_region_page_out(region, 0, 2 * MIB, &error));
    OK(pagoda_region_prefetch(region, 0, 2 * MIB, &error));
    OK(pagoda_region_page_out(region, 5, 0, &error));
    OK(pagoda_region_read_at(region, MIB - 4, back, sizeof back, &error));
    CHECK(memcmp(back, word, sizeof word) == 0);
    OK(pagoda_region_discard(region, MIB, PAGE, &error));
    OK(pagoda_region_read_at(region, MIB - 4, back, sizeof back, &error));
    CHECK(memcmp(back, "cont\0\0\0\0", sizeof back) == 0);
    REFUSED(pagoda_region_discard(region, 1, PAGE, &error), PAGODA_CODE_MEMORY, "whole OS pages");
    REFUSED(pagoda_region_read_at(region, 4 * MIB - 1, back, 2, &error), PAGODA_CODE_ARGUMENT, "beyond the end");
    REFUSED(pagoda_region_write_at(region, SIZE_MAX, back, 2, &error), PAGODA_CODE_ARGUMENT, "beyond the end");
    REFUSED(pagoda_region_read_at(region, 0, NULL, 2, &error), PAGODA_CODE_ARGUMENT, "into is null");
    OK(pagoda_region_read_at(region, 0, NULL, 0, &error));
    pagoda_code code = PAGODA_CODE_OK;
    for (uint64_t at = 0; at < 4 * MIB && code == PAGODA_CODE_OK; at += PAGE) {
        code = pagoda_region_write_at(region, at, word, sizeof word, &error);
    }
    REFUSED(code, PAGODA_CODE_ACCESS, "limit");
    pagoda_region_close(region);
    OK(pagoda_manager_flush_releases(manager, &error));
}

static void figures(pagoda_manager *manager) {
    pagoda_stats stats;
    uint64_t faults = 0;
    OK(pagoda_manager_set_budget(manager, 48 * MIB, &error));
    OK(pagoda_manager_stats(manager, &stats, &error));
    CHECK(stats.budget_bytes == 48 * MIB && stats.faults > 0);
    OK(pagoda_manager_counter(manager, "faults", &faults, &error));
    CHECK(faults >= stats.faults);
    REFUSED(pagoda_manager_counter(manager, "fault", &faults, &error), PAGODA_CODE_ARGUMENT, "no counter");
    REFUSED(pagoda_manager_set_budget(manager, 1, &error), PAGODA_CODE_BUDGET, "at least");
}

static void adopted_memory(pagoda_manager *manager) {
    size_t bytes = 8 * MIB;
    pagoda_adopted *adopted = NULL;
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED && madvise(mapped, bytes, MADV_NOHUGEPAGE) == 0);
    unsigned char *memory = (unsigned char *)mapped;
    for (size_t at = 0; at < bytes; at += PAGE) {
        memory[at] = (unsigned char)(at / PAGE);
    }
    REFUSED(pagoda_adopt(manager, memory + 1, PAGE, &adopted, &error), PAGODA_CODE_ARGUMENT, "whole OS pages");
    OK(pagoda_adopt(manager, mapped, bytes, &adopted, &error));
    pagoda_adopted *twice = NULL;
    CHECK(pagoda_adopt(manager, mapped, bytes, &twice, &error) == PAGODA_CODE_MEMORY && twice == NULL);
    for (size_t at = 0; at < bytes; at += PAGE) {
        CHECK(memory[at] == (unsigned char)(at / PAGE));
    }
    pagoda_adopted_close(adopted);
    CHECK(memory[PAGE] == 1);
    OK(pagoda_adopt(manager, mapped, bytes, &adopted, &error));
    OK(pagoda_adopted_forget(adopted, &error));
    CHECK(memory[PAGE] == 0);
    munmap(mapped, bytes);
}

// Of an open file, "to be kept" at 5000.
static void parts(pagoda_manager *manager, int descriptor) {
    unsigned char back[PAGE];
    pagoda_file *file = NULL;
    pagoda_region *region = NULL;
    OK(pagoda_file_map_fd(manager, descriptor, PAGE, PAGE + 100, true, true, &file, &error));
    CHECK(pagoda_file_bytes(file) == PAGE + 100);
    OK(pagoda_file_read_at(file, 5000 - PAGE, back, 10, &error));
    CHECK(memcmp(back, "to be kept", 10) == 0);
    OK(pagoda_file_write_at(file, PAGE + 98, "to", 2, &error));
    OK(pagoda_file_close(file, &error));
    CHECK(pread(descriptor, back, 3, 2 * PAGE + 98) == 3 && memcmp(back, "to.", 3) == 0);
    OK(pagoda_file_map_fd(manager, descriptor, PAGE, 0, false, true, &file, &error));
    CHECK(pagoda_file_bytes(file) == 255 * PAGE);
    OK(pagoda_file_close(file, &error));
    REFUSED(pagoda_file_map_fd(manager, descriptor, 1, 0, false, true, &file, &error), PAGODA_CODE_FILE, "4 KiB");
    REFUSED(pagoda_file_map_fd(manager, -1, 0, 0, false, true, &file, &error), PAGODA_CODE_ARGUMENT, "descriptor");
    OK(pagoda_region_map_private_fd(manager, descriptor, PAGE, 2000, true, &region, &error));
    OK(pagoda_region_write_at(region, 0, "x", 1, &error));
    OK(pagoda_region_read_at(region, 5000 - PAGE, back, 2000, &error));
    CHECK(memcmp(back, "to be kept.", 11) == 0 && back[2000 - 5000 + PAGE] == 0);
    pagoda_region_close(region);
    CHECK(pread(descriptor, back, 1, PAGE) == 1 && back[0] == '.');
}

static void a_file(pagoda_manager *manager) {
    char name[] = "/var/tmp/pagoda-c-XXXXXX";
    unsigned char page[PAGE], back[PAGE];
    pagoda_file *file = NULL;
    int descriptor = mkstemp(name);
    CHECK(descriptor >= 0);
    memset(page, '.', sizeof page);
    for (int at = 0; at < 256; at++) {
        CHECK(write(descriptor, page, sizeof page) == (ssize_t)sizeof page);
    }
    REFUSED(pagoda_file_map(manager, "/nonexistent/file", false, false, &file, &error), PAGODA_CODE_FILE, "/nonexistent/file");
    OK(pagoda_file_map(manager, name, true, true, &file, &error));
    CHECK(pagoda_file_bytes(file) == 256 * PAGE);
    OK(pagoda_file_write_at(file, 5000, "to be kept", 10, &error));
    OK(pagoda_file_sync(file, &error));
    CHECK(pread(descriptor, back, 10, 5000) == 10 && memcmp(back, "to be kept", 10) == 0);
    OK(pagoda_file_read_at(file, 4999, back, 11, &error));
    CHECK(memcmp(back, ".to be kept", 11) == 0);
    CHECK(((unsigned char *)pagoda_file_address(file))[PAGE * 200] == '.');
    REFUSED(pagoda_file_read_at(file, 256 * PAGE, back, 1, &error), PAGODA_CODE_ARGUMENT, "beyond");
    OK(pagoda_file_close(file, &error));
    OK(pagoda_file_map(manager, name, false, true, &file, &error));
    REFUSED(pagoda_file_write_at(file, 0, page, 1, &error), PAGODA_CODE_FILE, "writable");
    OK(pagoda_file_close(file, &error));
    unlink(name);
    parts(manager, descriptor);
    close(descriptor);
}

static void count(void *user) {
    *(int *)user += 1;
}

static void fill(pagoda_region *region) {
    unsigned char *memory = (unsigned char *)pagoda_region_address(region);
    for (size_t at = 0; at < pagoda_region_bytes(region); at += PAGE) {
        memory[at + 3] = (unsigned char)(at / PAGE);
        memory[at + 5] = 1;
    }
}

static void check_filled(const pagoda_region *region, size_t bytes) {
    unsigned char back[PAGE];
    CHECK(pagoda_region_bytes(region) >= bytes);
    for (size_t at = 0; at < bytes; at += PAGE) {
        OK(pagoda_region_read_at(region, at, back, PAGE, &error));
        CHECK(back[3] == (unsigned char)(at / PAGE) && back[5] == 1 && back[0] == 0);
    }
}

// A save of what was written since the image `base` of `bytes`.
static void a_difference(pagoda_manager *manager, pagoda_region *region, const char *base, uint64_t bytes) {
    char path[80], key[80], byte[2] = "";
    pagoda_region *back = NULL;
    pagoda_saved saved = {0, 0};
    snprintf(path, sizeof path, "%s.since", base);
    snprintf(key, sizeof key, "%s.since.key", base);
    REFUSED(pagoda_region_snapshot(region, path, "/nonexistent/image", NULL, NULL, NULL, NULL, &error), PAGODA_CODE_IMAGE, "/nonexistent");
    OK(pagoda_region_write_at(region, 5 * MIB, "?", 1, &error));
    OK(pagoda_region_snapshot(region, path, base, NULL, NULL, NULL, &saved, &error));
    CHECK(0 < saved.file_bytes && saved.file_bytes < bytes);
    OK(pagoda_region_restore(manager, path, &back, &error));
    OK(pagoda_region_read_at(back, 5 * MIB, byte, 1, &error));
    CHECK(byte[0] == '?');
    OK(pagoda_region_write_at(back, 5 * MIB, "", 1, &error));
    check_filled(back, 8 * MIB);
    pagoda_region_close(back);
    REFUSED(pagoda_region_snapshot(region, base, base, NULL, NULL, NULL, NULL, &error), PAGODA_CODE_IMAGE, "the base");
    CHECK(unlink(path) == 0 && unlink(key) == 0);
}

static void an_image(pagoda_manager *manager) {
    char directory[] = "/var/tmp/pagoda-c-XXXXXX", image[64], key[64], set[64];
    CHECK(mkdtemp(directory) != NULL);
    snprintf(image, sizeof image, "%s/image", directory);
    snprintf(key, sizeof key, "%s/image.key", directory);
    snprintf(set, sizeof set, "%s/image.ws", directory);
    pagoda_region *region = NULL, *back = NULL;
    pagoda_saved saved = {0, 0};
    int calls = 0;
    OK(pagoda_region_create(manager, 8 * MIB, 0, 0, &region, &error));
    fill(region);
    REFUSED(pagoda_region_restore(manager, image, &back, &error), PAGODA_CODE_IMAGE, "No such file");
    CHECK(back == NULL);
    REFUSED(pagoda_region_snapshot(region, "/nonexistent/image", NULL, NULL, NULL, NULL, NULL, &error), PAGODA_CODE_IMAGE, "/nonexistent");
    OK(pagoda_region_track_saves(region, true, &error));
    OK(pagoda_region_snapshot(region, image, NULL, count, count, &calls, &saved, &error));
    CHECK(calls == 2 && saved.file_bytes > 0);
    a_difference(manager, region, image, saved.file_bytes);
    OK(pagoda_region_write_at(region, 3, "x", 1, &error));
    OK(pagoda_region_restore(manager, image, &back, &error));
    check_filled(back, 8 * MIB);
    OK(pagoda_region_record_working_set(back, &error));
    CHECK(access(set, R_OK) == 0);
    pagoda_region_close(back);
    REFUSED(pagoda_region_record_working_set(region, &error), PAGODA_CODE_IMAGE, "not restored");
    pagoda_region_close(region);
    // Any file, of which nothing is changed.
    OK(pagoda_region_map_private(manager, image, true, &region, &error));
    OK(pagoda_region_read_at(region, 0, key + 40, 1, &error));
    memset(pagoda_region_address(region), 0, saved.file_bytes);
    pagoda_region_close(region);
    OK(pagoda_region_restore(manager, image, &back, &error));
    check_filled(back, 8 * MIB);
    pagoda_region_close(back);
    REFUSED(pagoda_region_map_private(manager, directory, true, &region, &error), PAGODA_CODE_FILE, "a directory");
    CHECK(unlink(image) == 0 && unlink(set) == 0);
    snprintf(key, sizeof key, "%s/image.key", directory);
    CHECK(unlink(key) == 0 && rmdir(directory) == 0);
}

struct receiver {
    pagoda_manager *manager;
    const char *address, *token;
    pagoda_region *region;
    pagoda_error error;
};

static void *receive(void *given) {
    struct receiver *receiver = (struct receiver *)given;
    pagoda_region_receive(receiver->manager, receiver->address, receiver->token, 64 * MIB, 20000, &receiver->region, &receiver->error);
    return NULL;
}

static void a_move(pagoda_manager *manager) {
    char directory[] = "/var/tmp/pagoda-c-XXXXXX", path[64], address[80];
    CHECK(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/socket", directory);
    snprintf(address, sizeof address, "unix://%s", path);
    const char *token = "a token of the test's";
    pagoda_region *region = NULL;
    OK(pagoda_region_create(manager, 8 * MIB, 0, 0, &region, &error));
    fill(region);
    struct receiver receiver = {manager, address, token, NULL, {PAGODA_CODE_OK, {0}}};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, receive, &receiver) == 0);
    for (int tries = 0; access(path, F_OK) != 0; tries++) {
        CHECK(tries < 20000);
        usleep(1000);
    }
    int stopped = 0;
    OK(pagoda_region_send(region, address, token, 300, count, &stopped, &error));
    CHECK(pthread_join(thread, NULL) == 0 && stopped == 1);
    CHECK(receiver.error.code == PAGODA_CODE_OK && receiver.region != NULL);
    check_filled(receiver.region, 8 * MIB);
    pagoda_region_close(receiver.region);
    REFUSED(pagoda_region_send(region, address, token, 300, NULL, NULL, &error), PAGODA_CODE_MIGRATION, "connect");
    REFUSED(pagoda_region_send(region, "nowhere", NULL, 300, NULL, NULL, &error), PAGODA_CODE_ARGUMENT, "nowhere");
    REFUSED(pagoda_region_send(region, address, "short", 300, NULL, NULL, &error), PAGODA_CODE_ARGUMENT, "16");
    pagoda_region_close(region);
    unlink(path);
    CHECK(rmdir(directory) == 0);
}

struct reader {
    pthread_t thread;
    const pagoda_region *region;
};

// Several threads make calls with one const handle. Each thread has an error of its own.
static void *read_all(void *given) {
    const struct reader *reader = (const struct reader *)given;
    pagoda_error own;
    unsigned char back[PAGE];
    for (size_t at = 0; at < pagoda_region_bytes(reader->region); at += PAGE) {
        if (pagoda_region_read_at(reader->region, at, back, PAGE, &own) != PAGODA_CODE_OK || back[7] != (unsigned char)(at / PAGE)) {
            return given;
        }
    }
    return NULL;
}

static void threads(pagoda_manager *manager) {
    pagoda_region *region = NULL;
    struct reader readers[4];
    pagoda_stats before, after;
    OK(pagoda_manager_stats(manager, &before, &error));
    OK(pagoda_region_create(manager, 96 * MIB, 0, 0, &region, &error));
    unsigned char *memory = (unsigned char *)pagoda_region_address(region);
    for (size_t at = 0; at < 96 * MIB; at += PAGE) {
        memory[at + 7] = (unsigned char)(at / PAGE);
        memory[at + 9] = (unsigned char)(at / PAGE / 251);
    }
    for (int at = 0; at < 4; at++) {
        readers[at].region = region;
        CHECK(pthread_create(&readers[at].thread, NULL, read_all, &readers[at]) == 0);
    }
    for (int at = 0; at < 4; at++) {
        void *failed = NULL;
        CHECK(pthread_join(readers[at].thread, &failed) == 0 && failed == NULL);
    }
    // Twice the budget: pages came from the store.
    OK(pagoda_manager_stats(manager, &after, &error));
    CHECK(after.budget_bytes == 48 * MIB && after.faults_stored > before.faults_stored);
    pagoda_region_close(region);
}

static void a_child(pagoda_manager *manager) {
    pagoda_region *region = NULL;
    OK(pagoda_region_create(manager, MIB, 0, 0, &region, &error));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsigned char back[8];
        REFUSED(pagoda_region_read_at(region, 0, back, 8, &error), PAGODA_CODE_OTHER_PROCESS, "child");
        REFUSED(pagoda_region_discard(region, 0, PAGE, &error), PAGODA_CODE_OTHER_PROCESS, "child");
        REFUSED(pagoda_manager_set_budget(manager, 64 * MIB, &error), PAGODA_CODE_OTHER_PROCESS, "child");
        pagoda_stats stats;
        OK(pagoda_manager_stats(manager, &stats, &error));
        CHECK(stats.budget_bytes == 0);
        pagoda_region_close(region);
        pagoda_manager_close(manager);
        _exit(42);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
    pagoda_region_close(region);
}

static void told(uint64_t reason, const char *message, void *user) {
    (void)reason;
    (void)message;
    (void)user;
}

static double ns_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

// The cost of calls on memory that is resident, beside that of memcpy.
static void measure(pagoda_manager *manager) {
    enum { CALLS = 200000 };
    pagoda_region *region = NULL;
    pagoda_stats stats;
    static unsigned char page[PAGE];
    OK(pagoda_region_create(manager, MIB, 0, 0, &region, &error));
    unsigned char *memory = (unsigned char *)pagoda_region_address(region);
    memset(memory, 1, MIB);
    volatile size_t sum = 0;
    double begun = ns_now();
    for (int at = 0; at < CALLS; at++) {
        sum = sum + pagoda_region_bytes(region);
    }
    double bytes = ns_now();
    for (int at = 0; at < CALLS; at++) {
        OK(pagoda_region_read_at(region, (size_t)(at % 256) * PAGE, page, PAGE, &error));
    }
    double read = ns_now();
    for (int at = 0; at < CALLS; at++) {
        memcpy(page, memory + (size_t)(at % 256) * PAGE, PAGE);
        sum = sum + page[at % PAGE];
    }
    double copied = ns_now();
    for (int at = 0; at < CALLS; at++) {
        OK(pagoda_manager_stats(manager, &stats, &error));
    }
    double told_all = ns_now();
    printf("a call %.0f ns, read_at of 4 KiB %.0f ns, memcpy of 4 KiB %.0f ns, stats %.0f ns\n", (bytes - begun) / CALLS,
           (read - bytes) / CALLS, (copied - read) / CALLS, (told_all - copied) / CALLS);
    pagoda_region_close(region);
}

int main(int argc, char **argv) {
    if (!pagoda_is_supported()) {
        fprintf(stderr, "surface: no userfaultfd with UFFDIO_MOVE here\n");
        return 77;
    }
    what_is_refused();
    pagoda_manager *manager = manager_of(64 * MIB);
    if (argc > 1 && strcmp(argv[1], "--measure") == 0) {
        measure(manager);
        pagoda_manager_close(manager);
        return 0;
    }
    a_region(manager);
    figures(manager);
    adopted_memory(manager);
    a_file(manager);
    an_image(manager);
    a_move(manager);
    threads(manager);
    a_child(manager);
    OK(pagoda_set_abort_hook(told, NULL, &error));
    REFUSED(pagoda_set_abort_hook(told, NULL, &error), PAGODA_CODE_ARGUMENT, "once");
    pagoda_manager_close(manager);
    return 0;
}
