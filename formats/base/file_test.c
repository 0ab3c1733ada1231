/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "formats/base/test_folder.h"

static struct status status;

/* Exit codes of children, which run tests that would affect this process. */
enum { CHILD_GOOD = 0, CHILD_BAD = 1, CHILD_CANNOT = 77 };

/* Runs `body` in a child; returns its wait status. */
static int in_child(int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(body());
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    return result;
}

static void expect_child_good(int result)
{
    if (WIFEXITED(result) && WEXITSTATUS(result) == CHILD_CANNOT) skip(); /* this machine forbids the set-up */
    if (!WIFEXITED(result) || WEXITSTATUS(result) != CHILD_GOOD) fail_msg("child ended with status %#x", result);
}

static void expect_content(const char *path, const char *expected, size_t size)
{
    char *text;
    size_t found;
    test_expect_success(file_read(path, 1 << 20, &text, &found, &status), &status);
    assert_int_equal(found, size);
    assert_memory_equal(text, expected, size);
    free(text);
}

TEST(test_map)
{
    struct file_map map;
    test_write_text(in_folder("full"), "some bytes");
    test_write_text(in_folder("empty"), "");
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);

    test_expect_success(file_map_open(&map, in_folder("full"), &status), &status);
    assert_int_equal(map.size, 10);
    assert_memory_equal(map.data, "some bytes", 10);
    char copy[11] = {0};
    test_expect_success(file_map_read(&map, 0, copy, 10, &status), &status);
    assert_string_equal(copy, "some bytes");
    test_expect_success(file_map_read(&map, 5, copy, 3, &status), &status);
    assert_string_equal(copy, "byte bytes");
    test_expect_success(file_map_read(&map, 10, copy, 0, &status), &status);
    test_expect_failure(file_map_read(&map, 5, copy, 6, &status), &status, STATUS_USAGE, "5 + 6|10");
    test_expect_failure(file_map_read(&map, UINT64_MAX, copy, 2, &status), &status, STATUS_USAGE, "of a file of 10");
    assert_int_equal(truncate(in_folder("full"), 7), 0);
    test_expect_success(file_map_read(&map, 4, copy, 3, &status), &status);
    test_expect_failure(file_map_read(&map, 4, copy, 4, &status), &status, STATUS_CORRUPT,
                        "ends before byte 7|had 10 bytes");
    file_map_close(&map);
    assert_null(map.data);
    test_expect_success(file_map_open(&map, in_folder("empty"), &status), &status);
    assert_int_equal(map.size, 0);
    assert_null(map.data);
    file_map_close(&map);
    file_map_close(&map);

    test_expect_failure(file_map_open(&map, in_folder("absent"), &status), &status, STATUS_NOT_FOUND,
                        "absent|No such file");
    test_expect_failure(file_map_open(&map, folder, &status), &status, STATUS_BAD_INPUT, "regular file|a directory");
    test_expect_failure(file_map_open(&map, in_folder("fifo"), &status), &status, STATUS_BAD_INPUT,
                        "fifo|regular file|special file");
}

TEST(test_read)
{
    char *text;
    size_t size;
    test_write(in_folder("f"), "a\0b", 3);
    test_expect_success(file_read(in_folder("f"), 3, &text, &size, &status), &status);
    assert_int_equal(size, 3);
    assert_memory_equal(text, "a\0b\0", 4);
    free(text);
    test_expect_failure(file_read(in_folder("f"), 2, &text, &size, &status), &status, STATUS_BAD_INPUT,
                        "too large|at most 2|found 3");
    assert_null(text);
    test_expect_failure(file_read(in_folder("g"), 2, &text, &size, &status), &status, STATUS_NOT_FOUND, "/g'");
    test_expect_failure(file_read("", 2, &text, &size, &status), &status, STATUS_NOT_FOUND, "''");
}

/* Writes, pads, patches and commits; the file must hold "HELLO\0\0\0world". */
static bool write_sample(const char *path)
{
    struct file_output output;
    bool done = file_output_open(&output, path, &status) && file_output_write(&output, "hello", 5, &status) &&
                file_output_pad(&output, 8, &status) && file_output_pad(&output, 8, &status) &&
                file_output_write(&output, "world", 5, &status) && file_output_write(&output, "", 0, &status) &&
                file_output_patch(&output, 0, "HELLO", 5, &status) && output.position == 13 &&
                file_output_commit(&output, &status);
    file_output_abandon(&output);
    return done;
}

/* Only the owner may read it, also where it replaces a file that others may read. */
TEST(test_restricted_output)
{
    struct file_output output;
    struct stat information;
    const char *path = in_folder("out");
    test_write_text(path, "before");
    assert_int_equal(chmod(path, 0644), 0);
    test_expect_success(file_output_open(&output, path, &status), &status);
    test_expect_success(file_output_restrict(&output, &status), &status);
    test_expect_success(file_output_write(&output, "after", 5, &status), &status);
    test_expect_success(file_output_commit(&output, &status), &status);
    expect_content(path, "after", 5);
    assert_int_equal(stat(path, &information), 0);
    assert_int_equal(information.st_mode & 07777, 0600);
}

TEST(test_output)
{
    struct stat information;
    const char *path = in_folder("out");
    mode_t mask = umask(022);
    test_expect_success(write_sample(path), &status);
    umask(mask);
    expect_content(path, "HELLO\0\0\0world", 13);
    assert_int_equal(stat(path, &information), 0);
    assert_int_equal(information.st_mode & 07777, 0644);
    assert_int_equal(test_count_entries(folder), 1);

    /* An existing file is replaced as a whole, by a new inode. */
    test_write_text(path, "an older and much longer content");
    assert_int_equal(stat(path, &information), 0);
    ino_t before = information.st_ino;
    test_expect_success(write_sample(path), &status);
    expect_content(path, "HELLO\0\0\0world", 13);
    assert_int_equal(stat(path, &information), 0);
    assert_int_not_equal(information.st_ino, before);
    assert_int_equal(test_count_entries(folder), 1);
}

TEST(test_pad_large)
{
    struct file_output output;
    test_expect_success(file_output_open(&output, in_folder("out"), &status), &status);
    assert_true(file_output_write(&output, "x", 1, &status));
    test_expect_success(file_output_pad(&output, 1 << 15, &status), &status);
    assert_int_equal(output.position, 1 << 15);
    test_expect_success(file_output_commit(&output, &status), &status);
    struct file_map map;
    test_expect_success(file_map_open(&map, in_folder("out"), &status), &status);
    assert_int_equal(map.size, 1 << 15);
    for (size_t i = 1; i < map.size; i++) assert_int_equal(map.data[i], 0);
    file_map_close(&map);
}

TEST(test_output_misuse)
{
    struct file_output output;
    test_expect_success(file_output_open(&output, in_folder("out"), &status), &status);
    assert_true(file_output_write(&output, "abc", 3, &status));
    test_expect_failure(file_output_patch(&output, 2, "xy", 2, &status), &status, STATUS_INTERNAL,
                        "patch|2 bytes at 2");
    output.position = UINT64_MAX - 1;
    test_expect_failure(file_output_write(&output, "abc", 3, &status), &status, STATUS_MACHINE, "largest file offset");
    test_expect_failure(file_output_pad(&output, 4096, &status), &status, STATUS_MACHINE, "largest file offset");
    test_expect_failure(file_output_reserve(&output, 4096, &status), &status, STATUS_MACHINE, "largest file offset");
    file_output_abandon(&output);
    test_expect_failure(file_output_write(&output, "abc", 3, &status), &status, STATUS_INTERNAL, "closed");
    test_expect_failure(file_output_commit(&output, &status), &status, STATUS_INTERNAL, "closed");
    assert_int_equal(test_count_entries(folder), 0);
}

TEST(test_abandon)
{
    struct file_output output;
    const char *path = in_folder("out");
    test_expect_success(file_output_open(&output, path, &status), &status);
    assert_true(file_output_write(&output, "new", 3, &status));
    file_output_abandon(&output);
    file_output_abandon(&output);
    assert_int_equal(test_count_entries(folder), 0);

    test_write_text(path, "old");
    test_expect_success(file_output_open(&output, path, &status), &status);
    assert_true(file_output_write(&output, "new content", 11, &status));
    file_output_abandon(&output);
    expect_content(path, "old", 3);
    assert_int_equal(test_count_entries(folder), 1);
}

TEST(test_refused_targets)
{
    struct file_output output;
    assert_int_equal(mkdir(in_folder("sub"), 0755), 0);
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_int_equal(symlink("nowhere", in_folder("dangling")), 0);
    assert_int_equal(symlink("sub", in_folder("to-sub")), 0);
    test_write_text(in_folder("plain"), "x");
    static const struct {
        const char *name;
        enum status_code code;
        const char *words;
    } cases[] = {
        {"sub", STATUS_BAD_INPUT, "sub'|expected a new or regular file|a directory"},
        {"to-sub", STATUS_BAD_INPUT, "to-sub'|a directory"},
        {"sub/", STATUS_BAD_INPUT, "sub/'|a folder name"},
        {"fifo", STATUS_BAD_INPUT, "fifo'|a special file"},
        {"dangling", STATUS_NOT_FOUND, "symbolic link|dangling'"},
        {"absent/out", STATUS_NOT_FOUND, "absent/out'|No such file"},
        {"plain/out", STATUS_BAD_INPUT, "plain/out'|Not a directory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_expect_failure(file_output_open(&output, in_folder(cases[i].name), &status), &status, cases[i].code,
                            cases[i].words);
    test_expect_failure(file_output_open(&output, "", &status), &status, STATUS_BAD_INPUT, "''");
    test_expect_failure(file_output_open(&output, "/dev/null", &status), &status, STATUS_BAD_INPUT, "special file");
    assert_int_equal(test_count_entries(folder), 5);

    /* The target became a folder while the output was written: nothing remains. */
    const char *late = in_folder("late");
    test_expect_success(file_output_open(&output, late, &status), &status);
    assert_int_equal(mkdir(late, 0755), 0);
    test_expect_failure(file_output_commit(&output, &status), &status, STATUS_MACHINE, "late'|Is a directory");
    assert_int_equal(test_count_entries(folder), 6);
}

TEST(test_symbolic_link)
{
    struct stat information;
    assert_int_equal(mkdir(in_folder("disk"), 0755), 0);
    test_write_text(in_folder("disk/real"), "old");
    assert_int_equal(symlink("disk/real", in_folder("link")), 0);
    test_expect_success(write_sample(in_folder("link")), &status);
    assert_int_equal(lstat(in_folder("link"), &information), 0);
    assert_true(S_ISLNK(information.st_mode));
    expect_content(in_folder("disk/real"), "HELLO\0\0\0world", 13);
}

TEST(test_long_name)
{
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    test_write_text(in_folder(name), "old");
    test_expect_success(write_sample(in_folder(name)), &status);
    expect_content(in_folder(name), "HELLO\0\0\0world", 13);
    assert_int_equal(test_count_entries(folder), 1);
}

static int die_while_writing(void)
{
    struct file_output output;
    if (!file_output_open(&output, in_folder("out"), &status)) return CHILD_BAD;
    if (output.temporary) return CHILD_CANNOT; /* this file system has no unnamed files */
    if (!file_output_write(&output, "half", 4, &status)) return CHILD_BAD;
    raise(SIGKILL);
    return CHILD_BAD;
}

TEST(test_killed)
{
    test_write_text(in_folder("out"), "old");
    int result = in_child(die_while_writing);
    if (!WIFSIGNALED(result) || WTERMSIG(result) != SIGKILL) expect_child_good(result);
    expect_content(in_folder("out"), "old", 3);
    assert_int_equal(test_count_entries(folder), 1);
}

/* Makes open(O_TMPFILE) fail with EOPNOTSUPP, as on a file system without it. */
static bool forbid_unnamed_files(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, O_TMPFILE),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, O_TMPFILE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int write_with_named_temporary(void)
{
    struct file_output output;
    if (!forbid_unnamed_files()) return CHILD_CANNOT;
    if (!file_output_open(&output, in_folder("out"), &status) || !output.temporary) return CHILD_BAD;
    if (!file_output_write(&output, "half", 4, &status) || test_count_entries(folder) != 1) return CHILD_BAD;
    file_output_abandon(&output);
    if (test_count_entries(folder) != 0) return CHILD_BAD;
    if (!write_sample(in_folder("out"))) return CHILD_BAD;
    return test_count_entries(folder) == 1 ? CHILD_GOOD : CHILD_BAD;
}

TEST(test_named_temporary)
{
    expect_child_good(in_child(write_with_named_temporary));
    expect_content(in_folder("out"), "HELLO\0\0\0world", 13);
}

static bool message_has(enum status_code code, const char *word)
{
    if (status.code == code && strstr(status.message, word)) return true;
    fprintf(stderr, "expected code %d and '%s', found %d: %s\n", (int)code, word, (int)status.code, status.message);
    return false;
}

static int write_as_nobody(void)
{
    struct file_output output;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return CHILD_CANNOT;
    if (file_output_open(&output, in_folder("out"), &status)) return CHILD_BAD;
    return message_has(STATUS_MACHINE, "Permission denied") ? CHILD_GOOD : CHILD_BAD;
}

TEST(test_forbidden_folder)
{
    assert_int_equal(chmod(folder, 0555), 0);
    expect_child_good(in_child(write_as_nobody));
    assert_int_equal(test_count_entries(folder), 0);
}

/* A small file system, visible only to this process. */
static bool mount_tiny(unsigned long flags)
{
    bool own = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    return own && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tiny", folder, "tmpfs", flags, "size=64k,mode=0755") == 0;
}

static int write_to_full_disk(void)
{
    struct file_output output;
    static const char block[4096];
    if (!mount_tiny(0)) return CHILD_CANNOT;
    if (!file_output_open(&output, in_folder("out"), &status)) return CHILD_BAD;
    int blocks = 0;
    while (blocks < 100 && file_output_write(&output, block, sizeof block, &status)) blocks++;
    if (blocks == 100 || !message_has(STATUS_MACHINE, "No space left")) return CHILD_BAD;
    if (!message_has(STATUS_MACHINE, "/out'")) return CHILD_BAD;
    file_output_abandon(&output);
    if (test_count_entries(folder) != 0) return CHILD_BAD;
    status_clear(&status); /* the space is free again */
    return write_sample(in_folder("out")) ? CHILD_GOOD : CHILD_BAD;
}

static int write_to_read_only_disk(void)
{
    struct file_output output;
    if (!mount_tiny(MS_RDONLY)) return CHILD_CANNOT;
    if (file_output_open(&output, in_folder("out"), &status)) return CHILD_BAD;
    return message_has(STATUS_MACHINE, "Read-only file system") ? CHILD_GOOD : CHILD_BAD;
}

static int write_beyond_size_limit(void)
{
    struct file_output output;
    static const char block[4096];
    struct rlimit limit = {.rlim_cur = 6000, .rlim_max = 6000};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return CHILD_CANNOT;
    if (!file_output_open(&output, in_folder("out"), &status)) return CHILD_BAD;
    if (!file_output_write(&output, block, sizeof block, &status)) return CHILD_BAD;
    if (file_output_write(&output, block, sizeof block, &status)) return CHILD_BAD; /* a short write, then the error */
    file_output_abandon(&output);
    if (test_count_entries(folder) != 0) return CHILD_BAD;
    return message_has(STATUS_MACHINE, "File too large") ? CHILD_GOOD : CHILD_BAD;
}

TEST(test_full_disk) { expect_child_good(in_child(write_to_full_disk)); }

TEST(test_read_only_disk) { expect_child_good(in_child(write_to_read_only_disk)); }

TEST(test_size_limit) { expect_child_good(in_child(write_beyond_size_limit)); }

TEST(test_map_release)
{
    enum { BYTES = 100000 };
    struct file_map map;
    struct file_output output;
    const char *path = in_folder("released");
    uint8_t *bytes = malloc(BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)(i * 31 >> 3);
    assert_true(file_output_open(&output, path, &status) && file_output_write(&output, bytes, BYTES, &status) &&
                file_output_commit(&output, &status));
    assert_true(file_map_open(&map, path, &status));
    /* Pieces of every alignment: released pages are read again from the file, and their neighbours do not change. */
    const size_t offsets[] = {0, 1, 4095, 4096, 5000, 99999};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        assert_memory_equal(map.data, bytes, BYTES);
        file_map_release(map.data + offsets[i], BYTES - offsets[i]);
        file_map_release(map.data + offsets[i], 0);
        assert_memory_equal(map.data, bytes, BYTES);
    }
    file_map_close(&map);
    free(bytes);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
