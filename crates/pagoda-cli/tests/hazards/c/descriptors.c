// descriptors LIMIT [fork]: takes memory, sets its limit of descriptors to LIMIT, as sandboxes do, and goes on using the memory; with
// `fork` a child checks it, too.
#include "t.h"

#define BYTES (60 * MIB)

int main(int count, char **arguments) {
    char *memory = map(BYTES);
    fill(memory, BYTES, 1);
    // The engine's threads are at rest when the limit falls.
    usleep(200000);
    rlim_t limit = atoi(arguments[1]);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit}) == 0);
    CHECK(wrong(memory, BYTES, 1) == 0);
    if (count > 2) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(wrong(memory, BYTES, 1) != 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    fill(memory, BYTES, 2);
    CHECK(wrong(memory, BYTES, 2) == 0);
    return 0;
}
