// own_userfault: memory that was there from the start is registered by the program itself, after pressure has had it managed.
#include "t.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#define BYTES (20 * MIB)

int main(void) {
    int descriptor = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    CHECK(descriptor >= 0);
    struct uffdio_api api = {UFFD_API, 0};
    CHECK(ioctl(descriptor, UFFDIO_API, &api) == 0);
    char *memory = map(BYTES), *written = map(BYTES), *more = map(60 * MIB);
    fill(written, BYTES, 1);
    fill(more, 60 * MIB, 2);
    usleep(100000);
    for (int i = 0; i < 2; i++) {
        uint64_t at = (uint64_t)(i ? written : memory);
        struct uffdio_register range = {{at, BYTES}, UFFDIO_REGISTER_MODE_MISSING};
        CHECK(ioctl(descriptor, UFFDIO_REGISTER, &range) == 0);
    }
    CHECK(wrong(written, BYTES, 1) == 0 && wrong(more, 60 * MIB, 2) == 0);
    return 0;
}
