/* SPDX-License-Identifier: Apache-2.0 */
/* Results of the rows of a prompt: log-probabilities of its tokens, and the mean of its hidden states. The row of a token has the logits of
 * the token after it and the hidden state of its own place.
 *
 * The last token of a prompt is computed as usual, since a token is drawn after it: its logits are of the answer, and its hidden state comes
 * with the draw. Rows are read once: a sequence that is set aside computes those that were read again by chunks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/session/session.h"

bool prompt_rows_begin(struct eng_sequence *sequence, uint32_t count, struct status *status)
{
    const uint64_t hidden_size = sequence->session->geometry->hidden_size;
    const uint32_t start = sequence->count, end = start + count - 1;
    const bool has_mean = sequence->flags & ENG_SEQUENCE_HIDDEN_MEAN;
    struct prompt_rows rows = {.start = start, .next = end, .end = end};
    bool ok = true;
    if (has_mean) {
        rows.next = start;
        rows.sums = calloc(hidden_size, sizeof *rows.sums);
        rows.mean = malloc(hidden_size * sizeof *rows.mean);
        ok = rows.sums && rows.mean;
    }
    if (ok && sequence->prompt_logprobs) {
        /* The row before the prompt has the logits of its first token. */
        rows.next = start ? start - 1 : 0;
        rows.top = sequence->prompt_logprobs > 0 ? (uint32_t)sequence->prompt_logprobs : 0;
        rows.logprobs = calloc(count, (1 + rows.top) * sizeof *rows.logprobs);
        ok = rows.logprobs != NULL;
    }
    if (ok) {
        prompt_rows_free(sequence);
        sequence->rows = rows;
        return true;
    }
    free(rows.sums);
    free(rows.mean);
    return status_fail(status, STATUS_MACHINE,
                       "out of memory for the log-probabilities or the mean of %u tokens; submit fewer, or lower "
                       "prompt_logprobs",
                       (unsigned)count);
}

void prompt_rows_free(struct eng_sequence *sequence)
{
    free(sequence->rows.logprobs);
    free(sequence->rows.sums);
    free(sequence->rows.mean);
    sequence->rows = (struct prompt_rows){0};
}

bool prompt_rows_due(const struct eng_sequence *sequence)
{
    const struct prompt_rows *rows = &sequence->rows;
    return sequence->state == ENG_STATE_PREFILL && rows->next < rows->end && rows->next == sequence->computed;
}

uint32_t prompt_rows_before(const struct eng_sequence *sequence)
{
    const struct prompt_rows *rows = &sequence->rows;
    return rows->next < rows->end ? rows->next : sequence->count;
}

bool prompt_rows_has_hidden(const struct eng_sequence *sequence)
{
    return sequence->rows.sums && sequence->rows.next >= sequence->rows.start;
}

void prompt_rows_read(struct eng_sequence *sequence, const float *logits, const float *hidden)
{
    const struct plan_geometry *geometry = sequence->session->geometry;
    struct prompt_rows *rows = &sequence->rows;
    const uint32_t next = rows->next + 1; /* the token that the logits are of */
    if (rows->logprobs && next >= rows->start) {
        struct eng_logprob *own = rows->logprobs + (size_t)(next - rows->start) * (1 + rows->top);
        if (logits)
            logprobs_of_row(logits, geometry->vocab_size, sequence->tokens[next], own, own + 1, rows->top);
        else
            for (uint32_t i = 0; i <= rows->top; i++)
                own[i] = (struct eng_logprob){i ? -1 : sequence->tokens[next], NAN};
    }
    for (uint64_t i = 0; prompt_rows_has_hidden(sequence) && i < geometry->hidden_size; i++)
        rows->sums[i] += (double)hidden[i];
    rows->next = next;
}

const float *prompt_rows_mean(struct eng_sequence *sequence, const float *last)
{
    const struct prompt_rows *rows = &sequence->rows;
    const double tokens = (double)(rows->end + 1 - rows->start);
    /* Later tokens are of the answer. */
    if (!rows->sums || rows->next < rows->end || sequence->count != rows->end + 1) return NULL;
    for (uint64_t i = 0; i < sequence->session->geometry->hidden_size; i++)
        rows->mean[i] = (float)((rows->sums[i] + (double)last[i]) / tokens);
    return rows->mean;
}

/* Whether the log-probabilities of the token at `position` are there. */
static bool check_position(const struct eng_sequence *sequence, size_t position, const char *function,
                           struct status *status)
{
    const struct prompt_rows *rows = &sequence->rows;
    if (!sequence->exists) return status_fail(status, STATUS_USAGE, "%s: the sequence was destroyed", function);
    if (!rows->logprobs)
        return status_fail(status, STATUS_USAGE,
                           "%s: the sequence was not created with prompt_logprobs, or no prompt was submitted to it",
                           function);
    if (position < rows->start || position > rows->end)
        return status_fail(status, STATUS_USAGE,
                           "%s: position is %zu, expected one of the latest prompt, which are %u to %u", function,
                           position, rows->start, rows->end);
    if (position == 0)
        return status_fail(status, STATUS_USAGE,
                           "%s: position is 0, whose token has no probability, since none is before it", function);
    if (position > rows->next)
        return status_fail(status, STATUS_USAGE, "%s: position %zu is not computed yet, expected at most %u", function,
                           position, rows->next);
    return true;
}

enum eng_status eng_sequence_prompt_logprobs(const struct eng_sequence *sequence, size_t position,
                                             struct eng_logprob *own, struct eng_logprob *top, size_t count,
                                             struct eng_error *error)
{
    static const char function[] = "eng_sequence_prompt_logprobs";
    struct status status = {0};
    if (!report_not_null(sequence, function, "sequence", &status) ||
        (count && !report_not_null(top, function, "top", &status)) ||
        !check_position(sequence, position, function, &status))
        return report_status(&status, error);
    const struct prompt_rows *rows = &sequence->rows;
    if (count > rows->top) {
        status_fail(&status, STATUS_USAGE, "%s: count is %zu, expected at most %u, of prompt_logprobs", function, count,
                    rows->top);
        return report_status(&status, error);
    }
    const struct eng_logprob *found = rows->logprobs + (position - rows->start) * (1 + (size_t)rows->top);
    if (own) *own = found[0];
    if (count) memcpy(top, found + 1, count * sizeof *top);
    return report_ok(error);
}
