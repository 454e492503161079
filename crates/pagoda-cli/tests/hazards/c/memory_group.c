// Fills so many MiB of private ("private") or shared ("shared") memory and reads them all back.
#include "t.h"

int main(int count, char **arguments) {
    CHECK(count == 3);
    size_t bytes = strtoul(arguments[2], 0, 10) * MIB;
    int kind = strcmp(arguments[1], "shared") == 0 ? MAP_SHARED : MAP_PRIVATE;
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    fill(memory, bytes, 1);
    CHECK(wrong(memory, bytes, 1) == 0);
    printf("all there\n");
    return 0;
}
