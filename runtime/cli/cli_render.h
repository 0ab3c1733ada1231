/* SPDX-License-Identifier: Apache-2.0 */
/* engrun --render: lines of JSON variables in, what a chat template makes of them out. */
#ifndef RUNTIME_CLI_CLI_RENDER_H
#define RUNTIME_CLI_CLI_RENDER_H

struct render_options {
    const char *path; /* an engine or a template */
    const char *now;  /* the clock of strftime_now, YYYY-MM-DDThh:mm:ss; NULL: the machine's */
};

/* Returns the exit code; messages are printed. A line that cannot be rendered is no failure: its result says why. */
int render_lines(const struct render_options *options);

#endif
