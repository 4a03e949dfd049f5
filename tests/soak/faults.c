/* Loaded before libc (LD_PRELOAD), this makes chosen file operations of a process fail.

   Operations that write under one folder are counted, by what they belong to: a save, the log, the removal of old
   checkpoints. At the chosen one the process is killed, half-way through where there is a half; or the disk is full from
   then on: the write stops half-way, and whatever needs room fails with ENOSPC. Python, safetensors and tokenizers, which
   are written in C and Rust, all come by here. faults.py speaks to it. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, KILL, FULL };
enum { PASS, STOP_HALF_WAY, NO_ROOM };

static int action = OFF, report_to = -1;
static char category;   /* s save, l log, p pruning, or * */
static long chosen, seen;
static char root[PATH_MAX];

void faults_arm(int what, char of, long at, const char *folder, int report) {
    snprintf(root, sizeof root, "%s", folder);
    category = of, chosen = at, report_to = report, seen = 0, action = what;
}

long faults_seen(void) { return seen; }

static const char *absolute(int folder, const char *path, char *buffer) {
    if (path != NULL && path[0] == '/') return path;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, folder == AT_FDCWD ? "/proc/self/cwd" : link, buffer, PATH_MAX - 1);
    if (length < 0) return "";
    buffer[length] = 0;
    if (path != NULL) snprintf(buffer + length, PATH_MAX - length, "/%s", path);
    return buffer;
}

static char category_of(const char *path, int frees) {
    if (strstr(path, "metrics.jsonl")) return 'l';
    if (strstr(path, "/checkpoints")) return frees ? 'p' : 's';
    return 'o';
}

/* What becomes of an operation; `frees`: it needs no room and never fails for want of it. */
static int verdict(const char *name, int folder, const char *path, int frees) {
    if (action == OFF || (action == FULL && frees)) return PASS;
    char buffer[PATH_MAX];
    const char *full = absolute(folder, path, buffer);
    const char *inside = full + strlen(root);
    if (strncmp(full, root, strlen(root)) || (*inside != '/' && *inside)) return PASS;
    if (category != '*' && category_of(full, frees) != category) return PASS;
    seen += 1;
    if (seen < chosen) return PASS;
    if (seen == chosen) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%c %s %s\n", category_of(full, frees), name, inside);
        syscall(SYS_write, report_to, line, length);
        return STOP_HALF_WAY;
    }
    return action == FULL ? NO_ROOM : PASS;
}

static long full_disk(void) {
    errno = ENOSPC;
    return -1;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); }

/* For operations that are done whole or not at all: every second kill comes after it. */
#define WHOLE(name, folder, path, frees, call)                      \
    do {                                                            \
        int found = verdict(name, folder, path, frees);             \
        if (found != PASS && action == FULL) return full_disk();    \
        long answer = 0;                                            \
        if (found == PASS || chosen % 2) answer = (call);           \
        if (found == STOP_HALF_WAY) die();                          \
        return answer;                                              \
    } while (0)

static int writes(int flags) { return flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR); }

static int open_any(int folder, const char *path, int flags, mode_t mode) {
    if (!writes(flags)) return syscall(SYS_openat, folder, path, flags, mode);
    WHOLE("open", folder, path, 0, syscall(SYS_openat, folder, path, flags, mode));
}

#define MODE(flags)                                 \
    mode_t mode = 0;                                \
    if ((flags) & (O_CREAT | O_TMPFILE)) {          \
        va_list rest;                               \
        va_start(rest, flags);                      \
        mode = va_arg(rest, mode_t);                \
        va_end(rest);                               \
    }
int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }

static ssize_t write_any(int fd, const void *data, size_t size) {
    int found = verdict("write", fd, NULL, 0);
    if (found == NO_ROOM || (found == STOP_HALF_WAY && action == FULL && size < 2)) return full_disk();
    if (found == STOP_HALF_WAY) {
        ssize_t half = syscall(SYS_write, fd, data, size / 2);
        if (action == KILL) die();
        return half;
    }
    return syscall(SYS_write, fd, data, size);
}

ssize_t write(int fd, const void *data, size_t size) { return write_any(fd, data, size); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (action == OFF || count < 1) return syscall(SYS_writev, fd, parts, count);
    return write_any(fd, parts[0].iov_base, parts[0].iov_len);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    WHOLE("sendfile", out, NULL, 0, syscall(SYS_sendfile, out, in, offset, count));
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, offset, count); }

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned int flags) {
    WHOLE("copy", out, NULL, 0, syscall(SYS_copy_file_range, in, from, out, to, size, flags));
}

int ftruncate(int fd, off_t size) { WHOLE("truncate", fd, NULL, 0, syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int fsync(int fd) { WHOLE("fsync", fd, NULL, 0, syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { WHOLE("fsync", fd, NULL, 0, syscall(SYS_fdatasync, fd)); }
int mkdirat(int at, const char *path, mode_t mode) { WHOLE("mkdir", at, path, 0, syscall(SYS_mkdirat, at, path, mode)); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int renameat(int from, const char *old, int to, const char *path) {
    WHOLE("rename", to, path, 0, syscall(SYS_renameat2, from, old, to, path, 0));
}
int rename(const char *old, const char *path) { return renameat(AT_FDCWD, old, AT_FDCWD, path); }

int unlinkat(int at, const char *path, int flags) {
    WHOLE("remove", at, path, 1, syscall(SYS_unlinkat, at, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
