// own_userfault_part: in memory that pressure has had managed the program registers a part of a
// mapping, again and again, serves its missing pages itself, and ends the registration. All content
// stays right, within the budget.
#include "t.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

#define BYTES (24 * MIB)
#define PART (2 * MIB)
#define ROUNDS 6

static int descriptor;
static _Atomic long served;

// The page that a fault gets has this word everywhere, and its number in the first.
#define SERVED_WORD 0x5EED5EED5EED5EEDull

static void *serve(void *unused) {
    static uint64_t page[PAGE / 8] __attribute__((aligned(4096)));
    for (;;) {
        struct pollfd ready = {descriptor, POLLIN, 0};
        struct uffd_msg message;
        if (poll(&ready, 1, -1) < 1 || read(descriptor, &message, sizeof message) != sizeof message) continue;
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        uint64_t at = message.arg.pagefault.address & -PAGE;
        for (int i = 0; i < 512; i++) page[i] = SERVED_WORD;
        page[0] = at;
        struct uffdio_copy copy = {at, (uint64_t)page, PAGE, 0, 0};
        served++;
        CHECK(ioctl(descriptor, UFFDIO_COPY, &copy) == 0 || errno == EEXIST || errno == EAGAIN);
    }
    return unused;
}

int main(void) {
    descriptor = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    CHECK(descriptor >= 0);
    struct uffdio_api api = {UFFD_API, 0};
    CHECK(ioctl(descriptor, UFFDIO_API, &api) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, serve, 0) == 0);
    char *memory = map(BYTES), *more = map(60 * MIB);
    fill(memory, BYTES, 1);
    fill(more, 60 * MIB, 2);
    usleep(100000);
    for (int round = 0; round < ROUNDS; round++) {
        char *part = memory + (5 + round * 700) * PAGE;
        struct uffdio_register range = {{(uint64_t)part, PART}, UFFDIO_REGISTER_MODE_MISSING};
        CHECK(ioctl(descriptor, UFFDIO_REGISTER, &range) == 0);
        CHECK(wrong(memory, BYTES, 1) == 0);
        // Some pages are the program's own to serve now.
        long before = served;
        for (int i = 0; i < 64; i++) {
            char *page = part + i * 7 * PAGE;
            CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
            CHECK(((volatile uint64_t *)page)[511] == SERVED_WORD);
            CHECK(((volatile uint64_t *)page)[0] == (uint64_t)page);
        }
        CHECK(served - before >= 64);
        CHECK(wrong(more, 60 * MIB, 2) == 0);
        for (int i = 0; i < 64; i++) {
            char *page = part + i * 7 * PAGE;
            for (size_t at = 0; at < 512; at += 8)
                ((uint64_t *)page)[at] = word(1, (page - memory) / PAGE, at);
        }
        // Every second part is given up, and may be managed again.
        if (round % 2) CHECK(ioctl(descriptor, UFFDIO_UNREGISTER, &range.range) == 0);
        fill(more, 60 * MIB, 2);
        CHECK(wrong(memory, BYTES, 1) == 0);
    }
    return 0;
}
