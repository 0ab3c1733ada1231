/* SPDX-License-Identifier: Apache-2.0 */
/* Code that the sampler's implementations share: a row and its part of the workspace. */
#ifndef KERNELS_SAMPLE_SAMPLE_ROW_H
#define KERNELS_SAMPLE_SAMPLE_ROW_H

#include <stddef.h>

#include "kernels/sample/sample.h"

enum {
    SAMPLE_GROUP_VECTORS = 16, /* vectors whose maxima, lane by lane, form one vector of maxima */
    SAMPLE_GROUP_TOKENS = 256, /* tokens of a group with the widest vectors; narrower ones divide it */
};

/* Floats of maxima per row: a sixteenth of the vocabulary, whatever the width of the vectors. */
static inline uint64_t sample_maxima(uint64_t vocab)
{
    uint64_t groups = vocab / SAMPLE_GROUP_TOKENS + (vocab % SAMPLE_GROUP_TOKENS != 0);
    return groups * (SAMPLE_GROUP_TOKENS / SAMPLE_GROUP_VECTORS);
}

struct sample_row {
    const float *logits; /* [vocab] */
    int64_t vocab;
    struct sampler_state *sampler; /* NULL: the row does not exist (hostile out_rows) */
    uint64_t draw;                 /* number of its draw */
    uint8_t *seen;                 /* [seen_bytes] */
    int64_t seen_bytes;
    uint32_t *adjustments;   /* [PLAN_BIAS_WORDS + vocab]; NULL: none */
    const uint32_t *allowed; /* [ceil(vocab / 32)]; NULL: all */
    float *maxima;           /* workspace [sample_maxima(vocab)] */
    uint32_t *ids;           /* workspace [vocab] */
};

/* Out rows before `row` of the same slot: with VERIFIES they draw first. */
static inline uint64_t sample_draws_before(const struct op_call *call, int64_t row, int32_t slot)
{
    const int32_t *out_rows = call->operands[SAMPLE_OUT_ROWS], *slots = call->operands[SAMPLE_SLOTS];
    const int64_t in_rows = call->params[SAMPLE_IN_ROWS];
    uint64_t draws = 0;
    for (int64_t r = 0; call->params[SAMPLE_VERIFIES] && r < row; r++)
        draws += out_rows[r] >= 0 && out_rows[r] < in_rows && slots[out_rows[r]] == slot;
    return draws;
}

static inline struct sample_row sample_row_of(const struct op_call *call, int64_t row)
{
    const int64_t *params = call->params;
    int64_t vocab = params[SAMPLE_VOCAB], seen_bytes = (vocab + 7) / 8;
    int64_t maxima = (int64_t)sample_maxima((uint64_t)vocab), rows = params[SAMPLE_ROWS];
    float *workspace = call->operands[SAMPLE_WORKSPACE];
    struct sample_row result = {
        .logits = (const float *)call->operands[SAMPLE_LOGITS] + row * vocab,
        .vocab = vocab,
        .seen_bytes = seen_bytes,
        .maxima = workspace + row * maxima,
        .ids = (uint32_t *)(void *)(workspace + rows * maxima) + row * vocab,
    };
    int32_t in_row = ((const int32_t *)call->operands[SAMPLE_OUT_ROWS])[row];
    if (in_row < 0 || in_row >= params[SAMPLE_IN_ROWS]) return result;
    int32_t slot = ((const int32_t *)call->operands[SAMPLE_SLOTS])[in_row];
    result.sampler = (struct sampler_state *)call->operands[SAMPLE_SAMPLERS] + slot;
    result.draw = result.sampler->draw + sample_draws_before(call, row, slot);
    result.seen = (uint8_t *)call->operands[SAMPLE_SEEN] + slot * seen_bytes;
    if (!params[SAMPLE_HAS_OPTIONS]) return result;
    if (result.sampler->options & SAMPLER_ADJUSTS)
        result.adjustments =
            (uint32_t *)call->operands[SAMPLE_ADJUSTMENTS] + (uint64_t)slot * plan_adjustment_words((uint64_t)vocab);
    if (result.sampler->options & SAMPLER_ALLOWS)
        result.allowed =
            (const uint32_t *)call->operands[SAMPLE_ALLOWED] + (uint64_t)slot * plan_allowed_words((uint64_t)vocab);
    return result;
}

/* The token's logit bias, presence_penalty and frequency_penalty. One operation a statement, so that no compiler joins two to
 * one that rounds once: GPUs compute the same bits. */
static inline float sample_adjusted(const uint32_t *adjustments, const struct sampler_state *sampler, int64_t token,
                                    float value)
{
    const uint32_t word = adjustments[PLAN_BIAS_WORDS + token], count = word & PLAN_COUNT_MOST;
    value += float_from_bits(adjustments[word >> PLAN_COUNT_BITS]);
    if (!count) return value;
    float penalty = sampler->frequency_penalty * (float)count;
    penalty += sampler->presence_penalty;
    return value - penalty;
}

static inline bool sample_is_allowed(const uint32_t *allowed, int64_t token)
{
    return !allowed || (allowed[token / 32] >> (token % 32) & 1);
}

static inline bool sample_is_seen(const struct sample_row *row, int64_t token)
{
    return row->seen[token / 8] >> (token % 8) & 1;
}

/* Writes the drawn token and moves the sequence's sampler on; greedy tokens count as draws too, PLAN_NO_TOKEN does not. */
static inline void sample_commit(const struct op_call *call, int64_t row_index, const struct sample_row *row,
                                 int32_t token)
{
    ((int32_t *)call->operands[SAMPLE_NEXT_TOKENS])[row_index] = token;
    if (!row->sampler || token < 0 || call->params[SAMPLE_VERIFIES]) return;
    row->sampler->draw++;
    row->seen[token / 8] = (uint8_t)(row->seen[token / 8] | 1u << (token % 8));
    if (row->adjustments) plan_count_token(row->adjustments, token);
}

#endif
