// namespaces MODE: a program of one thread enters a user or a mount namespace, which the kernel
// refuses to one of several threads. early: at its start. large: with more memory than it may have.
// small: so does a child that holds next to nothing, and executes this program again. threads: a
// program with a thread of its own is refused, and keeps its memory. Ends with 77 where the machine
// does not allow it.
#include "t.h"

#define BYTES (44 * MIB)

static void *stay(void *argument) { return pause(), argument; }

static int enter(void) { return unshare(CLONE_NEWUSER); }

// The mount namespace that it is in already.
static void enter_mounts(void) {
    int mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    CHECK(mounts >= 0);
    if (setns(mounts, CLONE_NEWNS) && errno == EPERM) exit(77);
    CHECK(!errno || errno == EPERM);
    errno = 0;
    close(mounts);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *mode = arguments[1];
    char ids_map[64];
    snprintf(ids_map, sizeof ids_map, "%d %d 1", geteuid(), geteuid());
    errno = 0;
    if (strcmp(mode, "grown")) enter_mounts();
    if (!strcmp(mode, "small")) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            if (enter() && errno == EPERM) _exit(77);
            CHECK(!errno);
            // As the same user: another may not open the engine's files.
            int ids = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
            CHECK(ids >= 0 && write(ids, ids_map, strlen(ids_map)) > 0);
            execl(arguments[0], arguments[0], "grown", (char *)0);
            CHECK(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        return WEXITSTATUS(status);
    }
    if (!strcmp(mode, "early") && enter()) return errno == EPERM ? 77 : 1;
    char *memory = map(BYTES);
    fill(memory, BYTES, 1);
    CHECK(!wrong(memory, BYTES, 1));
    if (!strcmp(mode, "threads")) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, 0, stay, 0));
        CHECK(enter() == -1 && errno == EINVAL);
    }
    if (!strcmp(mode, "large")) {
        // Not the first call that fails: its error stays.
        CHECK(setns(-1, 0) == -1 && errno == EBADF);
        if (enter()) return errno == EPERM ? 77 : 1;
    }
    CHECK(!wrong(memory, BYTES, 1));
    fill(memory, BYTES, 2);
    CHECK(!wrong(memory, BYTES, 2));
    return 0;
}
