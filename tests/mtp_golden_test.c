/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts in golden outputs: they are what plain code gives, and a plan that drafts something else is found where the engine is built and where
 * it runs. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "tests/test_mtp_model.h"

#include <math.h>
#include <string.h>

#include "builder/golden/golden_cpu.h"
#include "formats/base/test_folder.h"
#include "kernels/rms_norm/rms_norm.h"
#include "runtime/backend/test_backend.h"
#include "runtime/session/session.h"

enum { HIDDEN = MTP_HIDDEN, VOCAB = MTP_VOCAB, LAYER = 1 };

static char path[300];
static struct build_options options;
static struct eng_engine *engine;

static void build(uint32_t gpus)
{
    struct status status = {0};
    mtp_model_write(&(struct mtp_settings){.cycles = true, .layers = 1}, folder);
    snprintf(path, sizeof path, "%s", in_folder("mtp.eng"));
    mtp_options(&options, folder, path);
    options.gpus = gpus;
    options.out = fopen("/dev/null", "w");
    assert_non_null(options.out);
    test_expect_success(build_engine(&options, &status), &status);
    fclose(options.out);
}

static struct eng_session *open_session(const struct backend_type *type)
{
    struct eng_session_options own;
    eng_session_options_init(&own);
    own.threads = 2;
    test_backend_settings = (struct test_backend_settings){.pace = PACE_RANDOM};
    return fables_session_on(type, engine, &own);
}

/* ---- expected drafts ---- */

/* A text's hidden states after the final norm. */
static void find_hidden(struct eng_session *session, const int32_t *text, uint32_t count, float (*hidden)[HIDDEN])
{
    uint32_t slot;
    int32_t ignored;
    CHECK(eng_slot_acquire(session, &slot, &error));
    for (uint32_t i = 0; i < count; i++) {
        CHECK(eng_decode(session, &slot, &text[i], 1, &ignored, NULL, &error));
        CHECK(eng_slot_hidden(session, slot, hidden[i], &error));
    }
    CHECK(eng_slot_release(session, slot, &error));
}

static void check_row(const struct golden_drafts *drafts, uint32_t row, const double *logits)
{
    const int32_t drafted = drafts->tokens[row];
    const uint32_t *near = drafts->near + row * plan_allowed_words(VOCAB);
    int best = 0, count = 0;
    for (int t = 1; t < VOCAB; t++)
        if (logits[t] > logits[best]) best = t;
    for (int t = 0; t < VOCAB; t++) {
        const bool is_near = near[t / 32] >> t % 32 & 1;
        count += is_near;
        if (is_near) assert_true(logits[t] > logits[best] - 0.5 * fabs(logits[best]));
    }
    assert_true(near[drafted / 32] >> drafted % 32 & 1);
    assert_true(count <= VOCAB / 4);
    if (logits[drafted] < logits[best] - 1e-3)
        fail_msg("row %u: drafted %d (%g), expected %d (%g)", row, drafted, logits[drafted], best, logits[best]);
}

/* Positions that draw, and the tokens drawn there: each is followed by the text's token for later rows. */
static void check_text(struct eng_session *session, const int32_t *text, uint32_t count, const struct golden_row *rows,
                       uint32_t row_count, const struct golden_drafts *drafts)
{
    static float hidden[MTP_CONTEXT][HIDDEN];
    struct mtp_layer layer = {0};
    uint32_t row = 0;
    find_hidden(session, text, count, hidden);
    for (uint32_t i = 0; i < count; i++) {
        double logits[VOCAB];
        if (row < row_count && rows[row].position == i) {
            struct mtp_layer copy = layer;
            mtp_predict(&copy, hidden[i], rows[row].token, logits);
            check_row(drafts, row++, logits);
        }
        if (i + 1 < count) mtp_predict(&layer, hidden[i], text[i + 1], logits);
    }
    assert_int_equal(row, row_count);
}

TEST(golden_drafts_are_those_of_plain_code)
{
    build(1);
    CHECK(eng_open(path, NULL, &engine, &error));
    const struct golden_cases *cases = &engine->file.golden_plans;
    const struct engine_golden *prompt = &engine->file.golden;
    struct eng_session *session = open_session(backend_for(engine));
    assert_non_null(cases->drafts.tokens);
    for (uint32_t s = 0, first = 0, end; s < cases->sequence_count; s++, first = end) {
        for (end = first; end < cases->row_count && cases->rows[end].sequence == s;) end++;
        const struct golden_drafts drafts = {cases->drafts.tokens + first,
                                             cases->drafts.near + first * plan_allowed_words(VOCAB)};
        assert_true(end > first);
        check_text(session, golden_tokens(cases, s), cases->sequences[s].token_count, cases->rows + first, end - first,
                   &drafts);
    }
    struct golden_row rows[8];
    assert_in_range(prompt->token_count, 1, 8);
    for (uint32_t t = 0; t < prompt->token_count; t++)
        rows[t] = (struct golden_row){.position = prompt->prompt_count - 1 + t, .token = prompt->tokens[t]};
    check_text(session, prompt->prompt, prompt->prompt_count + prompt->token_count, rows, prompt->token_count,
               &prompt->drafts);
    eng_session_destroy(&session);
    eng_close(&engine);
}

/* ---- what differs ---- */

/* The layer that drafts sees next to nothing of the token that follows: a plan that is legal, draws the right tokens, and drafts others. */
static void damage(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->header.launch_count; i++) {
        const struct plan_launch *launch = &plan->launches[i];
        if (launch->op != OP_RMS_NORM || launch->layer != LAYER) continue;
        for (uint32_t k = 0; k < launch->param_count; k++) {
            struct plan_param *param = (struct plan_param *)&plan->params[launch->first_param + k];
            if (param->id == op_rms_norm.params[RMS_NORM_EPS_BITS].id) param->value = float_to_bits(1e30f);
        }
        return;
    }
    fail_msg("the plan has no norm in its last layer");
}

static void expect_named(const struct status *status, size_t plan)
{
    char name[GOLDEN_NAME_BYTES];
    golden_plan_name(&engine->file.plans[plan].header, name);
    if (!strstr(status->message, name) || !strstr(status->message, "): drafted token: expected id "))
        fail_msg("expected '%s' and its drafts, found '%s'", name, status->message);
}

TEST(a_plan_that_drafts_wrongly_is_not_written)
{
    size_t plans = 1;
    build(1);
    for (size_t wrong = 1; wrong <= plans; wrong++) { /* plan 0 is what others are compared with; `plans`: none */
        struct golden_outputs outputs;
        struct status status = {0};
        CHECK(eng_open(path, NULL, &engine, &error));
        struct engine *file = &engine->file;
        struct team *team = team_create(2, &status);
        assert_non_null(team);
        plans = file->plan_count;
        if (wrong < plans) damage(&file->plans[wrong]);
        const bool ok = compute_golden(&file->manifest, file->plans, plans, file->weights, team, CPU_PORTABLE, NULL,
                                       &outputs, &status);
        assert_int_equal(ok, wrong == plans);
        if (ok)
            golden_outputs_free(&outputs);
        else
            expect_named(&status, wrong);
        team_destroy(team);
        eng_close(&engine);
    }
    assert_true(plans > 4);
}

static enum eng_status selftest(const struct backend_type *type, struct eng_selftest_result *result)
{
    struct eng_session *session = open_session(type ? type : backend_for(engine));
    eng_selftest_result_init(result);
    const enum eng_status status = eng_selftest(session, result, &error);
    eng_session_destroy(&session);
    return status;
}

TEST(a_self_test_finds_a_plan_that_drafts_wrongly)
{
    struct eng_selftest_result result;
    size_t plans = 1;
    build(1);
    for (size_t wrong = 0; wrong <= plans; wrong++) {
        CHECK(eng_open(path, NULL, &engine, &error));
        plans = engine->file.plan_count;
        if (wrong < plans) damage(&engine->file.plans[wrong]);
        const enum eng_status found = selftest(NULL, &result);
        assert_int_equal(found, wrong == plans ? ENG_OK : ENG_INTERNAL);
        if (wrong < plans) {
            struct status status = {0};
            status_fail(&status, STATUS_INTERNAL, "%s", error.message);
            expect_named(&status, wrong);
        }
        eng_close(&engine);
    }
}

/* A device that runs steps late, and ranks. */
TEST(self_tests_pass_elsewhere)
{
    struct eng_selftest_result result;
    for (uint32_t gpus = 1; gpus <= 2; gpus++) {
        build(gpus);
        CHECK(eng_open(path, NULL, &engine, &error));
        CHECK(selftest(gpus == 1 ? &test_backend : NULL, &result));
        assert_int_equal(result.left_out, 0);
        assert_int_equal(result.plans, engine->file.plan_count);
        eng_close(&engine);
    }
}

/* Another draft than the file's is a tie where rounding may have chosen it. */
TEST(near_drafts_are_ties)
{
    struct eng_selftest_result plain, result;
    build(1);
    CHECK(eng_open(path, NULL, &engine, &error));
    CHECK(selftest(NULL, &plain));
    const struct golden_drafts *drafts = &engine->file.golden_plans.drafts;
    int32_t *token = (int32_t *)&drafts->tokens[0];
    uint32_t *near = (uint32_t *)drafts->near;
    const int32_t other = (*token + 1) % VOCAB;
    near[other / 32] |= 1u << other % 32;
    const int32_t own = *token;
    *token = other;
    CHECK(selftest(NULL, &result));
    assert_true(result.ties > plain.ties && result.tokens == plain.tokens);
    near[own / 32] &= ~(1u << own % 32);
    assert_int_equal(selftest(NULL, &result), ENG_INTERNAL);
    assert_non_null(strstr(error.message, "): drafted token: expected id "));
    eng_close(&engine);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
