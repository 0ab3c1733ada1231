/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a build: estimates of the time left, and no long silence. */
#include "tuner/progress.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"

TEST(time_left_goes_by_units_of_work)
{
    /* A quarter of the work took 10 s. */
    assert_true(progress_seconds_left(10e6, 0, 25, 100) == 30);
    /* No update for 4 s: that time has passed, too. */
    assert_true(progress_seconds_left(14e6, 4e6, 25, 100) == 26);
    /* An estimate that was too short never claims that the stage has ended. */
    assert_true(progress_seconds_left(100e6, 90e6, 99, 100) == 1);
    assert_true(progress_seconds_left(10e6, 0, 100, 100) == 0);
}

struct log {
    struct progress progress;
    FILE *file;
    char text[1024];
};

static void open_log(struct log *log)
{
    memset(log, 0, sizeof *log);
    log->file = tmpfile();
    assert_non_null(log->file);
    assert_int_equal(setvbuf(log->file, NULL, _IONBF, 0), 0); /* as stderr */
    progress_open(&log->progress, log->file);
}

static const char *close_log(struct log *log)
{
    progress_close(&log->progress);
    rewind(log->file);
    size_t size = fread(log->text, 1, sizeof log->text - 1, log->file);
    log->text[size] = '\0';
    fclose(log->file);
    return log->text;
}

/* The thread redraws twice a second, and later on a machine that is busy. */
static void wait_for(const struct log *log, const char *words)
{
    char text[1024];
    for (int i = 0; i < 600; i++) {
        const ssize_t size = pread(fileno(log->file), text, sizeof text - 1, 0);
        assert_true(size >= 0);
        text[size] = '\0';
        if (strstr(text, words)) return;
        usleep(100000);
    }
    fail_msg("'%s' was not said within a minute", words);
}

TEST(a_long_item_is_not_silent)
{
    struct log log;
    open_log(&log);
    progress_hold(&log.progress);
    log.progress.log_silence_us = 1e3;
    progress_release(&log.progress);
    progress_stage(&log.progress, "golden");
    wait_for(&log, " s so far\n");
    progress_update(&log.progress, 1, 4, NULL);
    wait_for(&log, "golden: 25%, about ");
    progress_done(&log.progress);
    const char *text = close_log(&log);
    assert_ptr_equal(strstr(text, "golden: "), text);
    assert_non_null(strstr(text, " s so far\n"));
    assert_non_null(strstr(text, "golden: 25%, about "));
    assert_non_null(strstr(text, "golden: done in "));
}

TEST(nothing_is_said_between_hold_and_release)
{
    struct log log;
    open_log(&log);
    progress_stage(&log.progress, "pack");
    progress_hold(&log.progress);
    log.progress.log_silence_us = 0;
    sleep(2);
    fputs("warning\n", log.file);
    log.progress.log_silence_us = 1e9;
    progress_release(&log.progress);
    progress_done(&log.progress);
    assert_ptr_equal(strstr(close_log(&log), "warning\npack: done in "), log.text);
}

TEST(without_an_output_all_is_silent)
{
    struct progress progress;
    progress_open(&progress, NULL);
    progress_stage(&progress, "pack");
    progress_update(&progress, 1, 2, "detail");
    progress_hold(&progress);
    progress_release(&progress);
    progress_done(&progress);
    progress_close(&progress);
}

TEST(a_stage_that_failed_has_no_last_line)
{
    struct log log;
    open_log(&log);
    progress_stage(&log.progress, "pack");
    progress_done(&log.progress);
    progress_stage(&log.progress, "tune");
    const char *text = close_log(&log);
    assert_non_null(strstr(text, "pack: done in "));
    assert_null(strstr(text, "tune"));
}

int main(void) { return test_run(); }
