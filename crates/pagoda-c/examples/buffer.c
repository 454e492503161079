// A buffer of 256 MiB in 64 MiB of memory, by address and by calls. Compiles as C11 and as C++17.
//
//   cc buffer.c $(pkg-config --cflags --libs pagoda) && ./a.out
//
// It ends with 77 where this machine has no userfaultfd that could move pages.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pagoda.h>

enum { RECORD = 4096, BUDGET_MIB = 64, BUFFER_MIB = 256 };

// Every call that can fail returns a code and fills in the message.
static void must(pagoda_code code, const pagoda_error *error) {
    if (code != PAGODA_CODE_OK) {
        fprintf(stderr, "buffer: %s\n", error->message);
        exit(1);
    }
}

// Half of a record repeats itself, half of it does not, as data often is.
static void fill(unsigned char *record, unsigned number) {
    unsigned state = number * 2654435761u + 1;
    memset(record, (int)(number % 251), RECORD / 2);
    for (int at = RECORD / 2; at < RECORD; at++) {
        state = state * 1664525u + 1013904223u;
        record[at] = (unsigned char)(state >> 24);
    }
}

int main(void) {
    if (!pagoda_is_supported()) {
        fprintf(stderr, "buffer: no userfaultfd with UFFDIO_MOVE here; Linux 6.8 has it\n");
        return 77;
    }
    pagoda_error error;
    pagoda_builder *builder = NULL;
    pagoda_manager *manager = NULL;
    pagoda_region *region = NULL;
    must(pagoda_builder_new(&builder, &error), &error);
    must(pagoda_builder_budget(builder, (uint64_t)BUDGET_MIB << 20, &error), &error);
    // Faults of this program's own code are enough here, and need no privilege.
    must(pagoda_builder_user_mode_only(builder, true, &error), &error);
    must(pagoda_builder_spill_to(builder, "/var/tmp", (uint64_t)1 << 30, &error), &error);
    must(pagoda_builder_build(builder, &manager, &error), &error);
    must(pagoda_region_create(manager, (uint64_t)BUFFER_MIB << 20, 0, 0, &region, &error), &error);

    unsigned char *memory = (unsigned char *)pagoda_region_address(region);
    unsigned records = (unsigned)(pagoda_region_bytes(region) / RECORD);
    unsigned char expected[RECORD], back[RECORD];
    for (unsigned number = 0; number < records; number++) {
        fill(memory + (size_t)number * RECORD, number);
    }
    for (unsigned number = 0; number < records; number++) {
        must(pagoda_region_read_at(region, (size_t)number * RECORD, back, RECORD, &error), &error);
        fill(expected, number);
        if (memcmp(expected, back, RECORD) != 0) {
            fprintf(stderr, "buffer: record %u reads wrong\n", number);
            return 1;
        }
    }

    pagoda_stats stats;
    must(pagoda_manager_stats(manager, &stats, &error), &error);
    printf("%d MiB within %llu MiB: %llu faults, %llu of them fetched from the store\n", BUFFER_MIB,
           (unsigned long long)(stats.budget_bytes >> 20), (unsigned long long)stats.faults,
           (unsigned long long)stats.faults_stored);
    pagoda_region_close(region);
    pagoda_manager_close(manager);
    return stats.faults_stored > 0 ? 0 : 1;
}
