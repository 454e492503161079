// A tree of processes that write, fork and check their memory until a given time, while they are
// killed and stopped from outside.
//
// chaos SEED UNTIL_NS PAGES [greedy]: UNTIL_NS is of CLOCK_MONOTONIC. Every page has a stamp, which
// is kept in shared memory, where nothing is managed: what the page holds follows from it. A greedy
// tree also takes shared memory until the kernel kills one of it.
#include "t.h"

#define DEPTH 2
#define CHILDREN 2
#define RUN 96

struct member {
    uint64_t random;
    uint64_t until_ns;
    size_t pages;
    char *memory;
    // 0 for a page that was never written, or discarded.
    uint64_t *stamps;
    uint64_t writes;
    int depth;
    int greedy;
    pid_t children[CHILDREN];
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t next(struct member *m) {
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random;
}

// A signal of the kernel's is a fault of the engine; one of another process is the end of this one.
static void on_fault(int signal, siginfo_t *info, void *context) {
    if (info->si_code > 0) {
        char line[96];
        int length = snprintf(line, sizeof line, "wrong: %d had a fault at %p\n", getpid(), info->si_addr);
        if (write(1, line, length) != length) _exit(3);
        _exit(3);
    }
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(signal, &action, 0);
    raise(signal);
}

static uint64_t *shared(size_t bytes) {
    uint64_t *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void write_pages(struct member *m, size_t from, size_t to) {
    uint64_t stamp = (uint64_t)getpid() << 32 | ++m->writes;
    for (size_t page = from; page < to; page++) {
        uint64_t *words = (uint64_t *)(m->memory + page * PAGE);
        for (size_t at = 0; at < 512; at += 8) words[at] = word(stamp, page, at);
        m->stamps[page] = stamp;
    }
}

static void check_pages(struct member *m, size_t from, size_t to, const char *when) {
    for (size_t page = from; page < to; page++) {
        uint64_t stamp = m->stamps[page];
        uint64_t *words = (uint64_t *)(m->memory + page * PAGE);
        for (size_t at = 0; at < 512; at += 8) {
            uint64_t right = stamp ? word(stamp, page, at) : 0;
            if (words[at] == right) continue;
            printf("wrong: %d, depth %d, %s: page %zu of stamp %lx, word %zu is %lx and not %lx\n", getpid(),
                   m->depth, when, page, stamp, at, words[at], right);
            fflush(stdout);
            _exit(2);
        }
    }
}

static void discard_pages(struct member *m, size_t from, size_t to) {
    CHECK(!madvise(m->memory + from * PAGE, (to - from) * PAGE, MADV_DONTNEED));
    for (size_t page = from; page < to; page++) m->stamps[page] = 0;
}

// A child ends well, or by a signal from outside.
static void reap(struct member *m, int options) {
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        if (!m->children[i] || !waitpid(m->children[i], &status, options)) continue;
        int is_hit = WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGSEGV);
        if (status != 0 && !is_hit) {
            printf("wrong: %d, the child %d of %d, ended with %x\n", m->children[i], i, getpid(), status);
            fflush(stdout);
        }
        m->children[i] = 0;
    }
}

static void become_child(struct member *m, uint64_t *stamps, uint64_t seed) {
    munmap(m->stamps, m->pages * 8);
    m->stamps = stamps;
    m->random = seed;
    m->depth++;
    // Short lives are the rule, so that there are many forks.
    uint64_t until_ns = now_ns() + next(m) % 300 * 1000000;
    if (until_ns < m->until_ns) m->until_ns = until_ns;
    memset(m->children, 0, sizeof m->children);
    check_pages(m, 0, m->pages, "as it was forked");
}

static void make_child(struct member *m) {
    for (int i = 0; m->depth < DEPTH && i < CHILDREN; i++) {
        if (m->children[i]) continue;
        uint64_t seed = next(m) | 1;
        // Before the fork: they are shared, and this process goes on to change its own.
        uint64_t *stamps = shared(m->pages * 8);
        memcpy(stamps, m->stamps, m->pages * 8);
        pid_t child = fork();
        if (child == 0) return become_child(m, stamps, seed);
        munmap(stamps, m->pages * 8);
        if (child > 0) m->children[i] = child;
        return;
    }
}

static void take_until_killed(void) {
    for (;;) memset(shared(MIB), 1, MIB);
}

static void live(struct member *m) {
    while (now_ns() < m->until_ns) {
        size_t from = next(m) % m->pages;
        size_t to = from + next(m) % RUN + 1;
        if (to > m->pages) to = m->pages;
        switch (next(m) % 16) {
        case 0: case 1: case 2: case 3: case 4: case 5:
            write_pages(m, from, to);
            break;
        case 6: case 7: case 8: case 9: case 10: case 11:
            check_pages(m, from, to, "on its way");
            break;
        case 12:
            discard_pages(m, from, to);
            break;
        case 13: case 14:
            make_child(m);
            break;
        case 15:
            if (m->greedy && m->depth > 0 && next(m) % 64 == 0) take_until_killed();
            break;
        }
        reap(m, WNOHANG);
    }
}

int main(int count, char **arguments) {
    CHECK(count >= 4);
    struct member m = {
        .random = strtoull(arguments[1], 0, 10) * 2 + 1,
        .until_ns = strtoull(arguments[2], 0, 10),
        .pages = strtoull(arguments[3], 0, 10),
        .greedy = count > 4,
    };
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, 0) && !sigaction(SIGBUS, &action, 0));
    m.memory = map(m.pages * PAGE);
    m.stamps = shared(m.pages * 8);
    write_pages(&m, 0, m.pages);
    live(&m);
    check_pages(&m, 0, m.pages, "at its end");
    reap(&m, 0);
    return 0;
}
