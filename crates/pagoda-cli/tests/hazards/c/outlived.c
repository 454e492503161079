// outlived: a process shares its maker's memory, outlives it, and then looks at all of that memory. No hook sees it being made.
// outlived raw|vfork: the maker is a child. outlived first FILE: the maker is the program itself, and FILE gets the count.
#include "t.h"

#define BYTES (80 * MIB)
#define TOLD 3

static char *memory;
static int line[2];
static const char *file;
static pid_t maker;

static void look(void) {
    while (syscall(SYS_getppid) == maker) usleep(10000);
    // Until the maker has ended for good.
    usleep(300000);
    size_t count = wrong(memory, BYTES, 1);
    int to = file ? open(file, O_WRONLY | O_CREAT, 0600) : line[1];
    write(to, &count, sizeof count);
    syscall(SYS_exit_group, 0);
}

// clone(2) by the system call itself.
static pid_t clone_raw(char *stack_top) {
    long result;
    register long tid asm("r10") = 0, tls asm("r8") = 0;
    asm volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\tcall *%6\n1:"
                 : "=a"(result)
                 : "a"(SYS_clone), "D"((long)(CLONE_VM | SIGCHLD)), "S"(stack_top), "d"(0L), "r"(tid), "r"(look), "r"(tls)
                 : "rcx", "r11", "memory");
    return result;
}

static void make(int is_vfork) {
    maker = getpid();
    memory = map(BYTES);
    fill(memory, BYTES, 1);
    if (is_vfork) {
        if (vfork() == 0) look();
    } else {
        CHECK(clone_raw(map(MIB) + MIB - 64) > 0);
    }
}

int main(int count, char **words) {
    if (!strcmp(words[1], "first")) {
        file = words[2];
        make(0);
        usleep(200000);
        _exit(0);
    }
    int is_vfork = !strcmp(words[1], "vfork");
    CHECK(pipe(line) == 0);
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        make(is_vfork);
        usleep(200000);
        syscall(SYS_exit_group, 0);
    }
    if (is_vfork) {
        // Until it is within the call: the child's own child is there.
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", child, child);
        for (char children[16] = ""; !children[0]; usleep(10000)) {
            int from = open(path, O_RDONLY);
            if (from >= 0) read(from, children, sizeof children), close(from);
        }
        kill(child, SIGKILL);
    }
    close(line[1]);
    int status, is_told = 0;
    for (pid_t ended; (ended = wait(&status)) > 0;)
        if (ended != child) is_told = WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
    if (is_told) return TOLD;
    size_t pages = 1;
    CHECK(read(line[0], &pages, sizeof pages) == sizeof pages);
    printf("%zu pages are wrong\n", pages);
    return pages != 0;
}
