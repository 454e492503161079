// raw_advice guard|removed|wipe|sealed: advice about memory, and its sealing, by system calls past the C
// library, where memory is managed.
#include "t.h"
#include <setjmp.h>
#include <sys/utsname.h>

#define BYTES (64 * MIB)
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define NR_MSEAL 462

static sigjmp_buf out;

static void on_fault(int unused) { siglongjmp(out, 1); }

static int faults(volatile char *at) {
    if (sigsetjmp(out, 1)) return 1;
    *at = 1;
    return 0;
}

static int advise(void *at, size_t bytes, int advice) { return syscall(SYS_madvise, at, bytes, advice); }

#define BASE (16 * PAGE)

// A guard in each base page of managed memory stays one when its neighbours are touched.
static int guard(void) {
    char *used = map(BYTES), *memory = map(8 * MIB + BASE);
    memory = (char *)(((uintptr_t)memory + BASE - 1) & -BASE);
    fill(memory, 8 * MIB, 2);
    fill(used, BYTES, 1);
    // Everything is managed, and there is room again: what is missing of a base page comes at once.
    CHECK(munmap(used, BYTES) == 0);
    for (char *at = memory; at < memory + 8 * MIB; at += BASE) {
        *at = 1;
        CHECK(madvise(at + PAGE, BASE - PAGE, MADV_DONTNEED) == 0);
        if (advise(at + 5 * PAGE, PAGE, GUARD_INSTALL) != 0) return 77;
        at[PAGE] = 1;
    }
    signal(SIGSEGV, on_fault);
    for (char *at = memory; at < memory + 8 * MIB; at += BASE) CHECK(faults(at + 5 * PAGE));
    return 0;
}

// Content that was out when a guard was installed over it is gone when the guard is removed.
static int removed(void) {
    struct utsname kernel;
    int major, minor;
    CHECK(uname(&kernel) == 0 && sscanf(kernel.release, "%d.%d", &major, &minor) == 2);
    // Before, nothing tells of guards.
    if (major * 1000 + minor < 6016) return 77;
    char *memory = map(BYTES), *guarded = memory + 5 * PAGE;
    size_t bytes = 30 * MIB;
    fill(memory, BYTES, 1);
    if (advise(guarded, bytes, GUARD_INSTALL) != 0) return 77;
    // Many times as long as it takes until it is seen.
    sleep(5);
    CHECK(advise(guarded, bytes, GUARD_REMOVE) == 0);
    for (size_t at = 0; at < bytes; at++) CHECK(guarded[at] == 0);
    CHECK(wrong(memory, 5 * PAGE, 1) == 0);
    // Pages behind it have the content of theirs.
    for (size_t page = 5 + bytes / PAGE; page < BYTES / PAGE; page++)
        CHECK(*(uint64_t *)(memory + page * PAGE) == word(1, page, 0));
    return 0;
}

// Memory that is to be empty in children is, also what is out.
static int wipe(void) {
    char *memory = map(BYTES), *wiped = memory + 5 * PAGE;
    size_t bytes = 30 * MIB;
    fill(memory, BYTES, 1);
    if (advise(wiped, bytes, MADV_WIPEONFORK) != 0) return 77;
    for (int round = 0; round < 2; round++) {
        // By the C library, and past it.
        pid_t child = round ? syscall(SYS_fork) : fork();
        if (child == 0) {
            for (size_t at = 0; at < bytes; at++)
                if (wiped[at]) _exit(1);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(wrong(memory, BYTES, 1) == 0);
    return 0;
}

// An unmapping that a sealed mapping in its middle forbids leaves all as it was; so does a mapping
// over it.
static int sealed(void) {
    char *memory = map(BYTES), *seal = memory + 50 * MIB;
    fill(memory, BYTES, 1);
    // Several mappings: the kernel goes on from one to the next.
    CHECK(mprotect(seal, MIB, PROT_READ) == 0);
    CHECK(mprotect(memory + 20 * MIB, MIB, PROT_READ) == 0);
    if (syscall(NR_MSEAL, seal, MIB, 0) != 0) return 77;
    CHECK(munmap(memory, BYTES) == -1 && errno == EPERM);
    CHECK(mmap(memory, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
    CHECK(wrong(memory, BYTES, 1) == 0);
    CHECK(munmap(memory, 10 * MIB) == 0 && munmap(seal + MIB, 10 * MIB) == 0);
    char *again = mmap(memory, 10 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == memory);
    for (size_t at = 0; at < 10 * MIB; at++) CHECK(again[at] == 0);
    return 0;
}

int main(int count, char **arguments) {
    if (!strcmp(arguments[1], "guard")) return guard();
    if (!strcmp(arguments[1], "removed")) return removed();
    return !strcmp(arguments[1], "wipe") ? wipe() : sealed();
}
