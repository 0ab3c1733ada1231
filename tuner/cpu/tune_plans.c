/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cpu/tune_plans.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul.h"

enum { MAX_SITES = 64 };

struct problem {
    int64_t params[MATMUL_PARAMS]; /* parameters of the first launch that has it */
    char key[TUNING_KEY_BYTES];
    const void *weights[MAX_SITES], *biases[MAX_SITES];
    int site_count;
};

/* Matmuls with blocks have no sites and keep the default tunables: they are small.
 * Launches of other plans with the same key read the same matrices, so sites are taken from one plan only. */
static void add_site(struct problem *problem, const struct plan *plan, const struct plan_launch *launch,
                     const int64_t *params, const uint8_t *weights)
{
    if (problem->site_count == MAX_SITES || !weights || params[MATMUL_BLOCK_N] > 0) return;
    const struct plan_operand *operands = plan->operands + launch->first_operand;
    const int bias = op_operand_position(&op_matmul, TARGET_CPU, params, MATMUL_BIAS);
    problem->weights[problem->site_count] = weights + operands[MATMUL_W].offset;
    problem->biases[problem->site_count] = bias >= 0 ? weights + operands[bias].offset : NULL;
    problem->site_count++;
}

static struct problem *find_problem(struct problem *problems, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(problems[i].key, key) == 0) return &problems[i];
    return NULL;
}

/* Collects the unique problems of all plans in order, and sets every launch's tactic to its problem's index. */
static bool collect(struct plan *plans, size_t plan_count, const uint8_t *weights, const struct machine *machine,
                    struct problem **problems, size_t *count, struct status *status)
{
    size_t capacity = 0;
    for (size_t p = 0; p < plan_count; p++) {
        size_t first_of_plan = *count;
        for (uint32_t n = 0; n < plans[p].header.launch_count; n++) {
            struct plan_launch *launch = (struct plan_launch *)&plans[p].launches[n]; /* the builder owns its plans */
            if (launch->op != OP_MATMUL) continue;
            char key[TUNING_KEY_BYTES];
            int64_t params[MATMUL_PARAMS];
            if (!op_params(&plans[p], launch, MATMUL_TUNABLES, params, status)) return false;
            matmul_tuning_key(params, machine, key);
            struct problem *problem = find_problem(*problems, *count, key);
            if (!problem) {
                if (*count == capacity) {
                    capacity = capacity ? capacity * 2 : 32;
                    struct problem *larger = realloc(*problems, capacity * sizeof *larger);
                    if (!larger) return status_fail(status, STATUS_MACHINE, "out of memory while tuning");
                    *problems = larger;
                }
                problem = &(*problems)[(*count)++];
                memset(problem, 0, sizeof *problem);
                memcpy(problem->params, params, sizeof params);
                memcpy(problem->key, key, sizeof key);
            }
            if ((size_t)(problem - *problems) >= first_of_plan) add_site(problem, &plans[p], launch, params, weights);
            launch->tactic = (uint32_t)(problem - *problems);
        }
    }
    return true;
}

/* The cached record that answers the problem at this level; NULL: none. */
static const struct tuning_record *find_answer(const struct problem *problem, enum tune_level level,
                                               const struct tactics *tactics)
{
    const struct tuning_record *known = tactics_answer(tactics, problem->key, level);
    int64_t scratch[MATMUL_PARAMS];
    memcpy(scratch, problem->params, sizeof scratch);
    return known && matmul_apply_record(known, scratch) ? known : NULL;
}

static bool is_measured(const struct problem *problem, enum tune_level level)
{
    return level != TUNE_OFF && problem->site_count > 0;
}

/* Puts the tunables of the record into the parameters of a launch of a plan that the builder owns. */
static bool apply_record(const struct plan *plan, const struct plan_launch *launch, const struct tuning_record *record,
                         struct status *status)
{
    struct plan_param *list = (struct plan_param *)(uintptr_t)plan->params + launch->first_param;
    struct plan_param as_listed[PLAN_MAX_PARAMS];
    int64_t params[MATMUL_PARAMS];
    if (!op_params(plan, launch, MATMUL_TUNABLES, params, status)) return false;
    const int count = op_list_params(&op_matmul, params, MATMUL_TUNABLES, true, as_listed);
    if (launch->param_count != count || !matmul_apply_record(record, params))
        return status_fail(status, STATUS_INTERNAL, "tuning record '%s' does not fit its matmul", record->key);
    op_list_params(&op_matmul, params, MATMUL_TUNABLES, true, list);
    return true;
}

static struct matmul_problem describe(const struct problem *problem)
{
    return (struct matmul_problem){problem->params, problem->weights, problem->biases, problem->site_count};
}

/* Estimates the microseconds of each problem, at least 1, as units of progress. Measures the ceilings first if a
 * problem is to be measured. */
static bool expect(const struct problem *problems, size_t count, struct machine *machine, struct team *team,
                   enum tune_level level, const struct tactics *tactics, uint64_t *expected_us, uint64_t *total_us,
                   struct status *status)
{
    *total_us = 0;
    for (size_t i = 0; i < count; i++) {
        expected_us[i] = 1;
        if (is_measured(&problems[i], level) && !find_answer(&problems[i], level, tactics)) {
            struct matmul_problem described = describe(&problems[i]);
            if (machine->read_gb_s <= 0 && !machine_probe(machine, team, status)) return false;
            expected_us[i] += (uint64_t)tune_matmul_expected_us(&described, machine, level);
        }
        *total_us += expected_us[i];
    }
    return true;
}

static bool solve(const struct problem *problem, const struct machine *machine, struct team *team,
                  enum tune_level level, struct tactics *tactics, struct status *status)
{
    struct tuning_record *record = &tactics->records[tactics->count];
    const struct tuning_record *known = find_answer(problem, level, tactics);
    if (known) {
        *record = *known;
        tactics->cached++;
    } else {
        bool measure = is_measured(problem, level);
        struct matmul_problem described = describe(problem);
        if (!tune_matmul(&described, machine, team, level, record, status)) return false;
        if (measure) {
            tactics->measured++;
            tactics_save(tactics, record);
        }
    }
    tactics->count++;
    return true;
}

bool tune_plans(struct plan *plans, size_t plan_count, const uint8_t *weights, struct machine *machine,
                struct team *team, enum tune_level level, struct tuning_cache *cache, struct progress *progress,
                struct tactics *tactics, struct status *status)
{
    bool ok = false;
    struct problem *problems = NULL;
    uint64_t *expected_us = NULL, total_us, done_us = 0;
    size_t count = 0;
    *tactics = (struct tactics){.cache = cache};
    if (!collect(plans, plan_count, weights, machine, &problems, &count, status)) goto done;
    expected_us = calloc(count + 1, sizeof *expected_us);
    if (!expected_us || !tactics_reserve(tactics, count, status)) {
        status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        goto done;
    }
    if (!expect(problems, count, machine, team, level, tactics, expected_us, &total_us, status)) goto done;
    for (size_t i = 0; i < count; i++) {
        if (!solve(&problems[i], machine, team, level, tactics, status)) goto done;
        char best[96];
        const struct tuning_record *record = &tactics->records[i];
        snprintf(best, sizeof best, "%zu/%zu best %.1f us", i + 1, count, record->median_us);
        done_us += expected_us[i];
        progress_update(progress, done_us, total_us, best);
    }
    for (size_t p = 0; p < plan_count; p++)
        for (uint32_t n = 0; n < plans[p].header.launch_count; n++) {
            const struct plan_launch *launch = &plans[p].launches[n];
            if (launch->op != OP_MATMUL) continue;
            if (!apply_record(&plans[p], launch, &tactics->records[launch->tactic], status)) goto done;
        }
    ok = true;
done:
    free(expected_us);
    free(problems);
    if (!ok) tactics_free(tactics);
    return ok;
}
