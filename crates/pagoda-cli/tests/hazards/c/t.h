// What the programs of these tests share: memory with content that each page can be told by.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul

// Ends the program with status 1 and a line if the condition does not hold.
#define CHECK(condition) do { if (!(condition)) { \
    printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
    fflush(stdout); _exit(1); } } while (0)

// A word of page `page` of the memory with this tag: every eighth is written and read.
static inline uint64_t word(uint64_t tag, uint64_t page, uint64_t at) {
    uint64_t x = tag * 0x9E3779B97F4A7C15ull ^ page * 0xBF58476D1CE4E5B9ull ^ at * 0x94D049BB133111EBull;
    x ^= x >> 29;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

static inline void fill(void *memory, size_t bytes, uint64_t tag) {
    for (size_t page = 0; page < bytes / PAGE; page++) {
        uint64_t *words = (uint64_t *)((char *)memory + page * PAGE);
        for (size_t at = 0; at < 512; at += 8) words[at] = word(tag, page, at);
    }
}

// How many pages do not have the content of this tag.
static inline size_t wrong(void *memory, size_t bytes, uint64_t tag) {
    size_t count = 0;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        uint64_t *words = (uint64_t *)((char *)memory + page * PAGE);
        int is_wrong = 0;
        for (size_t at = 0; at < 512; at += 8) is_wrong |= words[at] != word(tag, page, at);
        count += is_wrong;
    }
    return count;
}

static inline void *map(size_t bytes) {
    void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}
