// processors MODE: a program jumps about in more memory than it may have, for longer than a moment,
// so that its thread is in a streak of faults most of the time, and looks at its processors: they
// have to be its own at every look. look: by the C library. children: by children that it makes in
// every way. threads: by new threads. own: it sets one processor itself, and its own have to stay.
// raw: by system calls, which may see one processor for a moment, not for long.
#include "t.h"
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;
static cpu_set_t own;
static unsigned long seed = 88172645463325252ul;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// Touches pages at random, most of which are out.
static void jump(unsigned char *memory, size_t pages, int touches) {
    for (int i = 0; i < touches; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        memory[seed % pages * 4096]++;
    }
}

static void check(const cpu_set_t *seen, const char *who) {
    if (CPU_EQUAL(seen, &own)) return;
    printf("%s: %d processors of %d\n", who, CPU_COUNT(seen), CPU_COUNT(&own));
    exit(1);
}

static void look(const char *who) {
    cpu_set_t seen;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof seen, &seen)) exit(2);
    check(&seen, who);
}

static void *begin(void *unused) {
    look("a thread");
    return unused;
}

static void ended(int status, const char *who) {
    if (status != 0) printf("%s: status %d\n", who, status), exit(1);
}

static void wait_for(pid_t child, const char *who) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) exit(2);
    ended(status, who);
}

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    if (strcmp(mode, "child") == 0) {
        // A number of processors, without a managed process in between.
        cpu_set_t seen;
        CPU_ZERO(&seen);
        syscall(SYS_sched_getaffinity, 0, sizeof seen, &seen);
        return CPU_COUNT(&seen) == atoi(arguments[2]) ? 0 : 9;
    }
    size_t pages = (128 << 20) / 4096;
    unsigned char *memory = malloc(pages * 4096);
    for (size_t page = 0; page < pages; page++) {
        for (int i = 0; i < 4096; i += 8) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            memory[page * 4096 + i] = seed;
        }
    }
    if (strcmp(mode, "own") == 0) {
        CPU_SET(0, &own);
        if (sched_setaffinity(0, sizeof own, &own)) return 2;
    } else {
        sched_getaffinity(0, sizeof own, &own);
    }
    char number[16], command[4200];
    snprintf(number, sizeof number, "%d", CPU_COUNT(&own));
    snprintf(command, sizeof command, "%s child %s", arguments[0], number);
    char *again[] = {arguments[0], "child", number, NULL};
    int narrow = 0, streak = 0, longest = 0, rounds = 0;
    // On a busy machine the raw calls go on until one of them came within a streak.
    int is_raw = strcmp(mode, "raw") == 0;
    // Natively a few looks show that the machine allows it.
    double until = seconds() + (getenv("PAGODA_CONFIG") ? getenv("PAGODA_LONG_TESTS") ? 2 : 0.7 : 0.05), latest = until + 60;
    // Each way to make a child comes twice.
    for (; seconds() < until || rounds < 10 || (is_raw && narrow == 0 && seconds() < latest); rounds++) {
        jump(memory, pages, 300);
        if (strcmp(mode, "look") == 0 || strcmp(mode, "own") == 0) {
            look("the thread");
            int online = sysconf(_SC_NPROCESSORS_ONLN);
            if (online < CPU_COUNT(&own)) printf("%d online\n", online), exit(1);
        } else if (strcmp(mode, "threads") == 0) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, begin, NULL)) return 2;
            pthread_join(thread, NULL);
        } else if (strcmp(mode, "children") == 0) {
            pid_t child = 0;
            switch (rounds % 5) {
            case 0:
                if (!(child = fork())) look("a child"), _exit(0);
                break;
            case 1:
                if (!(child = vfork())) execv(arguments[0], again), _exit(3);
                break;
            case 2:
                if (posix_spawn(&child, arguments[0], NULL, NULL, again, environ)) return 2;
                break;
            case 3:
                ended(system(command), "system");
                continue;
            case 4:
                ended(pclose(popen(command, "r")), "popen");
                continue;
            }
            wait_for(child, rounds % 5 == 0 ? "fork" : rounds % 5 == 1 ? "vfork" : "posix_spawn");
        } else if (is_raw) {
            cpu_set_t seen;
            CPU_ZERO(&seen);
            syscall(SYS_sched_getaffinity, 0, sizeof seen, &seen);
            if (CPU_EQUAL(&seen, &own)) continue;
            narrow++;
            // Once it computes again it has to be let go.
            usleep(200000);
            CPU_ZERO(&seen);
            syscall(SYS_sched_getaffinity, 0, sizeof seen, &seen);
            check(&seen, "long after");
        }
    }
    if (is_raw) printf("narrow: %d of %d\n", narrow, rounds);
    if (strcmp(mode, "children") == 0) {
        jump(memory, pages, 2000);
        execv(arguments[0], again);
    }
    return 0;
}
