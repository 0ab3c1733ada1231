/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that cancels sequences at a time of its own, also in the middle of a step. */
#ifndef TESTS_BENCH_SOAK_CANCEL_H
#define TESTS_BENCH_SOAK_CANCEL_H

#include <stdbool.h>

#include "runtime/eng.h"

struct soak_canceller;

/* most: sequences that it knows at a time. */
struct soak_canceller *soak_canceller_create(uint32_t most);
void soak_canceller_destroy(struct soak_canceller **canceller);

/* Cancels the sequence after so many seconds. */
void soak_cancel_later(struct soak_canceller *canceller, struct eng_sequence *sequence, double seconds);
/* From now on it does not use the sequence. True: it has cancelled it. */
bool soak_cancel_withdraw(struct soak_canceller *canceller, const struct eng_sequence *sequence);

#endif
