/* SPDX-License-Identifier: Apache-2.0 */
/* Several out rows of a slot (parameter verifies): each draws what a step of its own would have drawn, and nothing else changes. */
#include "kernels/sample/sample.h"
#include "kernels/op/test_support.h"

#include <math.h>

enum { SLOTS = 3, IN_ROWS = 9, ROWS = 7, VOCAB = 523, SEEN_BYTES = (VOCAB + 7) / 8 };

struct launch {
    struct test_case test;
    float *logits;
    int32_t *out_rows, *slots, *next;
    struct sampler_state *samplers;
    uint8_t *seen;
};

static void launch_open(struct launch *launch, int64_t rows, bool verifies)
{
    struct plan_geometry geometry = test_geometry;
    geometry.slots = SLOTS;
    geometry.vocab_size = VOCAB;
    int64_t params[SAMPLE_PARAMS] = {rows, 1, VOCAB, SLOTS, IN_ROWS};
    params[SAMPLE_VERIFIES] = verifies;
    test_case_open(&launch->test, &op_sample, params, &geometry, (int32_t)rows);
    launch->logits = launch->test.call.operands[SAMPLE_LOGITS];
    launch->out_rows = launch->test.call.operands[SAMPLE_OUT_ROWS];
    launch->slots = launch->test.call.operands[SAMPLE_SLOTS];
    launch->next = launch->test.call.operands[SAMPLE_NEXT_TOKENS];
    launch->samplers = launch->test.call.operands[SAMPLE_SAMPLERS];
    launch->seen = launch->test.call.operands[SAMPLE_SEEN];
    memset(launch->seen, 0, SLOTS * SEEN_BYTES);
}

static struct sampler_state sampler_of(int slot)
{
    return (struct sampler_state){.temperature = slot == 1 ? 0.0f : 0.9f,
                                  .top_p = slot == 2 ? 0.8f : 1.0f,
                                  .top_k = slot == 2 ? 50 : 0,
                                  .repetition_penalty = 1,
                                  .seed = 77 + (uint64_t)slot,
                                  .draw = 1000 * (uint64_t)slot};
}

/* Slots of the token rows; out rows leave out some of them. */
static const int32_t slots[IN_ROWS] = {2, 2, 2, 0, 1, 1, 0, 0, 0}, out_rows[ROWS] = {0, 1, 2, 3, 5, 7, 8};

TEST(rows_of_a_slot_draw_as_steps_one_by_one)
{
    static float logits[ROWS * VOCAB];
    struct test_random random = {5};
    for (int i = 0; i < ROWS * VOCAB; i++)
        logits[i] = test_random_float(&random, -3, 3) + test_random_float(&random, -3, 3);
    int isas = 0;
    TEST_FOR_EACH_ISA(isa)
    {
        struct launch one, all;
        launch_open(&one, 1, false);
        launch_open(&all, ROWS, true);
        memcpy(all.logits, logits, sizeof logits);
        memcpy(all.slots, slots, sizeof slots);
        memcpy(all.out_rows, out_rows, sizeof out_rows);
        for (int s = 0; s < SLOTS; s++) one.samplers[s] = all.samplers[s] = sampler_of(s);
        test_run_op(&op_sample, isa, &all.test.call, test_teams[isas++ % TEST_TEAMS]);
        for (int s = 0; s < SLOTS; s++) {
            const struct sampler_state before = sampler_of(s);
            assert_memory_equal(&all.samplers[s], &before, sizeof before);
        }
        for (int i = 0; i < SLOTS * SEEN_BYTES; i++) assert_int_equal(all.seen[i], 0);
        memcpy(one.slots, slots, sizeof slots);
        for (int r = 0; r < ROWS; r++) {
            memcpy(one.logits, logits + r * VOCAB, VOCAB * sizeof *logits);
            one.out_rows[0] = out_rows[r];
            test_run_op(&op_sample, isa, &one.test.call, test_teams[0]);
            assert_int_equal(all.next[r], one.next[0]);
        }
        test_case_close(&one.test);
        test_case_close(&all.test);
    }
}

TEST(a_row_without_a_token)
{
    struct launch all;
    launch_open(&all, 3, true);
    for (int i = 0; i < 3 * VOCAB; i++) all.logits[i] = 0;
    for (int r = 0; r < 3; r++) all.out_rows[r] = r;
    memset(all.slots, 0, IN_ROWS * sizeof *all.slots);
    all.samplers[0] = sampler_of(0);
    all.logits[VOCAB + 3] = NAN;
    test_run_op(&op_sample, CPU_PORTABLE, &all.test.call, test_teams[0]);
    assert_in_range(all.next[0], 0, VOCAB - 1);
    assert_int_equal(all.next[1], PLAN_NO_TOKEN);
    assert_in_range(all.next[2], 0, VOCAB - 1);
    test_case_close(&all.test);
}

TEST(does_not_feed_back)
{
    const int64_t params[SAMPLE_PARAMS] =
        {[SAMPLE_ROWS] = 1,    [SAMPLE_COUNT_INDEX] = 1, [SAMPLE_VOCAB] = VOCAB, [SAMPLE_SLOT_COUNT] = SLOTS,
         [SAMPLE_IN_ROWS] = 1, [SAMPLE_FEEDBACK] = 1,    [SAMPLE_VERIFIES] = 1};
    assert_string_equal(op_params_illegal(&op_sample, params), "parameters verifies and feedback are both 1");
}

int main(void) { return test_run(); }
