/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a pattern over a text, for tests of patterns. */
#ifndef FORMATS_TOKENIZER_TEST_PATTERN_H
#define FORMATS_TOKENIZER_TEST_PATTERN_H

#include "formats/base/test_support.h"
#include "formats/tokenizer/tokenizer_pattern.h"

/* Counts the matches. */
static inline bool count_match(void *context, size_t start, size_t end, bool matched)
{
    size_t *matches = context;
    *matches += matched;
    return true;
}

/* False with a message if it takes too much work. `work`: what it took. */
static inline bool count_matches(const char *regex, bool compiled, const char *text, size_t size, size_t *matches,
                                 uint64_t *work, struct status *error)
{
    struct tokenizer_matcher matcher;
    struct tokenizer_pattern *pattern = tokenizer_pattern_regex(regex, strlen(regex), compiled, error);
    test_expect_success(pattern != NULL, error);
    test_expect_success(tokenizer_matcher_open(&matcher, size, error), error);
    const uint64_t budget = matcher.budget;
    *matches = 0;
    bool done = tokenizer_pattern_segments(pattern, &matcher, text, size, count_match, matches, error);
    *work = budget - matcher.budget;
    tokenizer_matcher_close(&matcher);
    tokenizer_pattern_free(pattern);
    return done;
}

#endif
