#include "builder/progress.h"

#include <string.h>
#include <unistd.h>

#include "tuner/clock.h"

void progress_open(struct progress *progress, FILE *out)
{
    memset(progress, 0, sizeof *progress);
    progress->out = out;
    progress->terminal = out && isatty(fileno(out));
}

void progress_stage(struct progress *progress, const char *stage)
{
    progress_done(progress);
    progress->stage = stage;
    progress->started_us = progress->printed_us = clock_us();
    progress->printed_percent = 0;
}

static void print_bar(const struct progress *progress, int percent, double left_seconds, const char *detail)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    int filled = percent * WIDTH / 100;
    memset(bar, '=', (size_t)filled);
    memset(bar + filled, ' ', (size_t)(WIDTH - filled));
    bar[WIDTH] = '\0';
    fprintf(progress->out, "\r%-8s [%s] %3d%%  %4.0f s left  %.60s\033[K", progress->stage, bar, percent, left_seconds,
            detail ? detail : "");
    fflush(progress->out);
}

void progress_update(struct progress *progress, uint64_t done, uint64_t total, const char *detail)
{
    if (!progress->out || !progress->stage || total == 0 || done == 0) return;
    double now = clock_us(), elapsed = now - progress->started_us;
    int percent = (int)((double)done * 100.0 / (double)total);
    double left = elapsed * 1e-6 * ((double)total / (double)done - 1.0);
    if (progress->terminal) {
        if (now - progress->printed_us < 1e5) return;
        print_bar(progress, percent, left, detail);
    } else {
        /* In a log: a line every 20 per cent, at most one a second. */
        if (percent < progress->printed_percent + 20 || now - progress->printed_us < 1e6) return;
        fprintf(progress->out, "%s: %d%%, about %.0f s left\n", progress->stage, percent, left);
        progress->printed_percent = percent;
    }
    progress->printed_us = now;
}

void progress_hide(struct progress *progress)
{
    if (!progress->out || !progress->stage || !progress->terminal) return;
    fputs("\r\033[K", progress->out);
    fflush(progress->out);
}

void progress_abandon(struct progress *progress)
{
    progress_hide(progress);
    progress->stage = NULL;
}

void progress_done(struct progress *progress)
{
    if (progress->out && progress->stage)
        fprintf(progress->out, "%s%s: done in %.1f s\n", progress->terminal ? "\r\033[K" : "", progress->stage,
                (clock_us() - progress->started_us) * 1e-6);
    progress->stage = NULL;
}
