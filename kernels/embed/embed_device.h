/* SPDX-License-Identifier: Apache-2.0 */
/* embed on the GPU: out[r, :] = table[tokens[r], :], rounded to OUT_DTYPE. The table is row-major. SHARDED: rank k of
 * several has the tokens from k * VOCAB on. Rows of tokens that the table does not have are zero: those of other ranks, and
 * PLAN_NO_TOKEN, which a step finds if it was queued after one that drew nothing. */
#ifndef KERNELS_EMBED_EMBED_DEVICE_H
#define KERNELS_EMBED_EMBED_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/embed/embed.h"

extern const struct device_kernel device_embed;

#endif
