/* SPDX-License-Identifier: Apache-2.0 */
/* eng_selftest: replays the golden outputs of every plan, each forced, in raw slots of the session. */
#include <stdlib.h>
#include <string.h>

#include "runtime/session/session.h"

struct selftest {
    struct eng_session *session;
    int32_t *slots; /* [slots]: slots of the session that the walk's slots are; SESSION_NO_SLOT: not taken yet */
    int32_t drawn;  /* by the last prefill step */
    struct replay_part *parts; /* [slots] */
};

/* ---- the session as a machine that replays golden outputs ---- */

static uint32_t rewind_slot(void *context, uint32_t slot, uint32_t position)
{
    struct selftest *test = context;
    return slots_truncate(test->session, test->slots[slot], position);
}

static bool reserve(void *context, uint32_t slot, uint32_t tokens)
{
    struct selftest *test = context;
    int32_t *own = &test->slots[slot];
    bool is_new = *own == SESSION_NO_SLOT;
    if (is_new) *own = slots_take(test->session, SLOT_RAW);
    if (*own == SESSION_NO_SLOT) return false;
    if (slots_reserve(test->session, *own, tokens)) return true;
    if (is_new) {
        slots_give_back(test->session, *own);
        *own = SESSION_NO_SLOT;
    }
    return false;
}

static void note_tokens(struct eng_session *session, int32_t slot, const int32_t *tokens, uint32_t count)
{
    memcpy(session->slots[slot].history + session->slots[slot].position, tokens, count * sizeof *tokens);
    slots_mark_seen(session, slot, tokens, count);
}

static bool append(void *context, uint32_t slot, const int32_t *tokens, uint32_t position, uint32_t count,
                   struct status *status)
{
    (void)position; /* the session knows it */
    struct selftest *test = context;
    struct eng_session *session = test->session;
    const int32_t own = test->slots[slot];
    note_tokens(session, own, tokens, count);
    for (uint32_t done = 0; done < count;) {
        size_t plan;
        uint32_t chunk = replay_chunk(session, count - done, &plan);
        const struct replay_part part = {.slot = own,
                                         .tokens = tokens + done,
                                         .count = chunk,
                                         .following = tokens[done + chunk]};
        if (!replay_prefill(session, &part, plan, NULL, status)) return false;
        done += chunk;
    }
    return true;
}

static const int32_t *decode(struct selftest *test, struct session_plan *plan, const struct golden_step *step,
                             const float **logits, struct status *status)
{
    struct eng_session *session = test->session;
    for (uint32_t i = 0; i < step->count; i++) {
        plan->slots[i] = test->slots[step->slots[i]];
        plan->tokens[i] = step->tokens[i];
        note_tokens(session, plan->slots[i], &step->tokens[i], 1);
    }
    if (!replay_submit_decode(session, plan, step->count, status)) return NULL;
    const int32_t *drawn = replay_wait(session, step->count, status);
    if (!drawn || !(*logits = replay_logits(session, 0, step->count, status))) return NULL;
    for (uint32_t i = 0; i < step->count; i++) replay_accept(session, test->slots[step->slots[i]], drawn[i]);
    return drawn;
}

static const int32_t *mixed(struct selftest *test, struct session_plan *plan, const struct golden_step *step,
                            const float **logits, struct status *status)
{
    struct eng_session *session = test->session;
    uint32_t count = 0;
    for (uint32_t i = 0; i < step->count; i++) {
        const bool is_new = i == 0 || step->slots[i] != step->slots[i - 1];
        if (is_new)
            test->parts[count++] =
                (struct replay_part){.slot = test->slots[step->slots[i]], .tokens = &step->tokens[i], .draws = true};
        test->parts[count - 1].count++;
    }
    for (uint32_t p = 0; p < count; p++)
        note_tokens(session, test->parts[p].slot, test->parts[p].tokens, test->parts[p].count);
    const int32_t *drawn = replay_mixed(session, plan, test->parts, count, status);
    return drawn && (*logits = replay_logits(session, 0, count, status)) ? drawn : NULL;
}

static const int32_t *prefill(struct selftest *test, size_t plan, const struct golden_step *step, const float **logits,
                              struct status *status)
{
    struct eng_session *session = test->session;
    const int32_t own = test->slots[step->slots[0]];
    note_tokens(session, own, step->tokens, step->count);
    const struct replay_part part = {.slot = own, .tokens = step->tokens, .count = step->count, .draws = true};
    if (!replay_prefill(session, &part, plan, &test->drawn, status)) return NULL;
    return (*logits = replay_logits(session, 0, 1, status)) ? &test->drawn : NULL;
}

static bool run_plan(void *context, size_t plan, const struct golden_step *step, struct golden_found *found,
                     struct status *status)
{
    struct selftest *test = context;
    const struct eng_session *session = test->session;
    struct session_plan *own = &test->session->plans[plan];
    found->drawn = plan < session->decode_plans  ? decode(test, own, step, &found->logits, status)
                   : plan < session->prefill_end ? prefill(test, plan, step, &found->logits, status)
                                                 : mixed(test, own, step, &found->logits, status);
    found->drafted = session->backend->drafted;
    return found->drawn != NULL;
}

/* ---- all of it ---- */

static bool walk(struct selftest *test, const struct golden_cases *cases, struct status *status)
{
    struct eng_session *session = test->session;
    const struct engine *file = &session->engine->file;
    const uint32_t slots = (uint32_t)session->geometry->slots;
    const struct golden_machine machine =
        {.context = test, .slots = slots, .rewind = rewind_slot, .reserve = reserve, .append = append, .run = run_plan};
    bool differs;
    for (uint32_t s = 0; s < slots; s++) test->slots[s] = SESSION_NO_SLOT;
    bool ok = golden_walk(cases, file->plans, file->plan_count, NULL, &machine, session->selftest, &differs, status);
    for (uint32_t s = 0; s < slots; s++)
        if (test->slots[s] != SESSION_NO_SLOT) slots_give_back(session, test->slots[s]);
    if (ok) return true;
    if (differs) {
        const struct status found = *status;
        status_fail(status, found.code,
                    "%s; this machine's results differ from those of the machine that built the engine: rebuild it "
                    "here, and report a failure that remains",
                    found.message);
    }
    return status_prefix(status, "selftest");
}

static bool run(struct eng_session *session, struct status *status)
{
    const struct engine *file = &session->engine->file;
    struct selftest test = {.session = session};
    struct golden_cases prompt = {0};
    memset(session->selftest, 0, session->plan_count * sizeof *session->selftest);
    test.slots = calloc(session->geometry->slots, sizeof *test.slots);
    test.parts = calloc(session->geometry->slots, sizeof *test.parts);
    bool ok = (test.slots && test.parts) || status_fail(status, STATUS_MACHINE, "out of memory");
    session->fixes_routes = true;
    ok = ok && (file->golden_plans.case_count == 0 || walk(&test, &file->golden_plans, status));
    if (ok && file->golden.token_count > 0)
        ok = golden_cases_of_prompt(&file->golden, file->plans, file->plan_count, &prompt, status) &&
             walk(&test, &prompt, status);
    session->fixes_routes = false;
    golden_cases_free(&prompt);
    free(test.slots);
    free(test.parts);
    return ok;
}

static struct eng_selftest_result sum_up(const struct eng_session *session)
{
    const struct engine *file = &session->engine->file;
    struct eng_selftest_result sum = {.tolerance = file->golden.tolerance};
    if (file->golden_plans.case_count > 0 && file->golden_plans.tolerance > sum.tolerance)
        sum.tolerance = file->golden_plans.tolerance;
    for (size_t p = 0; p < session->plan_count; p++) {
        const struct golden_result *one = &session->selftest[p];
        sum.plans += one->rows > 0;
        sum.tokens += one->rows;
        sum.ties += one->ties;
        sum.left_out += one->left_out;
        if (!(one->largest_error <= sum.largest_error)) sum.largest_error = one->largest_error;
    }
    return sum;
}

enum eng_status eng_selftest(struct eng_session *session, struct eng_selftest_result *result, struct eng_error *error)
{
    struct status status = {0};
    struct eng_selftest_result own = {0};
    if (!report_not_null(session, "eng_selftest", "session", &status)) return report_status(&status, error);
    const struct engine *file = &session->engine->file;
    /* Check the caller's struct before the work, fill it afterwards. */
    if (result && !report_write_facts(result, &own, sizeof own, "eng_selftest_result", &status))
        return report_status(&status, error);
    if (!file->golden.token_count && !file->golden_plans.case_count) {
        status_fail(&status, STATUS_BAD_INPUT, "selftest: the engine has no golden outputs");
        return report_status(&status, error);
    }
    bool ok = session_usable(session, &status) && scheduler_drain(session, &status) && run(session, &status);
    own = sum_up(session);
    if (result) report_write_facts(result, &own, sizeof own, "eng_selftest_result", &status);
    return ok ? report_ok(error) : report_status(&status, error);
}

enum eng_status eng_selftest_plan(const struct eng_session *session, size_t index, struct eng_selftest_plan *plan,
                                  struct eng_error *error)
{
    struct status status = {0};
    if (!report_not_null(session, "eng_selftest_plan", "session", &status) ||
        !report_not_null(plan, "eng_selftest_plan", "plan", &status))
        return report_status(&status, error);
    if (index >= session->plan_count) {
        status_fail(&status, STATUS_USAGE, "eng_selftest_plan: index is %zu, expected 0 to %zu", index,
                    session->plan_count - 1);
        return report_status(&status, error);
    }
    const struct backend *backend = session->backend;
    const struct plan *file_plan = &session->engine->file.plans[index];
    const struct golden_result *found = &session->selftest[index];
    const struct eng_selftest_plan own = {
        .is_prefill = file_plan->header.kind == PLAN_PREFILL,
        .kind = plan_kind_name(file_plan->header.kind),
        .rows = file_plan->header.rows,
        .calls_libraries = backend->type->source && backend->type->source(backend, index) != file_plan,
        .tokens = found->rows,
        .ties = found->ties,
        .left_out = found->left_out,
        .longest_context = found->longest,
        .largest_error = found->largest_error,
    };
    return report_result(report_write_facts(plan, &own, sizeof own, "eng_selftest_plan", &status), &status, error);
}
