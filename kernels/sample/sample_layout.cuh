/* SPDX-License-Identifier: Apache-2.0 */
/* How sample divides the vocabulary among the blocks of a cluster and what of it they keep in shared memory, for the
 * kernel and for its host file. */
#ifndef KERNELS_SAMPLE_SAMPLE_LAYOUT_CUH
#define KERNELS_SAMPLE_SAMPLE_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

enum {
    SAMPLE_STAGED_TOKENS = 32768,       /* of a block, whose keys are kept in shared memory, at most */
    SAMPLE_STAGED_TOKENS_ALONE = 12288, /* the same without a cluster, for GPUs with less shared memory */
    SAMPLE_STATIC_BYTES = 40 << 10,     /* of static shared memory, at most */
};

/* Options and a row of adjustments: formats/engine/plan.h, which sample_device.c compares. */
enum {
    SAMPLE_OPTION_MIN_P = 1,
    SAMPLE_OPTION_ADJUSTS = 2,
    SAMPLE_OPTION_ALLOWS = 4,
    SAMPLE_BIAS_WORDS = 1028,
    SAMPLE_COUNT_BITS = 20,
};

/* Tokens of a block: whole bytes of SEEN. */
LAYOUT_FUNCTION layout_size sample_slice(layout_size vocab, layout_size cluster)
{
    return layout_divide_up(layout_divide_up(vocab, cluster), 8) * 8;
}

/* Whether a block keeps the keys of its slice, 4 bytes each; otherwise every pass reads the logits again. */
LAYOUT_FUNCTION int sample_is_staged(layout_size slice, layout_size cluster)
{
    return slice <= (cluster == 1 ? SAMPLE_STAGED_TOKENS_ALONE : SAMPLE_STAGED_TOKENS);
}

#endif
