/* Fills memory beyond its budget, and dumps core in the way that it is told. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As a program that prints what it knows, and then dumps core all the same. */
static void reset_and_raise(int number) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    if (sigaction(number, &action, NULL)) _exit(3);
    raise(number);
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    size_t bytes = 64 << 20;
    struct sigaction before;
    /* What was not set is the default, however Pagoda waits for it. */
    if (sigaction(SIGSEGV, NULL, &before) || before.sa_handler != SIG_DFL || before.sa_flags) return 4;
    if (signal(SIGQUIT, SIG_IGN) != SIG_DFL || signal(SIGQUIT, SIG_DFL) != SIG_IGN) return 5;
    uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) return 2;
    for (size_t at = 0; at < bytes / 8; at++) words[at] = at % 8 ? at / 512 + 1 : at * 0x9e3779b97f4a7c15u + 1;
    printf("%lx %zu\n", (unsigned long)words, bytes);
    fflush(stdout);
    if (!strcmp(way, "abort")) abort();
    if (!strcmp(way, "segv")) *(volatile int *)16 = 1;
    if (!strcmp(way, "quit")) raise(SIGQUIT);
    if (!strcmp(way, "kill")) {
        kill(getpid(), SIGSEGV);
        pause();
    }
    if (!strcmp(way, "reset")) {
        signal(SIGSEGV, reset_and_raise);
        *(volatile int *)16 = 1;
    }
    return 6;
}
