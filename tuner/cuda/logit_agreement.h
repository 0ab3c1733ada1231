/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two plans of one model give the same logits, but for rounding. */
#ifndef TUNER_CUDA_LOGIT_AGREEMENT_H
#define TUNER_CUDA_LOGIT_AGREEMENT_H

#include <stdbool.h>
#include <stddef.h>

/* ours, theirs: [rows, vocab]. The largest difference of a row is at most `tolerance` of its largest logit of ours. It varies from row
 * to row: of 8 rows and more, one in 66 and at least one may be up to twice as far off. False also where a logit is not finite. */
bool logits_agree(const float *ours, const float *theirs, size_t rows, size_t vocab, double tolerance);

#endif
