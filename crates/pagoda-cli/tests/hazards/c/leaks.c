// leaks: a heap over the budget that is whole, so that a leak checker walks all of it at the end. With `leak` ten blocks are lost.
#include "t.h"

#define BLOCKS 150

static char **kept;

// Several, because a copy of the last address may be left somewhere.
__attribute__((noinline)) static void lose(void) {
    for (int i = 0; i < 10; i++) {
        volatile char *lost = malloc(12345);
        lost[0] = 1;
    }
}

int main(int count, char **arguments) {
    kept = malloc(BLOCKS * sizeof *kept);
    for (int i = 0; i < BLOCKS; i++) {
        kept[i] = aligned_alloc(PAGE, MIB);
        fill(kept[i], MIB, i);
        *(void **)(kept[i] + 8) = malloc(64);
    }
    for (int i = 0; i < BLOCKS; i++) CHECK(wrong(kept[i], MIB, i) == 0);
    if (count > 1) lose();
    return 0;
}
