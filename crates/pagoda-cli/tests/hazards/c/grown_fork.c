// grown_fork MODE KIB WHAT: maps blocks, and once they are managed grows each by KIB and changes a part of it, so that the kernel has
// several mappings of it. A child of fork has to have all of it.
// MODE: place (grows where it is), move (may move). WHAT: ro (the grown part becomes read-only), hole (its seam is unmapped), again
// (it grows once more), kept (half of each block is to be missing in children).
#include "t.h"
#include <sys/uio.h>

#define BLOCKS 40
#define OLD MIB
#define SEAM (64 * 1024)

static char *block[BLOCKS];
static size_t grow;
static const char *what;

static int is(const char *name) { return strcmp(what, name) == 0; }

static void grow_block(char **at, size_t old, size_t new_bytes, int tag) {
    *at = mremap(*at, old, new_bytes, MREMAP_MAYMOVE);
    CHECK(*at != MAP_FAILED);
    memset(*at + old, tag, new_bytes - old);
}

// The child's: whether it has what it should, and no more.
static int is_right(size_t bytes) {
    for (int i = 0; i < BLOCKS; i++) {
        size_t from = is("kept") ? OLD / 2 : 0;
        for (size_t at = from; at < bytes; at += 1024) {
            int is_hole = is("hole") && at >= OLD - SEAM && at < OLD;
            if (!is_hole && block[i][at] != i + 1) return 0;
        }
        // Another mapping may lie there by now, of the child's own engine for one.
        unsigned char seen = 0;
        struct iovec here = {&seen, 1}, there = {block[i], 1};
        if (is("kept") && process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 && seen == i + 1) return 0;
    }
    return 1;
}

int main(int count, char **arguments) {
    int moves = strcmp(arguments[1], "move") == 0;
    grow = atoi(arguments[2]) * 1024ul;
    what = arguments[3];
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = map(OLD + (moves ? 0 : 2 * grow));
        // Before it is managed, which needs it to be writable: it is the program's own wish.
        if (is("kept")) {
            CHECK(munmap(block[i], OLD) == 0);
            block[i] = mmap(block[i], OLD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(block[i] != MAP_FAILED && madvise(block[i], OLD / 2, MADV_DONTFORK) == 0);
            CHECK(mprotect(block[i], OLD, PROT_READ | PROT_WRITE) == 0);
        }
        if (!moves && !is("kept")) CHECK(munmap(block[i] + OLD, 2 * grow) == 0);
        memset(block[i], i + 1, OLD);
    }
    // More than the budget, and time to look at it.
    usleep(400000);
    size_t bytes = OLD;
    if (!is("kept")) {
        bytes += grow;
        for (int i = 0; i < BLOCKS; i++) grow_block(&block[i], OLD, bytes, i + 1);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (is("ro")) CHECK(mprotect(block[i] + OLD, grow, PROT_READ) == 0);
        if (is("hole")) CHECK(munmap(block[i] + OLD - SEAM, SEAM) == 0);
        if (is("again")) {
            CHECK(mprotect(block[i], OLD, PROT_READ) == 0);
            char *grown = block[i] + OLD;
            grow_block(&grown, grow, 2 * grow, i + 1);
            // It may be elsewhere now: what lies there is looked at by the parent alone.
            if (grown != block[i] + OLD) bytes = OLD;
        }
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(is_right(bytes) ? 0 : 9);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) printf("the child ended with %x\n", status);
    return status != 0;
}
