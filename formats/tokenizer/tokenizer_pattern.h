/* SPDX-License-Identifier: Apache-2.0 */
/* Split and Replace patterns: regular expressions of Hugging Face's engine (Oniguruma, Ruby syntax), translated to
 * PCRE2, and plain strings. Patterns come from untrusted files: syntax whose meaning differs between the engines is
 * refused by name, and matching has a budget proportional to the text. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_PATTERN_H
#define FORMATS_TOKENIZER_TOKENIZER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "formats/tokenizer/tokenizer.h"

enum { PATTERN_BYTES_LIMIT = 1 << 12 }; /* published ones have about 500 */

/* Numbers of the callouts in a translated pattern. Every way of backtracking passes one of them, so that the work
 * between two is limited by the pattern's length and by the distance of a scan, which the callout after it reports. */
enum pattern_callout {
    PATTERN_CALLOUT_AFTER = 0, /* after a group, and after a repeat                                         */
    /* 1 to 251: before a repeat of one character or set: 1 + its least count / PATTERN_CALLOUT_UNIT */
    PATTERN_CALLOUT_UNIT = 4,
    PATTERN_CALLOUT_GROUP = 255, /* at the start of a group, in each turn of a repeated one */
};

/* Writes the PCRE2 pattern equivalent to `regex` (valid UTF-8) in Oniguruma; `out` is overwritten. */
bool tokenizer_pattern_translate(const char *regex, size_t size, struct text_buffer *out, struct status *status);

/* A compiled pattern. Read-only: any number of matchers may use it at the same time. */
struct tokenizer_pattern;
/* `just_in_time`: use PCRE2's JIT compiler if the machine allows it. `regex` is borrowed. */
struct tokenizer_pattern *tokenizer_pattern_regex(const char *regex, size_t size, bool just_in_time,
                                                  struct status *status);
/* `text` is borrowed. Requires: it is not empty. */
struct tokenizer_pattern *tokenizer_pattern_string(const char *text, size_t size, struct status *status);
void tokenizer_pattern_free(struct tokenizer_pattern *pattern);

/* Matching state of one thread. Zero-initialised is closed; the members are private. */
struct tokenizer_matcher {
    void *match_data, *match_context, *stack; /* PCRE2 objects */
    uint64_t budget;                          /* units of work left; matching fails at 0 */
    uint64_t weight;                          /* units that one step of the current pattern costs */
    size_t scan_start;                        /* start of the last repeat of one character or set */
};
/* Opens a matcher; the budget grows with text_size, the amount of text to be matched. A unit of work takes some
 * nanoseconds: the budget for one megabyte lasts for a few seconds. Requires: the matcher does not move while it is
 * open. */
bool tokenizer_matcher_open(struct tokenizer_matcher *matcher, size_t text_size, struct status *status);
void tokenizer_matcher_close(struct tokenizer_matcher *matcher);

/* Divides text (valid UTF-8) into segments, alternately matched and between matches, that cover all of it in order. An
 * empty match makes an empty matched segment. Stops with false if `segment` returns false. */
typedef bool (*tokenizer_segment_function)(void *context, size_t start, size_t end, bool matched);
bool tokenizer_pattern_segments(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher,
                                const char *text, size_t size, tokenizer_segment_function segment, void *context,
                                struct status *status);

#endif
