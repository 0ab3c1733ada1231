/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled patterns and matching with PCRE2.
 *
 * A hostile pattern may backtrack for ever, or scan the rest of the text from every position. PCRE2's limits count
 * neither the scan of a repeat of one character nor the positions of one search. The work is therefore counted by
 * callouts, which the translation adds to patterns: one step each, and the distance of a scan. The cost of a step grows
 * with the size of the compiled pattern, whose parts between two callouts may all be tried. The budget is proportional
 * to the text; published patterns use a tenth of it, a hostile one ends in an error. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/tokenizer/tokenizer_pattern.h"
#include "formats/tokenizer/tokenizer_text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    BUDGET_BASE = 20 * 1000 * 1000,
    BUDGET_PER_BYTE = 300,
    WEIGHT_BYTES = 256, /* so many bytes of a compiled pattern add one unit to the cost of a step */
    LONG_STRING = 16,   /* bytes                                                              */
    HEAP_LIMIT_KIB = 32 << 10,
    JIT_STACK_FIRST = 32 << 10,
    JIT_STACK_MOST = 4 << 20,
};

struct tokenizer_pattern {
    pcre2_code *code; /* NULL: a plain string */
    const char *text; /* borrowed             */
    size_t size;
    uint64_t weight; /* units of work that one step costs */
};

static bool out_of_memory(struct status *status)
{
    return status_fail(status, STATUS_MACHINE, "out of memory for one of the tokenizer's patterns");
}

struct tokenizer_pattern *tokenizer_pattern_regex(const char *regex, size_t size, bool just_in_time,
                                                  struct status *status)
{
    struct text_buffer translated = {0};
    struct tokenizer_pattern *pattern = NULL;
    pcre2_compile_context *context = NULL;
    int error = 0;
    PCRE2_SIZE error_at = 0;
    size_t code_bytes = 0;
    if (!tokenizer_pattern_translate(regex, size, &translated, status)) goto done;
    pattern = calloc(1, sizeof *pattern);
    context = pcre2_compile_context_create(NULL);
    if (!pattern || !context) {
        out_of_memory(status);
        goto failed;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* the library's build-time default may differ */
    pattern->text = regex;
    pattern->size = size;
    pattern->code =
        pcre2_compile((PCRE2_SPTR)translated.text, translated.size,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &error,
                      &error_at, context);
    if (!pattern->code) {
        PCRE2_UCHAR message[120];
        if (error == PCRE2_ERROR_HEAP_FAILED || error == PCRE2_ERROR_NOMEMORY) {
            out_of_memory(status);
            goto failed;
        }
        pcre2_get_error_message(error, message, sizeof message);
        status_fail(status, STATUS_BAD_INPUT, "pattern '%.*s' does not compile: %s", (int)(size < 120 ? size : 120),
                    regex, (char *)message);
        goto failed;
    }
    (void)pcre2_pattern_info(pattern->code, PCRE2_INFO_SIZE, &code_bytes);
    pattern->weight = 1 + code_bytes / WEIGHT_BYTES;
    /* No executable memory is available (hardened kernels): the interpreter does the same more slowly. */
    if (just_in_time) (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);
    goto done;
failed:
    free(pattern);
    pattern = NULL;
done:
    pcre2_compile_context_free(context);
    text_buffer_free(&translated);
    return pattern;
}

struct tokenizer_pattern *tokenizer_pattern_string(const char *text, size_t size, struct status *status)
{
    struct tokenizer_pattern *pattern = NULL;
    if (size == 0) {
        status_fail(status, STATUS_BAD_INPUT, "an empty pattern string is not supported");
        return NULL;
    }
    pattern = calloc(1, sizeof *pattern);
    if (!pattern) {
        out_of_memory(status);
        return NULL;
    }
    pattern->text = text;
    pattern->size = size;
    return pattern;
}

void tokenizer_pattern_free(struct tokenizer_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

static bool charge(struct tokenizer_matcher *matcher, uint64_t steps)
{
    uint64_t units;
    bool enough = checked_mul(steps, matcher->weight, &units) && units <= matcher->budget;
    matcher->budget = enough ? matcher->budget - units : 0;
    return enough;
}

/* Called by PCRE2 during a match; a negative result ends it. */
static int count_work(pcre2_callout_block *block, void *context)
{
    struct tokenizer_matcher *matcher = context;
    size_t at = block->current_position;
    uint64_t steps = 1;
    if (block->callout_number == PATTERN_CALLOUT_AFTER)
        steps += at > matcher->scan_start ? at - matcher->scan_start : 0;
    else if (block->callout_number != PATTERN_CALLOUT_GROUP)
        steps += (block->callout_number - 1) * (uint64_t)PATTERN_CALLOUT_UNIT;
    matcher->scan_start = at;
    return charge(matcher, steps) ? 0 : PCRE2_ERROR_CALLOUT;
}

bool tokenizer_matcher_open(struct tokenizer_matcher *matcher, size_t text_size, struct status *status)
{
    memset(matcher, 0, sizeof *matcher);
    matcher->match_data = pcre2_match_data_create(1, NULL);
    matcher->match_context = pcre2_match_context_create(NULL);
    if (!matcher->match_data || !matcher->match_context) {
        tokenizer_matcher_close(matcher);
        return out_of_memory(status);
    }
    pcre2_set_heap_limit(matcher->match_context, HEAP_LIMIT_KIB);
    pcre2_set_match_limit(matcher->match_context, UINT32_MAX); /* the work count is stricter */
    pcre2_set_callout(matcher->match_context, count_work, matcher);
    matcher->budget = BUDGET_BASE + (uint64_t)text_size * BUDGET_PER_BYTE;
    return true;
}

void tokenizer_matcher_close(struct tokenizer_matcher *matcher)
{
    pcre2_match_data_free(matcher->match_data);
    pcre2_match_context_free(matcher->match_context);
    if (matcher->stack) pcre2_jit_stack_free(matcher->stack);
    memset(matcher, 0, sizeof *matcher);
}

static int too_much_work(const struct tokenizer_pattern *pattern, size_t from, size_t size, const char *detail,
                         struct status *status)
{
    status_fail(
        status, STATUS_BAD_INPUT,
        "the tokenizer's pattern '%.*s' takes too much work at byte %zu of a text of %zu%s%s: it backtracks or looks "
        "ahead too far for this text",
        (int)(pattern->size < 160 ? pattern->size : 160), pattern->text, from, size, *detail ? ": " : "", detail);
    return -1;
}

/* One search from `from`. Returns 1: found, 0: not found, -1: failed. */
static int search(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher, const char *text,
                  size_t size, size_t from, size_t *start, size_t *end, struct status *status)
{
    if (!pattern->code) {
        /* the time of memmem does not grow with the needle's length */
        const char *found = pattern->size > LONG_STRING
                                ? memmem(text + from, size - from, pattern->text, pattern->size)
                                : text_find(text + from, size - from, pattern->text, pattern->size);
        if (!found) return 0;
        *start = (size_t)(found - text);
        *end = *start + pattern->size;
        return 1;
    }
    for (;;) {
        matcher->scan_start = from;
        int result = pcre2_match(pattern->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, matcher->match_data,
                                 matcher->match_context);
        if (result == PCRE2_ERROR_JIT_STACKLIMIT && !matcher->stack) {
            /* PCRE2's default of 32 KiB of machine stack is too small for long runs of white space */
            matcher->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, NULL);
            if (!matcher->stack) {
                out_of_memory(status);
                return -1;
            }
            pcre2_jit_stack_assign(matcher->match_context, NULL, matcher->stack);
            continue;
        }
        if (result == PCRE2_ERROR_NOMEMORY) {
            out_of_memory(status);
            return -1;
        }
        if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
            PCRE2_UCHAR message[120] = "";
            if (result != PCRE2_ERROR_CALLOUT) pcre2_get_error_message(result, message, sizeof message);
            return too_much_work(pattern, from, size, (char *)message, status);
        }
        const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(matcher->match_data);
        *start = result >= 0 ? offsets[0] : size;
        *end = result >= 0 ? offsets[1] : size;
        /* the positions that were tried, most of them without a callout */
        if (*start >= from && !charge(matcher, *start - from + 1))
            return too_much_work(pattern, from, size, "", status);
        return result >= 0;
    }
}

/* Ends where Oniguruma's iteration ends: the search continues at the end of a match; an empty match directly after the
 * previous match is skipped, and the search advances by one character. */
bool tokenizer_pattern_segments(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher,
                                const char *text, size_t size, tokenizer_segment_function segment, void *context,
                                struct status *status)
{
    size_t from = 0, covered = 0, start, end;
    bool any = false;
    matcher->weight = pattern->weight;
    while (from <= size) {
        int found = search(pattern, matcher, text, size, from, &start, &end, status);
        if (found < 0) return false;
        if (found == 0) break;
        if (end < start || start < covered || end > size) /* impossible, since \K is not translated */
            return status_fail(status, STATUS_INTERNAL, "a pattern matched backwards");
        if (start == end && any && covered == end) {
            uint32_t character;
            from += from < size ? text_read(text + from, &character) : 1;
            continue;
        }
        if (covered != start && !segment(context, covered, start, false)) return false;
        if (!segment(context, start, end, true)) return false;
        any = true;
        from = covered = end;
    }
    return covered == size || segment(context, covered, size, false);
}
