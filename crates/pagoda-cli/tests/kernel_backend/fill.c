/* Fills memory, checks it, and prints a digest: fill MIB RANDOM-WORDS PASSES STATUS [SECONDS].
 * Of each page's 512 words so many are random; below zero: only once all of it was filled with
 * what compresses best. SECONDS: it waits so long before it ends. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

int main(int count, char **given)
{
	size_t pages = (size_t)atoi(given[1]) << 8;
	int random = atoi(given[2]), passes = atoi(given[3]);
	uint64_t *memory = malloc(pages * 4096), digest = 0;

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
