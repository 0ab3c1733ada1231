/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/plan_inputs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/op/op.h"
#include "kernels/sample/sample.h"

/* STATE fields are listed after the STEP fields. */
enum { FIRST_STATE_FIELD = STEP_FIELD_COUNT, FIELD_COUNT = STEP_FIELD_COUNT + STATE_FIELD_COUNT };

static const char *const field_names[FIELD_COUNT] = {
    "STEP counts",    "STEP tokens",      "STEP slots",     "STEP positions",  "STEP out rows",     "STEP next tokens",
    "STEP logits",    "STEP route seeds", "STEP hidden",    "STEP following",  "STEP drafted",      "STATE page table",
    "STATE samplers", "STATE seen",       "STATE rope set", "STATE recurrent", "STATE adjustments", "STATE allowed",
};

static bool check_field(const struct plan_operand *operand, unsigned field, const struct plan_field *fields,
                        const char *where, struct status *status)
{
    unsigned space = field < FIRST_STATE_FIELD ? SPACE_STEP : SPACE_STATE;
    if (operand->space == space && operand->offset == fields[field].offset && operand->bytes <= fields[field].bytes)
        return true;
    return status_fail(status, STATUS_CORRUPT,
                       "%s: expected the field '%s' (%s offset %" PRIu64 ", at most %" PRIu64
                       " bytes), found %s offset %" PRIu64 ", %" PRIu64 " bytes",
                       where, field_names[field], plan_space_name(space), fields[field].offset, fields[field].bytes,
                       plan_space_name(operand->space), operand->offset, operand->bytes);
}

/* The one field that contains an operand in STEP or STATE. */
static int containing_field(const struct plan_operand *operand, const struct plan_field *fields)
{
    int first = operand->space == SPACE_STEP ? 0 : FIRST_STATE_FIELD;
    int end = operand->space == SPACE_STEP ? FIRST_STATE_FIELD : FIELD_COUNT;
    for (int field = first; field < end; field++)
        if (operand->offset >= fields[field].offset && operand->offset - fields[field].offset <= fields[field].bytes &&
            operand->bytes <= fields[field].bytes - (operand->offset - fields[field].offset))
            return field;
    return -1;
}

/* All fields but floats that nothing uses as an index are written only by an op whose schema says so. */
static bool may_write(unsigned id, int field)
{
    const struct op_descriptor *op = op_find(id);
    const bool step = field < FIRST_STATE_FIELD;
    const int number = step ? field : field - FIRST_STATE_FIELD;
    if (step && plan_step_is_result(number)) return true;
    for (int i = 0; op && i < op->operand_count; i++) {
        const struct op_operand *operand = &op->operands[i];
        if (operand->role == (step ? ROLE_STEP : ROLE_STATE) && operand->field == number &&
            op_operand_access(operand) & ACCESS_WRITE)
            return true;
    }
    return false;
}

static bool verify_launch(const struct plan *plan, uint32_t index, const struct plan_field *fields, const char *name,
                          struct status *status)
{
    const struct plan_launch *launch = &plan->launches[index];
    char where[160];
    for (unsigned i = 0; i < launch->operand_count; i++) {
        const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
        if (operand->space != SPACE_STEP && operand->space != SPACE_STATE) continue;
        snprintf(where, sizeof where, "%s: launch %" PRIu32 " (%s): operand %u", name, index, plan_op_name(launch->op),
                 i);
        int field = containing_field(operand, fields);
        if (field < 0)
            return status_fail(status, STATUS_CORRUPT, "%s: %s offset %" PRIu64 ", %" PRIu64 " bytes is no field",
                               where, plan_space_name(operand->space), operand->offset, operand->bytes);
        if ((operand->access & ACCESS_WRITE) && !may_write(launch->op, field))
            return status_fail(status, STATUS_CORRUPT, "%s: may not write to '%s'", where, field_names[field]);
    }
    snprintf(where, sizeof where, "%s: launch %" PRIu32 " (%s): operand 0", name, index, plan_op_name(launch->op));
    return check_field(&plan->operands[launch->first_operand + OP_OPERAND_COUNTS], STEP_COUNTS, fields, where, status);
}

/* Steps are queued ahead on a device: a decode plan must leave the inputs of the next step in the step block. */
static bool verify_feedback(const struct plan *plan, const struct plan_field *fields, const char *name,
                            struct status *status)
{
    bool tokens = false, positions = false;
    for (uint32_t l = 0; l < plan->header.launch_count; l++) {
        const struct plan_launch *launch = &plan->launches[l];
        for (uint32_t i = 0; i < launch->operand_count; i++) {
            const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
            if (operand->space != SPACE_STEP || !(operand->access & ACCESS_WRITE)) continue;
            tokens = tokens ||
                     (operand->offset == fields[STEP_TOKENS].offset && operand->bytes == fields[STEP_TOKENS].bytes);
            positions = positions || (operand->offset == fields[STEP_POSITIONS].offset &&
                                      operand->bytes == fields[STEP_POSITIONS].bytes);
        }
    }
    if (tokens && positions) return true;
    return status_fail(status, STATUS_CORRUPT, "%s: expected a launch that writes the next step's %s, found none", name,
                       tokens ? "positions" : "tokens");
}

/* Only a verification step may have several out rows of a slot, which other samplers would write to at the same time. */
static bool verify_sampler(const struct plan *plan, const struct plan_launch *launch, const char *name,
                           struct status *status)
{
    const int64_t expected = plan->header.kind == PLAN_VERIFY;
    int64_t found = op_param_absent(&op_sample.params[SAMPLE_VERIFIES]);
    for (uint32_t i = 0; i < launch->param_count; i++)
        if (plan->params[launch->first_param + i].id == op_sample.params[SAMPLE_VERIFIES].id)
            found = plan->params[launch->first_param + i].value;
    return launch->op != OP_SAMPLE || found == expected ||
           status_fail(status, STATUS_CORRUPT, "%s: sample: parameter verifies is %" PRId64 ", expected %" PRId64, name,
                       found, expected);
}

bool plan_inputs_verify(const struct plan *plan, enum engine_target target, const struct plan_geometry *geometry,
                        const char *name, struct status *status)
{
    struct plan_field fields[FIELD_COUNT];
    memcpy(fields, plan->step, sizeof plan->step);
    memcpy(fields + FIRST_STATE_FIELD, geometry->state, sizeof geometry->state);
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (!verify_launch(plan, i, fields, name, status) || !verify_sampler(plan, &plan->launches[i], name, status))
            return false;
    return target == TARGET_CPU || plan->header.kind != PLAN_DECODE || verify_feedback(plan, fields, name, status);
}
