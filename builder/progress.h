/* Progress on stderr: a bar with an estimate of the time left on a terminal, a line now and then when piped. */
#ifndef BUILDER_PROGRESS_H
#define BUILDER_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
    FILE *out; /* NULL: silent */
    bool terminal;
    const char *stage;
    double started_us, printed_us;
    int printed_percent;
};

void progress_open(struct progress *progress, FILE *out);
/* Starts a stage; ends the one before. */
void progress_stage(struct progress *progress, const char *stage);
/* `detail` may be NULL. */
void progress_update(struct progress *progress, uint64_t done, uint64_t total, const char *detail);
/* Ends the stage with a line that says how long it took. */
void progress_done(struct progress *progress);
/* Ends a stage that failed: takes the bar away and says nothing. */
void progress_abandon(struct progress *progress);
/* Takes the bar away, so that another line can be printed; the next update brings it back. */
void progress_hide(struct progress *progress);

#endif
