/* SPDX-License-Identifier: Apache-2.0 */
/* What forks of sequences must do with every backend and every kind of layer. */
#ifndef TESTS_TEST_FORKS_H
#define TESTS_TEST_FORKS_H

#include "tests/test_fables.h"

/* Forks a sequence while it waits, while its prompt is computed, while it answers and when it is done, greedy and sampled: each fork gets
 * the tokens that the sequence gets, whichever of them ends first, and all pages are given back. Requires: the session has no sequences,
 * and FABLES_BATCH slots with a full context each. */
void forks_check(struct eng_session *session, int32_t vocab_size);

#endif
