// last_thread MODE: the last thread of the process ends by exit(2), not exit_group(2). small and big: the main thread, without and
// with memory over the budget. strict: so it does in strict seccomp mode, which allows nothing else. after: another thread ends
// after the main one. many: several do. joined: the main thread ends by pthread_exit. child: all this in a child of a fork.
// worker: after the main thread has ended another one uses three times the budget, and ends by exit(3).
#include "t.h"

#define BYTES (64 * MIB)

static void end_thread(int status) { syscall(SYS_exit, status); }

static void *later(void *status) {
    usleep(300000);
    end_thread((int)(long)status);
    return 0;
}

static long anonymous_mib(void) {
    char line[200];
    long kib = -1;
    FILE *file = fopen("/proc/thread-self/status", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %ld", &kib);
    fclose(file);
    return kib / 1024;
}

static void *work(void *unused) {
    usleep(200000);
    char *memory = map(100 * MIB);
    long most = 0;
    for (int round = 0; round < 2; round++) {
        for (size_t at = 0; at < 100 * MIB; at += 10 * MIB) {
            fill(memory + at, 10 * MIB, round);
            long now = anonymous_mib();
            if (now > most) most = now;
            usleep(5000);
        }
        for (size_t at = 0; at < 100 * MIB; at += 10 * MIB) CHECK(wrong(memory + at, 10 * MIB, round) == 0);
    }
    // Natively all of it is there; within a budget of 48 MiB much less, a burst included.
    CHECK(getenv("PAGODA_CONFIG") == 0 || most < 100);
    exit(0);
}

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    pthread_t thread;
    if (strcmp(mode, "big") == 0) {
        char *memory = map(BYTES);
        fill(memory, BYTES, 1);
        CHECK(wrong(memory, BYTES, 1) == 0);
    }
    if (strcmp(mode, "strict") == 0) CHECK(prctl(PR_SET_SECCOMP, 1, 0, 0, 0) == 0);
    if (strcmp(mode, "after") == 0) CHECK(pthread_create(&thread, 0, later, (void *)3) == 0);
    if (strcmp(mode, "many") == 0)
        for (int i = 0; i < 5; i++) CHECK(pthread_create(&thread, 0, later, (void *)7) == 0);
    if (strcmp(mode, "joined") == 0) {
        CHECK(pthread_create(&thread, 0, later, (void *)4) == 0);
        pthread_exit(0);
    }
    if (strcmp(mode, "worker") == 0) {
        CHECK(pthread_create(&thread, 0, work, 0) == 0);
        pthread_exit(0);
    }
    if (strcmp(mode, "child") == 0) {
        pid_t child = fork();
        if (child == 0) {
            usleep(100000);
            end_thread(6);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 6);
        return 0;
    }
    end_thread(5);
}
