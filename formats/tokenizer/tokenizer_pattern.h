/* SPDX-License-Identifier: Apache-2.0 */
/* Split and Replace patterns: regular expressions as Hugging Face's engine (Oniguruma, Ruby syntax) reads them,
 * translated to PCRE2, and plain strings. Patterns come from untrusted files: syntax whose meaning differs between
 * the engines is refused by name, and matching runs under a budget that is proportional to the text. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_PATTERN_H
#define FORMATS_TOKENIZER_TOKENIZER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "formats/tokenizer/tokenizer.h"

enum { PATTERN_BYTES_LIMIT = 1 << 12 }; /* published ones have some 500 */

/* Numbers of the callouts in a translated pattern. Every way of backtracking leads past one of them, so that what lies
 * between two is limited by the pattern's length and by the distance of a scan, which the callout after it tells. */
enum pattern_callout {
    PATTERN_CALLOUT_AFTER = 0, /* after a group, and after a repeat                                         */
    /* 1 to 251: before a repeat of one character or set: 1 + its least count / PATTERN_CALLOUT_UNIT */
    PATTERN_CALLOUT_UNIT = 4,
    PATTERN_CALLOUT_GROUP = 255, /* at the start of a group: each turn of a repeated one comes by             */
};

/* Writes the PCRE2 pattern that matches what `regex` (valid UTF-8) matches in Oniguruma; `out` is overwritten. */
bool tokenizer_pattern_translate(const char *regex, size_t size, struct text_buffer *out, struct status *status);

/* A pattern ready to match. Read-only once compiled: any number of matchers may use it at once. */
struct tokenizer_pattern;
/* `just_in_time`: use PCRE2's JIT compiler where the machine allows it (no error where it does not). `regex` is borrowed. */
struct tokenizer_pattern *tokenizer_pattern_regex(const char *regex, size_t size, bool just_in_time,
                                                  struct status *status);
/* `text` is borrowed and not empty. */
struct tokenizer_pattern *tokenizer_pattern_string(const char *text, size_t size, struct status *status);
void tokenizer_pattern_free(struct tokenizer_pattern *pattern);

/* Per-thread matching state. Zero-initialised is closed; the members are private. */
struct tokenizer_matcher {
    void *match_data, *match_context, *stack; /* PCRE2 objects */
    uint64_t budget;                          /* units of work left before matching is given up */
    uint64_t weight;                          /* units that one step of the pattern at hand costs */
    size_t scan_start;                        /* where the last repeat of one character or set began */
};
/* `text_size`: how much text will be matched; the budget grows with it. The matcher must not move while it is open. A unit of
 * work takes some nanoseconds: the budget of a text of one megabyte lasts for a few seconds. */
bool tokenizer_matcher_open(struct tokenizer_matcher *matcher, size_t text_size, struct status *status);
void tokenizer_matcher_close(struct tokenizer_matcher *matcher);

/* Cuts text (valid UTF-8) into segments, alternately matched and between matches, that cover all of it in order. An
 * empty match makes an empty matched segment. Stops with false when `segment` returns false. */
typedef bool (*tokenizer_segment_function)(void *context, size_t start, size_t end, bool matched);
bool tokenizer_pattern_segments(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher,
                                const char *text, size_t size, tokenizer_segment_function segment, void *context,
                                struct status *status);

#endif
