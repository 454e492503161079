/* Fills memory, checks it, and prints a digest: fill MIB RANDOM-WORDS PASSES STATUS [SECONDS].
 * Of each page's 512 words so many are random; below zero: only once all of it was filled with
 * what compresses best. SECONDS: it waits so long before it ends. PASSES below zero: the kernel
 * fills it with random words, by read(2), and STATUS is for one that failed. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

static uint64_t word(size_t page, int i, int random)
{
	return i < random ? mix(page * 512 + i + 1) : page;
}

/* Once there is no memory no page but those that are there may be touched. */
static int filled_by_kernel(size_t pages, int status)
{
	int file = open("/dev/urandom", O_RDONLY), failed = mlockall(MCL_CURRENT);
	char *memory = mmap(NULL, pages * 4096, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (file < 0 || failed || memory == MAP_FAILED)
		return 98;
	for (size_t page = 0; page < pages && !failed; page++)
		failed = read(file, memory + page * 4096, 4096) < 0 ? errno : 0;
	munmap(memory, pages * 4096);
	printf("error %d\n", failed);
	return failed ? status : 0;
}

int main(int count, char **given)
{
	size_t pages = (size_t)atoi(given[1]) << 8;
	int random = atoi(given[2]), passes = atoi(given[3]);
	uint64_t *memory, digest = 0;

	if (passes < 0)
		return filled_by_kernel(pages, atoi(given[4]));
	memory = malloc(pages * 4096);
	for (size_t page = 0; random < 0 && page < pages; page++)
		for (int i = 0; i < 512; i++)
			memory[page * 512 + i] = page;
	random = abs(random);
	for (size_t page = 0; page < pages; page++)
		for (int i = 0; i < 512; i++)
			memory[page * 512 + i] = word(page, i, random);
	for (int pass = 0; pass < passes; pass++)
		for (size_t page = 0; page < pages; page++)
			for (int i = 0; i < 512; i++) {
				if (memory[page * 512 + i] != word(page, i, random)) {
					printf("wrong at page %zu\n", page);
					return 99;
				}
				digest = digest * 31 + memory[page * 512 + i];
			}
	printf("digest %016llx\n", (unsigned long long)digest);
	fflush(stdout);
	if (count > 5)
		sleep(atoi(given[5]));
	return atoi(given[4]);
}
