/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose operands in STEP and STATE are no fields, or which write fields that their ops do not write, are refused. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"

#include "formats/engine/test_engine.h"
#include "kernels/embed/embed.h"
#include "kernels/op/op.h"
#include "kernels/sample/sample.h"
#include "runtime/load/plan_inputs.h"

static struct test_engine engine;

static int make_engine(void **state)
{
    struct status status;
    return test_engine_make(&engine, &status) ? 0 : -1;
}

static struct plan_operand *operand_of(enum plan_op op, unsigned index)
{
    struct plan *plan = &engine.plans[0];
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (plan->launches[i].op == op) return &engine.storage[0].operands[plan->launches[i].first_operand + index];
    fail_msg("the test engine has no launch of op %d", (int)op);
    return NULL;
}

static void refused(const char *part)
{
    struct status status;
    status_clear(&status);
    assert_false(plan_inputs_verify(&engine.plans[0], TARGET_CPU, &engine.manifest.geometry, "plan", &status));
    assert_int_equal(status.code, STATUS_CORRUPT);
    if (!strstr(status.message, part)) fail_msg("expected '%s' in '%s'", part, status.message);
}

TEST(test_accepts)
{
    struct status status;
    status_clear(&status);
    for (size_t i = 0; i < engine.plan_count; i++)
        if (!plan_inputs_verify(&engine.plans[i], TARGET_CPU, &engine.manifest.geometry, "plan", &status))
            fail_msg("%s", status.message);
}

TEST(test_counts)
{
    struct plan_operand *counts = operand_of(OP_EMBED, OP_OPERAND_COUNTS), kept = *counts;
    counts->offset = operand_of(OP_SAMPLE, SAMPLE_LOGITS)->offset;
    refused("STEP counts");
    *counts = kept;
    test_accepts(state);
}

TEST(test_between_fields)
{
    struct plan_operand *slots = operand_of(OP_SAMPLE, SAMPLE_SLOTS), kept = *slots;
    slots->offset += PLAN_ALIGNMENT / 2;
    slots->bytes = PLAN_ALIGNMENT;
    refused("is no field");
    *slots = kept;
}

TEST(test_writes_over_inputs)
{
    struct plan_operand *out = operand_of(OP_EMBED, EMBED_OUT), kept = *out;
    *out = *operand_of(OP_EMBED, EMBED_TOKENS);
    out->access = ACCESS_WRITE;
    refused("may not write");
    *out = *operand_of(OP_SAMPLE, SAMPLE_NEXT_TOKENS);
    out->access = ACCESS_WRITE;
    refused("may not write");
    *out = kept;
    test_accepts(state);
}

int main(void) { return test_run_with(make_engine, NULL, NULL, NULL); }
