/* SPDX-License-Identifier: Apache-2.0 */
/* sample: draws the next token of each out row from its logits, by the sampler of the row's slot (formats/engine/plan.h).
 *
 * Order: repetition penalty over the tokens seen in the sequence (logit > 0 is divided, else multiplied), plus the logit bias,
 * minus presence_penalty + count * frequency_penalty where the token's count in the answer is above 0, -infinity where the token
 * is not allowed; then temperature 0 = argmax (lowest id among equals), else logits / temperature, top-k (all tokens
 * not below the k-th largest logit), min-p (all tokens whose probability is at least min_p times the largest one; both are
 * bounds on logits, so their order does not matter), top-p (the fewest most likely of the tokens left whose probability among
 * these reaches top_p, at least one; ties by lowest id first), then one draw with the uniform number u(seed, draw) in [0, 1): the first token, in
 * order of falling probability then rising id, whose cumulative probability exceeds u. Random numbers: Philox 4x32-10
 * (Salmon et al. 2011), key = seed, counter = draw; u = first word's upper 24 bits / 2^24. After the draw, `draw` is
 * incremented, the token's bit in SEEN is set and, with SAMPLER_ADJUSTS, its count incremented, for greedy tokens too. A temperature that is not above 0 is greedy.
 * Logits are not changed.
 *
 * With VERIFIES a slot may have several out rows, one after the other: a step that verifies drafted tokens. The i-th of them, from 0 on,
 * draws with u(seed, draw + i), as if the rows before it had been draws of steps before, and no row changes `draw`, SEEN or counts: the
 * host notes the tokens that it accepts. Penalties of tokens that such rows draw do not apply.
 *
 * Without HAS_OPTIONS (engines built before there were options), sampler_state.options is 0. A row whose sampler has no options
 * takes one branch more than it would without HAS_OPTIONS.
 *
 * A row of whose logits, after all of these, one is NaN or +infinity, or none is finite, gives PLAN_NO_TOKEN, whatever its
 * sampler; `draw`, SEEN and counts stay as they are. -infinity among finite logits is allowed. Logits of tokens that are not
 * allowed may have any value.
 *
 * Probabilities are exp((logit - largest logit) / temperature) as integers in units of 2^-30, so their sums are exact in
 * any order; a token more than 22 temperatures below the largest is never drawn.
 *
 * GPUs: tokens, sampler states, SEEN and counts afterwards equal those of the CPU's vector code with fused multiply-adds (AVX2,
 * AVX-512): the same operations on floats, integer sums. They may differ from sample_reference, which sums in double,
 * where a random number falls on a boundary. With FEEDBACK the drawn token, PLAN_NO_TOKEN too, becomes the token row's
 * next input, so that a decode step can be replayed without the host: tokens[out_rows[o]] = next_tokens[o],
 * positions[out_rows[o]] += 1. Two valid out rows must not have the same token row or, without VERIFIES, slot. Out rows whose token row or
 * slot does not exist draw token 0 and change nothing else. Slots of valid rows and logits are read; out_rows beyond the
 * valid ones is read, too, but not followed. */
#ifndef KERNELS_SAMPLE_SAMPLE_H
#define KERNELS_SAMPLE_SAMPLE_H

#include "kernels/op/op.h"

enum sample_operand {
    SAMPLE_COUNTS,
    SAMPLE_LOGITS,      /* f32[rows, VOCAB] */
    SAMPLE_OUT_ROWS,    /* i32[rows]: token row of each out row */
    SAMPLE_SLOTS,       /* i32[IN_ROWS]: slot of each token row */
    SAMPLE_SAMPLERS,    /* struct sampler_state[SLOT_COUNT], read and written */
    SAMPLE_SEEN,        /* u8[SLOT_COUNT, ceil(VOCAB / 8)], read and written */
    SAMPLE_NEXT_TOKENS, /* i32[rows], each in [0, VOCAB) or PLAN_NO_TOKEN */
    SAMPLE_TOKENS,      /* FEEDBACK: i32[IN_ROWS], written */
    SAMPLE_POSITIONS,   /* FEEDBACK: i32[IN_ROWS], read and written */
    SAMPLE_ADJUSTMENTS, /* HAS_OPTIONS: u32[SLOT_COUNT, PLAN_BIAS_WORDS + VOCAB], read and written */
    SAMPLE_ALLOWED,     /* HAS_OPTIONS: u32[SLOT_COUNT, ceil(VOCAB / 32)] */
    SAMPLE_WORKSPACE,   /* CPU: sample_workspace_bytes */
    SAMPLE_OPERANDS
};
enum sample_param {
    SAMPLE_ROWS, /* out rows */
    SAMPLE_COUNT_INDEX,
    SAMPLE_VOCAB,      /* equals the geometry's */
    SAMPLE_SLOT_COUNT, /* equals the geometry's */
    SAMPLE_IN_ROWS,
    SAMPLE_FEEDBACK,    /* CUDA: 0, 1 */
    SAMPLE_HAS_OPTIONS, /* equals the geometry's */
    SAMPLE_VERIFIES,    /* 0, 1; not with FEEDBACK */
    SAMPLE_PARAMS
};

/* GPUs: tunables. */
enum sample_device_param {
    SAMPLE_DEVICE_CLUSTER = SAMPLE_PARAMS, /* thread blocks of a row: 1, 2, 4, 8 (portable); 1 before 9.0 */
    SAMPLE_DEVICE_THREADS, /* of a block: a multiple of 32 in 128..512 (128 tokens are ranked at once; registers) */
    SAMPLE_DEVICE_PARAMS
};

extern const struct op_descriptor op_sample;
extern const struct device_kernel device_sample;
op_cost sample_cost;
void sample_reference(const struct op_call *call);

uint64_t sample_workspace_bytes(uint64_t rows, uint64_t vocab);

#endif
