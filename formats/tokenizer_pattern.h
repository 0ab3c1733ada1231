/* Split and Replace patterns: regular expressions as Hugging Face's engine (Oniguruma, Ruby syntax) reads them,
 * translated to PCRE2, and plain strings. Patterns come from untrusted files: syntax whose meaning differs between
 * the engines is refused by name, and matching runs under a budget. */
#ifndef FORMATS_TOKENIZER_PATTERN_H
#define FORMATS_TOKENIZER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/status.h"
#include "formats/tokenizer.h"

enum { PATTERN_BYTES_LIMIT = 1 << 14 };

/* Writes the PCRE2 pattern that matches what `regex` (valid UTF-8) matches in Oniguruma; `out` is overwritten. */
bool tokenizer_pattern_translate(const char *regex, size_t size, struct text_buffer *out, struct status *status);

/* A pattern ready to match. Read-only once compiled: any number of matchers may use it at once. */
struct tokenizer_pattern;
/* `just_in_time`: use PCRE2's JIT compiler where the machine allows it (no error where it does not). */
struct tokenizer_pattern *tokenizer_pattern_regex(const char *regex, size_t size, bool just_in_time,
                                                  struct status *status);
/* `text` is borrowed and not empty. */
struct tokenizer_pattern *tokenizer_pattern_string(const char *text, size_t size, struct status *status);
void tokenizer_pattern_free(struct tokenizer_pattern *pattern);

/* Per-thread matching state. Zero-initialised is closed; the members are private. */
struct tokenizer_matcher {
    void *match_data, *match_context, *stack; /* PCRE2 objects */
    uint64_t budget;                          /* backtracking steps left before matching is given up */
};
/* `text_size`: how much text will be matched; the budget grows with it. */
bool tokenizer_matcher_open(struct tokenizer_matcher *matcher, size_t text_size, struct status *status);
void tokenizer_matcher_close(struct tokenizer_matcher *matcher);

/* Cuts text (valid UTF-8) into segments, alternately matched and between matches, that cover all of it in order. An
 * empty match makes an empty matched segment. Stops with false when `segment` returns false. */
typedef bool (*tokenizer_segment_function)(void *context, size_t start, size_t end, bool matched);
bool tokenizer_pattern_segments(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher,
                                const char *text, size_t size, tokenizer_segment_function segment, void *context,
                                struct status *status);

#endif
