// rights MODE MIB: a program of root with MIB of memory gives up rights, and looks which threads of
// its process have them still. start: it gives nothing up; threads that it did not make have none
// in effect but those of locking memory and of placing threads (CAP_IPC_LOCK, CAP_SYS_NICE). user:
// setresuid(2) by the C library. raw: the same by a system call. back: seteuid(2) to a user and
// back. capset: all capabilities, by a system call. child: a child of fork does what `user` does. small: a child of fork looks at the
// thread that watches it. gone: another thread changes the user by a system call when the main
// thread has ended. groups, raw_groups: supplementary groups alone, by the C library and by a
// system call. Then the memory has to be right, also in a child of a fork.
#include "t.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>

#define USER 65534
// More than the budget, by itself.
#define MORE (36 * MIB)

// Capabilities that a thread of the engine may keep: those to change ids, to lock memory, and to
// start an engine.
#define MAY_KEEP (1ull << CAP_SETUID | 1ull << CAP_SETGID | 1ull << CAP_IPC_LOCK | 1ull << CAP_DAC_OVERRIDE \
    | 1ull << CAP_SYS_PTRACE | 1ull << CAP_SYS_NICE | 1ull << CAP_SYS_RESOURCE)

// Threads that the program did not make for which this is true of their user, capabilities and
// groups.
static int count_ours(int (*is_bad)(unsigned user, unsigned long long permitted, int groups)) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int count = 0;
    while ((task = readdir(tasks))) {
        if (task->d_name[0] == '.') continue;
        char path[300], line[300], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        unsigned user = 0;
        int group, groups = 0;
        unsigned long long permitted = 0;
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "Uid: %u", &user);
            if (sscanf(line, "Groups: %d", &group) == 1) groups = 1;
            sscanf(line, "CapPrm: %llx", &permitted);
        }
        if (status) fclose(status);
        if (strncmp(name, "pagoda", 6) == 0 && is_bad(user, permitted, groups)) {
            printf("%s: user %u, permitted %llx, groups %d\n", name, user, permitted, groups);
            count++;
        }
    }
    closedir(tasks);
    return count;
}

static int keeps_more(unsigned user, unsigned long long permitted, int groups) { return (permitted & ~MAY_KEEP) != 0; }
static int has_groups(unsigned user, unsigned long long permitted, int groups) { return groups; }
static int is_other_user(unsigned user, unsigned long long permitted, int groups) { return user != USER || permitted; }

static void expect_none_of_ours(int (*is_bad)(unsigned, unsigned long long, int)) {
    int count = 1;
    for (int tries = 0; tries < 600 && count; tries++) {
        fflush(stdout);
        count = count_ours(is_bad);
        if (count) usleep(20000);
    }
    CHECK(count == 0);
}

static void *change_user(void *unused) {
    // The main thread has ended by then.
    usleep(300000);
    CHECK(syscall(SYS_setresgid, USER, USER, USER) == 0);
    CHECK(syscall(SYS_setresuid, USER, USER, USER) == 0);
    expect_none_of_ours(is_other_user);
    _exit(0);
}

// Threads with another user, or with capabilities in effect.
static int count_privileged(int user, int names_all) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int count = 0;
    while ((task = readdir(tasks))) {
        if (task->d_name[0] == '.') continue;
        char path[300], line[300], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        unsigned real = 0, effective = 0;
        unsigned long long in_effect = 0;
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "Uid: %u %u", &real, &effective);
            sscanf(line, "CapEff: %llx", &in_effect);
        }
        if (status) fclose(status);
        int is_ours = strncmp(name, "pagoda", 6) == 0;
        if (!names_all) in_effect &= ~(1ull << CAP_IPC_LOCK | 1ull << CAP_SYS_NICE);
        if ((names_all || is_ours) && (in_effect != 0 || (names_all && (effective != user)))) {
            printf("%s: user %u %u, capabilities %llx\n", name, real, effective, in_effect);
            count++;
        }
    }
    closedir(tasks);
    return count;
}

static void expect_none(int user, int names_all) {
    // What a system call of the program's own does is seen a moment later.
    int count = 1;
    for (int tries = 0; tries < 600 && count; tries++) {
        fflush(stdout);
        count = count_privileged(user, names_all);
        if (count) usleep(20000);
    }
    CHECK(count == 0);
}

static void give_up_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    CHECK(syscall(SYS_capset, &header, none) == 0);
}

static void drop(const char *mode) {
    if (strcmp(mode, "start") == 0 || strcmp(mode, "small") == 0) return expect_none(0, 0);
    if (strcmp(mode, "capset") == 0) {
        give_up_capabilities();
        return expect_none(0, 1);
    }
    if (strcmp(mode, "back") == 0) {
        CHECK(seteuid(USER) == 0);
        CHECK(count_privileged(USER, 1) == 0);
        CHECK(seteuid(0) == 0);
        return expect_none(0, 0);
    }
    CHECK(setgroups(0, 0) == 0);
    if (strcmp(mode, "raw") == 0) {
        CHECK(syscall(SYS_setresgid, USER, USER, USER) == 0);
        CHECK(syscall(SYS_setresuid, USER, USER, USER) == 0);
        return expect_none(USER, 1);
    }
    CHECK(setresgid(USER, USER, USER) == 0);
    CHECK(setresuid(USER, USER, USER) == 0);
    // When the call has returned no thread has them any more.
    CHECK(count_privileged(USER, 1) == 0);
    CHECK(setresuid(0, 0, 0) == -1);
}

static int is_right(char *memory, size_t bytes) { return wrong(memory, bytes, 1) == 0; }

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    size_t bytes = atoi(arguments[2]) * MIB;
    char *memory = map(bytes);
    fill(memory, bytes, 1);
    // Time for a small process to be seen as one.
    usleep(100000);
    if (strcmp(mode, "child") == 0) {
        pid_t child = fork();
        if (child != 0) {
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            CHECK(is_right(memory, bytes));
            return 0;
        }
    }
    if (strcmp(mode, "gone") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, change_user, 0) == 0);
        pthread_exit(0);
    }
    if (strcmp(mode, "small") == 0) {
        pid_t child = fork();
        if (child == 0) {
            // Time for the thread that watches it to begin.
            usleep(200000);
            expect_none_of_ours(keeps_more);
            return 0;
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    if (strcmp(mode, "groups") == 0) {
        CHECK(setgroups(0, 0) == 0);
        CHECK(count_ours(has_groups) == 0);
        mode = "start";
    }
    if (strcmp(mode, "raw_groups") == 0) {
        CHECK(syscall(SYS_setgroups, 0, 0) == 0);
        expect_none_of_ours(has_groups);
        mode = "start";
    }
    drop(mode);
    char *more = map(MORE);
    fill(more, MORE, 2);
    CHECK(wrong(more, MORE, 2) == 0);
    CHECK(is_right(memory, bytes));
    pid_t child = fork();
    if (child == 0) _exit(!is_right(memory, bytes) || wrong(more, MORE, 2) != 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_right(memory, bytes) && wrong(more, MORE, 2) == 0);
    return 0;
}
