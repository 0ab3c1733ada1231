/* SPDX-License-Identifier: Apache-2.0 */
/* Progress on stderr: a bar with an estimate of the time left on a terminal, a line now and then when piped. A thread of its
 * own keeps it alive while a stage works on something long: the bar is drawn anew twice a second, and a log gets a line at
 * least every ten seconds.
 *
 * One thread at a time calls these functions, except progress_update, which any may call. */
#ifndef TUNER_PROGRESS_H
#define TUNER_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PROGRESS_DETAIL_BYTES = 96 };

struct progress {
    FILE *out;      /* NULL: silent */
    FILE *warnings; /* NULL: silent; progress_open leaves it so */
    bool terminal;
    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t ending;
    pthread_t ticker;
    bool has_ticker, ends;
    const char *stage; /* NULL: none */
    double started_us, updated_us, printed_us;
    double log_silence_us; /* the longest that a log says nothing */
    uint64_t done, total;  /* as of the last update; total 0: none yet */
    int printed_percent;
    char detail[PROGRESS_DETAIL_BYTES];
};

/* Silent where `out` is NULL. progress_close ends it. */
void progress_open(struct progress *progress, FILE *out);
/* Starts a stage; ends the one before. `stage` is borrowed until the stage ends. */
void progress_stage(struct progress *progress, const char *stage);
/* `done` of `total` units of work, whose time is taken to be proportional to them: where items differ in their time, the units
 * are estimates of it. `detail` may be NULL. */
void progress_update(struct progress *progress, uint64_t done, uint64_t total, const char *detail);
/* Ends the stage with a line that says how long it took. */
void progress_done(struct progress *progress);
/* Ends a stage that failed, if there is one: takes the bar away and says nothing. */
void progress_close(struct progress *progress);
/* Takes the bar away and keeps it away, so that other lines can be printed, until progress_release. */
void progress_hold(struct progress *progress);
void progress_release(struct progress *progress);

/* A line on `warnings`: what does not stop the build. */
void progress_warn(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Seconds left of a stage that began `elapsed_us` ago and was `done` of `total` units far `since_us` ago. At least 1 before its
 * end. Requires: 0 < done <= total. */
double progress_seconds_left(double elapsed_us, double since_us, uint64_t done, uint64_t total);

#endif
