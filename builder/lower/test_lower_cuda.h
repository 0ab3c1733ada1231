/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of plans that are lowered for GPUs: every operand of every launch is the one that the op's contract names, in a memory that
 * holds what the graph says. Worked out from the graph and the contracts' headers. */
#ifndef BUILDER_LOWER_TEST_LOWER_CUDA_H
#define BUILDER_LOWER_TEST_LOWER_CUDA_H

#include "builder/test_device_model.h"

/* Rows of the steps for which tests make plans. */
enum { TEST_DECODES = 9, TEST_PREFILLS = 8, TEST_MIXES = 3, TEST_VERIFIES = 3 };
extern const uint32_t test_decode_rows[TEST_DECODES], test_prefill_rows[TEST_PREFILLS], test_mixed_rows[TEST_MIXES],
    test_verify_rows[TEST_VERIFIES];

void test_check_place(const struct plan_operand *operand, enum plan_space space, struct plan_field field);
/* What a loader will demand of launch `index`. */
void test_check_schema(const struct test_device_model *model, const struct device_plan *plan, uint32_t index);
/* All launches and the memory that they share; returns the bytes of all values in the arena. */
uint64_t test_check_plan(const struct test_device_model *model, const struct graph *graph,
                         const struct device_plan *plan, const struct device_facts *gpu);
/* Requires: scratch memory for these rows. */
void test_lower_and_check(struct test_device_model *model, const struct device_facts *gpu, enum plan_kind kind,
                          uint32_t rows);
/* Plans of all those rows, after making room for scratch memory. */
void test_lower_all(struct test_device_model *model, const struct device_facts *gpu);

#endif
