// Replaces itself by another program, at once or after it has had an engine at work ("grown"), or starts that as a child
// ("child"), or by a managed one ("again"). "raw" and "killed" end without the C library; "hold"
// fills 64 MiB and stays for so many milliseconds.
#include "t.h"

static void hold(int milliseconds) {
    char *memory = map(64 * MIB);
    fill(memory, 64 * MIB, 1);
    for (int i = 0; i < milliseconds; i++) usleep(1000);
    CHECK(wrong(memory, 64 * MIB, 1) == 0);
    _exit(7);
}

int main(int count, char **arguments) {
    CHECK(count >= 3);
    if (strcmp(arguments[1], "hold") == 0) hold(atoi(arguments[2]));
    if (strcmp(arguments[1], "grown") == 0) {
        char *memory = map(96 * MIB);
        fill(memory, 96 * MIB, 2);
        CHECK(wrong(memory, 96 * MIB, 2) == 0);
    }
    char *own[] = {arguments[0], "hold", arguments[2], 0};
    char *nothing[] = {0};
    if (strcmp(arguments[1], "again") == 0) execv("/proc/self/exe", own);
    if (strcmp(arguments[1], "raw") == 0) syscall(SYS_exit_group, 7);
    if (strcmp(arguments[1], "killed") == 0) kill(getpid(), SIGKILL);
    if (strcmp(arguments[1], "child") == 0) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            int status;
            CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
            return 7;
        }
        // Long enough to be a member of the tree.
        usleep(300000);
    }
    execve("/proc/self/exe", own, nothing);
    CHECK(!"executed");
}
