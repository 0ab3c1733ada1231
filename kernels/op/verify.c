/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a launch of a plan against its op's schema. */
#include <inttypes.h>

#include "formats/base/checked.h"
#include "kernels/op/op.h"

/* The header of the COMM space is one whole operand, and no other operand overlaps it: a rank that wrote there could
 * turn the others' exchange to any address. */
static bool verify_comm(const struct op_demand *demand, const struct plan_operand *operand, struct status *status)
{
    const uint64_t header_bytes = sizeof(struct comm_header);
    if (demand->field ? operand->offset == 0 && operand->bytes == header_bytes : operand->offset >= header_bytes)
        return true;
    return status_fail(status, STATUS_CORRUPT,
                       "operand %s at offset %" PRIu64 " of comm has %" PRIu64 " bytes, expected %s header of %" PRIu64
                       " bytes",
                       demand->name, operand->offset, operand->bytes, demand->field ? "the whole" : "a place after the",
                       header_bytes);
}

/* The page table of one page group. An op that reads KV pages must see no more tokens than the group's pages hold. */
static bool verify_page_table(const struct op_descriptor *op, const int64_t *params,
                              const struct plan_geometry *geometry, const struct plan_operand *operand,
                              struct status *status)
{
    const uint64_t first = geometry->state[STATE_PAGE_TABLE].offset, stride = plan_page_table_stride(geometry);
    const uint64_t group = operand->offset >= first && stride ? (operand->offset - first) / stride : UINT64_MAX;
    if (group >= plan_page_groups(geometry) || operand->offset != first + group * stride)
        return status_fail(status, STATUS_CORRUPT,
                           "operand page_table at offset %" PRIu64
                           " of state is no table of the %u page groups, which begin at %" PRIu64 ", %" PRIu64
                           " bytes apart",
                           operand->offset, plan_page_groups(geometry), first, stride);
    const uint64_t held = geometry->page_window[group], seen = op->window ? (uint64_t)params[op->window] : 0;
    if (!op->window || !held || (seen && seen <= held)) return true;
    return status_fail(status, STATUS_CORRUPT,
                       "parameter window is %" PRIu64 " (0: all tokens), but the pages of page group %" PRIu64
                       " hold a window of %" PRIu64,
                       seen, group, held);
}

/* Where an operand may lie inside the STEP and STATE spaces: a pinned operand in its field, and whatever an op writes
 * in a field that is output, so that no plan can overwrite the indices that a later op trusts. */
static bool verify_fields(const struct plan *plan, const struct plan_geometry *geometry, const struct op_demand *demand,
                          const struct plan_operand *operand, struct status *status)
{
    bool step = operand->space == SPACE_STEP;
    if (operand->space == SPACE_COMM) return verify_comm(demand, operand, status);
    if (!step && operand->space != SPACE_STATE) return true;
    const struct plan_field *fields = step ? plan->step : geometry->state;
    const int count = step ? (int)STEP_FIELD_COUNT : (int)STATE_FIELD_COUNT;
    if (!demand->field && !(operand->access & ACCESS_WRITE)) return true;
    const bool may_begin_inside =
        !demand->field || (!step && (demand->field - 1 == STATE_PAGE_TABLE || demand->field - 1 == STATE_RECURRENT));
    for (int i = 0; i < count; i++) {
        /* Without a field: nothing that a later op reads as an index. */
        if (demand->field ? i != demand->field - 1 : !step || !plan_step_is_result(i)) continue;
        if (operand->offset == fields[i].offset && operand->bytes <= fields[i].bytes) return true;
        /* Logits of some rows, the table of a page group, the state of a layer. */
        if (may_begin_inside && operand->offset >= fields[i].offset &&
            checked_range(operand->offset - fields[i].offset, operand->bytes, fields[i].bytes))
            return true;
    }
    return status_fail(status, STATUS_CORRUPT,
                       "operand %s at offset %" PRIu64 " of %s (%" PRIu64 " bytes) is outside the field it belongs to",
                       demand->name, operand->offset, plan_space_name(operand->space), operand->bytes);
}

static bool verify_operand(const struct plan *plan, const struct plan_geometry *geometry,
                           const struct op_demand *demand, const struct plan_operand *operand, struct status *status)
{
    if (operand->space >= SPACE_COUNT || !(demand->space_mask & (1u << operand->space)))
        return status_fail(status, STATUS_CORRUPT, "operand %s lies in the %s space, which this op does not allow",
                           demand->name, plan_space_name(operand->space));
    if (operand->access != demand->access)
        return status_fail(status, STATUS_CORRUPT, "operand %s has access %u, expected %u", demand->name,
                           (unsigned)operand->access, (unsigned)demand->access);
    if (operand->bytes < demand->bytes)
        return status_fail(status, STATUS_CORRUPT, "operand %s has %" PRIu64 " bytes, expected at least %" PRIu64,
                           demand->name, operand->bytes, demand->bytes);
    if (operand->offset % PLAN_ALIGNMENT)
        return status_fail(status, STATUS_CORRUPT,
                           "operand %s begins at offset %" PRIu64 ", which is not a multiple of %d", demand->name,
                           operand->offset, (int)PLAN_ALIGNMENT);
    return verify_fields(plan, geometry, demand, operand, status);
}

/* Two operands of one launch, one of them written, are disjoint or begin at the same place. */
static bool verify_overlap(const struct op_demand *demands, const struct plan_operand *operands, int count,
                           struct status *status)
{
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            const struct plan_operand *a = &operands[i], *b = &operands[j];
            if (a->space != b->space || !((a->access | b->access) & ACCESS_WRITE) || a->offset == b->offset) continue;
            bool apart = a->offset < b->offset ? b->offset - a->offset >= a->bytes : a->offset - b->offset >= b->bytes;
            if (!apart)
                return status_fail(status, STATUS_CORRUPT, "operands %s and %s overlap in part", demands[j].name,
                                   demands[i].name);
        }
    }
    return true;
}

/* A library's call may have a workspace after the op's operands: of any size, which the library checks. */
static int add_call_workspace(const struct plan_launch *launch, struct op_demand *demands, int count)
{
    if (!(launch->attributes & LAUNCH_LIBRARY) || launch->operand_count != count + 1 || count == PLAN_MAX_OPERANDS)
        return count;
    demands[count] = (struct op_demand){.name = "workspace",
                                        .space_mask = 1u << SPACE_ARENA,
                                        .access = ACCESS_READ_WRITE,
                                        .bytes = 1};
    return count + 1;
}

static bool verify_launch(const struct plan *plan, const struct plan_launch *launch, enum engine_target target,
                          const struct plan_geometry *geometry, struct status *status)
{
    const struct op_descriptor *op = op_of_launch(launch);
    if (!op) return status_fail(status, STATUS_CORRUPT, "op %u is unknown", (unsigned)launch->op);
    if (!checked_range(launch->first_param, launch->param_count, plan->header.param_count) ||
        !checked_range(launch->first_operand, launch->operand_count, plan->header.operand_count))
        return status_fail(status, STATUS_CORRUPT, "%s refers to parameters or operands beyond the plan's", op->name);

    int64_t params[PLAN_MAX_PARAMS];
    /* Tunables of device kernels follow the schema's parameters; nothing here depends on them. */
    const int tunables = target == TARGET_CPU ? op->tunable_count : PLAN_MAX_PARAMS - op->param_count;
    if (!op_params(plan, launch, tunables, params, status)) return false;
    struct op_demand demands[PLAN_MAX_OPERANDS] = {{0}};
    int operand_count = 0;
    if (!op_demands(op, target, params, geometry, demands, &operand_count, status)) return false;

    uint32_t rows = params[OP_PARAM_COUNT_INDEX] == 0 ? plan->header.rows : plan->header.out_rows;
    if (params[OP_PARAM_ROWS] != (int64_t)rows)
        return status_fail(status, STATUS_CORRUPT, "%s works on %" PRId64 " rows, but the plan has %" PRIu32, op->name,
                           params[OP_PARAM_ROWS], rows);
    operand_count = add_call_workspace(launch, demands, operand_count);
    if (launch->operand_count != operand_count)
        return status_fail(status, STATUS_CORRUPT, "%s has %u operands, expected %d", op->name,
                           (unsigned)launch->operand_count, operand_count);

    const struct plan_operand *operands = plan->operands + launch->first_operand;
    for (int i = 0; i < operand_count; i++)
        if (!verify_operand(plan, geometry, &demands[i], &operands[i], status) ||
            (operands[i].space == SPACE_STATE && demands[i].field == OP_FIELD(STATE_PAGE_TABLE) &&
             !verify_page_table(op, params, geometry, &operands[i], status)))
            return status_prefix(status, "%s", op->name);
    if (!verify_overlap(demands, operands, operand_count, status)) return status_prefix(status, "%s", op->name);
    return true;
}

bool op_verify(const struct plan *plan, uint32_t launch, enum engine_target target,
               const struct plan_geometry *geometry, const char *name, struct status *status)
{
    if (launch >= plan->header.launch_count)
        return status_fail(status, STATUS_INTERNAL, "%s: there is no launch %" PRIu32, name, launch);
    if (!verify_launch(plan, &plan->launches[launch], target, geometry, status))
        return status_prefix(status, "%s: launch %" PRIu32, name, launch);
    return true;
}
