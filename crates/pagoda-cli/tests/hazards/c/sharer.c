// sharer: a process that shares its maker's memory and is no thread of it outlives the maker, and then looks at that memory.
#include "t.h"

#define BYTES (80 * MIB)

static char *memory;
static int line[2];
static volatile int maker_is_gone;

static int look(void *unused) {
    while (!maker_is_gone) usleep(10000);
    // Until the maker has ended for good.
    usleep(300000);
    size_t count = wrong(memory, BYTES, 1);
    write(line[1], &count, sizeof count);
    syscall(SYS_exit_group, 0);
    return 0;
}

int main(void) {
    CHECK(pipe(line) == 0);
    pid_t maker = fork();
    if (maker == 0) {
        memory = map(BYTES);
        fill(memory, BYTES, 1);
        char *stack = map(MIB);
        CHECK(clone(look, stack + MIB - 64, CLONE_VM | SIGCHLD, 0) > 0);
        usleep(200000);
        maker_is_gone = 1;
        syscall(SYS_exit_group, 0);
    }
    close(line[1]);
    size_t count = 1;
    CHECK(read(line[0], &count, sizeof count) == sizeof count);
    printf("%zu pages are wrong\n", count);
    return count != 0;
}
