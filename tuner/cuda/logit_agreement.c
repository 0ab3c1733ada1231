/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/logit_agreement.h"

#include <math.h>

static const double worst_factor = 2;
enum { FEW_ROWS = 8, ROWS_FOR_ONE = 66 };

/* The largest difference of a row's logits, of the largest logit; INFINITY: one is not finite. */
static double row_difference(const float *ours, const float *theirs, size_t count)
{
    double largest = 0, difference = 0;
    for (size_t i = 0; i < count; i++) {
        double a = (double)ours[i], b = (double)theirs[i];
        if (!isfinite(a) || !isfinite(b)) return INFINITY;
        largest = fmax(largest, fabs(a));
        difference = fmax(difference, fabs(a - b));
    }
    return difference > 0 ? difference / largest : 0;
}

bool logits_agree(const float *ours, const float *theirs, size_t rows, size_t vocab, double tolerance)
{
    size_t beyond = 0;
    for (size_t r = 0; r < rows; r++) {
        const double difference = row_difference(ours + r * vocab, theirs + r * vocab, vocab);
        if (!(difference <= worst_factor * tolerance)) return false;
        beyond += difference > tolerance;
    }
    const size_t share = rows / ROWS_FOR_ONE;
    return beyond <= (rows < FEW_ROWS ? 0 : share > 1 ? share : 1);
}
