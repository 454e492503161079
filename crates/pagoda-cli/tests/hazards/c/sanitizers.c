// sanitizers [overflow]: uses more memory of malloc than its budget, checks it, frees all of it, and
// ends with status 7; with `overflow` it adds one to the largest number before.
#include "t.h"

#define BYTES (72 * MIB)
#define SMALL 2000

int main(int count, char **arguments) {
    char *memory = aligned_alloc(PAGE, BYTES);
    CHECK(memory);
    fill(memory, BYTES, 1);
    CHECK(wrong(memory, BYTES, 1) == 0);
    static unsigned char *small[SMALL];
    for (int i = 0; i < SMALL; i++) {
        small[i] = malloc(10000);
        memset(small[i], i, 10000);
    }
    for (int i = 0; i < SMALL; i++) {
        for (int at = 0; at < 10000; at += 500) CHECK(small[i][at] == (unsigned char)i);
        free(small[i]);
    }
    CHECK(wrong(memory, BYTES, 1) == 0);
    free(memory);
    if (count > 1) {
        volatile int number = 0x7fffffff;
        number = number + 1;
        printf("%d\n", number);
    }
    printf("the program has run\n");
    return 7;
}
