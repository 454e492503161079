// Holds more memory than its budget that can't be moved out, of the kind that is named. With a
// second argument it goes on, for a minute at most, to use memory that can be moved out.
#include "t.h"

enum { PARTS = 32 };

int main(int count, char **arguments) {
    const char *kind = count > 1 ? arguments[1] : "read-only";
    for (uint64_t part = 0; part < PARTS; part++) {
        char *memory = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        fill(memory, 2 * MIB, part);
        if (!strcmp(kind, "locked")) CHECK(!mlock(memory, 2 * MIB));
        else CHECK(!mprotect(memory, 2 * MIB, !strcmp(kind, "executable") ? PROT_READ | PROT_EXEC : PROT_READ));
        // All of it comes back and stays.
        for (size_t at = 0; at < 2 * MIB; at += PAGE) *(volatile char *)(memory + at);
    }
    if (count < 3) return 0;
    char *used = mmap(NULL, 40 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(used != MAP_FAILED);
    for (int round = 0; round < 600; round++) {
        for (size_t at = 0; at < 40 * MIB; at += PAGE) used[at]++;
        usleep(100000);
    }
    return 0;
}
