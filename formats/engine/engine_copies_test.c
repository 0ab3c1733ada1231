/* SPDX-License-Identifier: Apache-2.0 */
/* An engine file that changes during or after open: all sections but the weights are copied before they are checked,
 * and only the copies are used. This program's own pread serves every read of the file and can change the file after
 * any of them. */
#include <fcntl.h>
#include <sys/syscall.h>

#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

static enum { LEAVE, CUT, OVERWRITE } change;
static long reads, change_behind;

static void change_file(void)
{
    static const char letters[4096] = {[0 ... 4095] = 'A'};
    int descriptor = open(path, O_WRONLY);
    off_t size = lseek(descriptor, 0, SEEK_END);
    assert_true(descriptor >= 0 && size > 0);
    if (change == CUT) assert_int_equal(ftruncate(descriptor, 0), 0);
    for (off_t at = 0; change == OVERWRITE && at < size; at += (off_t)sizeof letters) {
        size_t bytes = size - at < (off_t)sizeof letters ? (size_t)(size - at) : sizeof letters;
        assert_int_equal(pwrite(descriptor, letters, bytes, at), bytes);
    }
    close(descriptor);
}

ssize_t pread(int descriptor, void *buffer, size_t bytes, off_t offset)
{
    ssize_t count = (ssize_t)syscall(SYS_pread64, descriptor, buffer, bytes, offset);
    if (++reads == change_behind && change != LEAVE) change_file();
    return count;
}

static void write_sample(bool compress)
{
    change = LEAVE;
    if (!test_engine_write(&sample, path, compress, &status)) fail_msg("%s", status.message);
}

static void check_copies(void)
{
    expect_content();
    volatile uint64_t first_hash = engine.weight_hashes[0];
    assert_int_not_equal(first_hash, 0);
}

/* If a page of the mapping were still in use, the process would end with SIGBUS. */
TEST(all_but_the_weights_stays)
{
    for (int compress = 0; compress < 2; compress++)
        for (change = CUT; change <= OVERWRITE; change++) {
            enum { BEHIND_NONE = -1 };
            const int wanted = (int)change;
            change_behind = BEHIND_NONE;
            write_sample(compress);
            if (!engine_open(&engine, path, &status)) fail_msg("%s", status.message);
            change = wanted;
            change_file();
            check_copies();
            engine_close(&engine);
        }
}

/* Opens the engine and checks the weights, with the file changed after the n-th read. */
static bool open_changed(int how, long behind, bool *opened)
{
    reads = 0;
    change = how;
    change_behind = behind;
    *opened = engine_open(&engine, path, &status);
    bool right = *opened && engine_verify_weights(&engine, 0, engine.weight_chunks, &status);
    change = LEAVE;
    if (!right) {
        assert_int_equal(status.code, STATUS_CORRUPT);
        assert_true(strstr(status.message, "the file ends before byte") || strstr(status.message, "expected") ||
                    (*opened && strstr(status.message, "section 'weights': the file was changed in place")));
    }
    if (*opened) {
        check_copies();
        engine_close(&engine);
    }
    return right;
}

TEST(a_change_behind_any_read_is_an_error)
{
    for (int compress = 0; compress < 2; compress++)
        for (int how = CUT; how <= OVERWRITE; how++) {
            bool opened;
            write_sample(compress);
            assert_true(open_changed(LEAVE, 0, &opened));
            const long all = reads;
            /* At least the header and ten sections or paddings. */
            assert_true(all > 10);
            for (long behind = 1; behind <= all; behind++) {
                write_sample(compress);
                if (open_changed(how, behind, &opened)) fail_msg("changed after read %ld of %ld", behind, all);
                assert_int_equal(opened, behind == all); /* all but the weights was read, and these are wrong */
            }
        }
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
