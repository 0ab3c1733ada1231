/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/progress.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/status.h"
#include "tuner/clock.h"

enum { TICK_NS = 500 * 1000 * 1000, SECOND_NS = 1000 * 1000 * 1000, LOG_PERCENT = 20 };

double progress_seconds_left(double elapsed_us, double since_us, uint64_t done, uint64_t total)
{
    double left_us = (elapsed_us - since_us) * ((double)total / (double)done - 1.0) - since_us;
    return done == total ? 0 : left_us > 1e6 ? left_us * 1e-6 : 1;
}

/* ---- printing, under the lock ---- */

static int percent_of(const struct progress *progress)
{
    return progress->total ? (int)((double)progress->done * 100.0 / (double)progress->total) : 0;
}

static void print_bar(const struct progress *progress, double now)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1], left[32] = "";
    const int percent = percent_of(progress), filled = percent * WIDTH / 100;
    double elapsed = now - progress->started_us;
    memset(bar, '=', (size_t)filled);
    memset(bar + filled, ' ', (size_t)(WIDTH - filled));
    bar[WIDTH] = '\0';
    if (progress->done)
        snprintf(left, sizeof left, "%4.0f s left",
                 progress_seconds_left(elapsed, now - progress->updated_us, progress->done, progress->total));
    else
        snprintf(left, sizeof left, "%4.0f s so far", elapsed * 1e-6);
    fprintf(progress->out, "\r%-9s [%s] %3d%%  %s  %.60s\033[K", progress->stage, bar, percent, left, progress->detail);
    fflush(progress->out);
}

static void print_line(struct progress *progress, double now)
{
    double elapsed = now - progress->started_us;
    if (progress->done)
        fprintf(progress->out, "%s: %d%%, about %.0f s left\n", progress->stage, percent_of(progress),
                progress_seconds_left(elapsed, now - progress->updated_us, progress->done, progress->total));
    else
        fprintf(progress->out, "%s: %.0f s so far\n", progress->stage, elapsed * 1e-6);
    progress->printed_percent = percent_of(progress);
}

/* `ticked`: called by the clock, without a new update. A log gets a line every 20 per cent, at most one per second. */
static void show(struct progress *progress, bool ticked)
{
    double now = clock_us(), silence = now - progress->printed_us;
    if (progress->terminal) {
        if (!ticked && silence < 1e5) return;
        print_bar(progress, now);
    } else {
        bool news = percent_of(progress) >= progress->printed_percent + LOG_PERCENT && silence >= 1e6;
        if (!news && silence < progress->log_silence_us) return;
        print_line(progress, now);
    }
    progress->printed_us = now;
}

static void hide(const struct progress *progress)
{
    if (!progress->stage || !progress->terminal) return;
    fputs("\r\033[K", progress->out);
    fflush(progress->out);
}

static void finish(struct progress *progress)
{
    if (progress->stage)
        fprintf(progress->out, "%s%s: done in %.1f s\n", progress->terminal ? "\r\033[K" : "", progress->stage,
                (clock_us() - progress->started_us) * 1e-6);
    progress->stage = NULL;
}

/* ---- the ticker ---- */

static void *tick(void *argument)
{
    struct progress *progress = argument;
    pthread_mutex_lock(&progress->lock);
    while (!progress->ends) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / SECOND_NS;
        until.tv_nsec %= SECOND_NS;
        pthread_cond_timedwait(&progress->ending, &progress->lock, &until);
        if (!progress->ends && progress->stage) show(progress, true);
    }
    pthread_mutex_unlock(&progress->lock);
    return NULL;
}

/* ---- public ---- */

void progress_open(struct progress *progress, FILE *out)
{
    memset(progress, 0, sizeof *progress);
    progress->out = out;
    progress->log_silence_us = 10e6;
    if (!out) return;
    progress->terminal = isatty(fileno(out));
    pthread_mutex_init(&progress->lock, NULL);
    pthread_cond_init(&progress->ending, NULL);
    /* Without the thread, progress shows at updates only. */
    progress->has_ticker = pthread_create(&progress->ticker, NULL, tick, progress) == 0;
}

void progress_stage(struct progress *progress, const char *stage)
{
    if (!progress->out) return;
    pthread_mutex_lock(&progress->lock);
    finish(progress);
    progress->stage = stage;
    progress->started_us = progress->updated_us = progress->printed_us = clock_us();
    progress->done = progress->total = 0;
    progress->printed_percent = 0;
    progress->detail[0] = '\0';
    pthread_mutex_unlock(&progress->lock);
}

void progress_update(struct progress *progress, uint64_t done, uint64_t total, const char *detail)
{
    if (!progress->out || total == 0 || done == 0) return;
    pthread_mutex_lock(&progress->lock);
    if (progress->stage) {
        progress->done = done < total ? done : total;
        progress->total = total;
        progress->updated_us = clock_us();
        snprintf(progress->detail, sizeof progress->detail, "%s", detail ? detail : "");
        show(progress, false);
    }
    pthread_mutex_unlock(&progress->lock);
}

void progress_done(struct progress *progress)
{
    if (!progress->out) return;
    pthread_mutex_lock(&progress->lock);
    finish(progress);
    pthread_mutex_unlock(&progress->lock);
}

void progress_close(struct progress *progress)
{
    if (!progress->out) return;
    pthread_mutex_lock(&progress->lock);
    hide(progress);
    progress->stage = NULL;
    progress->ends = true;
    pthread_cond_signal(&progress->ending);
    pthread_mutex_unlock(&progress->lock);
    if (progress->has_ticker) pthread_join(progress->ticker, NULL);
    pthread_cond_destroy(&progress->ending);
    pthread_mutex_destroy(&progress->lock);
    progress->out = NULL;
}

void progress_hold(struct progress *progress)
{
    if (!progress->out) return;
    pthread_mutex_lock(&progress->lock);
    hide(progress);
}

void progress_release(struct progress *progress)
{
    if (progress->out) pthread_mutex_unlock(&progress->lock);
}

void progress_warn(struct progress *progress, const char *format, ...)
{
    if (!progress->warnings) return;
    char message[STATUS_MESSAGE_BYTES];
    struct status status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    status_fail(&status, STATUS_OK, "%s", message); /* makes the text safe for a terminal */
    progress_hold(progress);
    fprintf(progress->warnings, "warning: %s\n", status.message);
    progress_release(progress);
}
