// Forks with much of its memory out, again and again, until a file is there: parent or child is
// stopped from outside while the child is given its memory.
//
// stopped FILE
#include "t.h"

#define BYTES (80 * MIB)

int main(int count, char **arguments) {
    CHECK(count == 2);
    char *memory = map(BYTES);
    fill(memory, BYTES, 1);
    while (access(arguments[1], F_OK)) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            size_t count = wrong(memory, BYTES, 1);
            if (count) printf("wrong: %zu pages of a child\n", count);
            fflush(stdout);
            _exit(count ? 2 : 0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status) printf("wrong: a child ended with %x\n", status);
        size_t count = wrong(memory, BYTES, 1);
        if (count) printf("wrong: %zu pages of the parent\n", count);
        fflush(stdout);
    }
    return 0;
}
