/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the part of Jinja that the chat templates of Hugging Face checkpoints are written in, with the meaning that
 * jinja2 gives it in transformers (trim_blocks, lstrip_blocks, an immutable sandbox, break and continue, the generation block).
 *
 * Nothing that a template does reaches files, the network or the process; the clock only through strftime_now. Steps, memory, depth
 * and the size of the result are bounded. A template is not trusted, and neither are its variables. */
#ifndef FORMATS_TEMPLATE_TEMPLATE_H
#define FORMATS_TEMPLATE_TEMPLATE_H

#include <jansson.h>
#include <stdint.h>
#include <time.h>

#include "formats/base/status.h"

enum {
    TEMPLATE_MOST_BYTES = 4 << 20,    /* of a template's text */
    TEMPLATE_MOST_OUTPUT = 64 << 20,  /* bytes of a result */
    TEMPLATE_MOST_MEMORY = 256 << 20, /* bytes of values while it runs */
    TEMPLATE_MOST_STEPS = 50 << 20,   /* nodes that are evaluated, and 64 bytes that are copied, are a step each */
    TEMPLATE_MOST_DEPTH = 600,        /* of nested expressions, blocks and calls */
};

struct template; /* immutable: threads may share it */

/* Parses `size` bytes of UTF-8. Fails with a message that has the line and the fault. Owned (template_close). */
struct template *template_open(const char *text, size_t size, struct status *status);
void template_close(struct template *template);
/* The text that was parsed, NUL-terminated, with line feeds as jinja2 reads them. Borrowed. */
const char *template_text(const struct template *template);

/* What a template makes of variables. */
struct template_result {
    char *text; /* owned, NUL-terminated */
    size_t size;
    uint8_t *foreign; /* owned [size]: 1 where a byte comes from `variables`, 0 where it is the template's own */
};

/* `variables`: a JSON object; the roles of its `messages` count as the template's own where they are words. `own`: another
 * object, all of whose strings do (bos_token and the like), or NULL; it comes first where both have a name. `now`: of
 * strftime_now, in local time; NULL: the clock's. Fails with STATUS_BAD_INPUT and what jinja2 would raise, STATUS_TOO_LONG at a
 * bound, STATUS_MACHINE without memory. */
bool template_render(const struct template *template, const json_t *variables, const json_t *own, const struct tm *now,
                     struct template_result *result, struct status *status);
void template_result_free(struct template_result *result);

#endif
