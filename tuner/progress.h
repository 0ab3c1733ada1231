/* SPDX-License-Identifier: Apache-2.0 */
/* Progress on stderr: on a terminal a bar with an estimate of the time left, otherwise occasional lines. A thread
 * redraws the bar twice a second and writes a log line at least every ten seconds, so that a long stage is never
 * silent.
 *
 * One thread at a time calls these functions, except progress_update, which any thread may call. */
#ifndef TUNER_PROGRESS_H
#define TUNER_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PROGRESS_DETAIL_BYTES = 96 };

struct progress {
    FILE *out;      /* NULL: silent */
    FILE *warnings; /* NULL: silent, as progress_open sets it */
    bool terminal;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t ending;
    pthread_t ticker;
    bool has_ticker, ends;
    const char *stage; /* NULL: none */
    double started_us, updated_us, printed_us;
    double log_silence_us; /* longest silence of a log */
    uint64_t done, total;  /* at the last update; total 0: there was none */
    int printed_percent;
    char detail[PROGRESS_DETAIL_BYTES];
};

/* Silent if `out` is NULL. progress_close ends it. */
void progress_open(struct progress *progress, FILE *out);
/* Starts a stage and ends the previous one. `stage` is borrowed until the stage ends. */
void progress_stage(struct progress *progress, const char *stage);
/* `done` of `total` units of work; time is assumed proportional to units, so items of unequal time are counted by
 * estimates of it. `detail` may be NULL. */
void progress_update(struct progress *progress, uint64_t done, uint64_t total, const char *detail);
/* Ends the stage and prints how long it took. */
void progress_done(struct progress *progress);
/* Ends a stage that failed, if there is one: clears the bar and prints nothing. */
void progress_close(struct progress *progress);
/* Clears the bar until progress_release, so that other lines can be printed. */
void progress_hold(struct progress *progress);
void progress_release(struct progress *progress);

/* Prints a warning: a condition that does not stop the build. */
void progress_warn(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Estimated seconds left of a stage that began `elapsed_us` ago and had done `done` of `total` units `since_us` ago. At
 * least 1 before the end. Requires: 0 < done <= total. */
double progress_seconds_left(double elapsed_us, double since_us, uint64_t done, uint64_t total);

#endif
