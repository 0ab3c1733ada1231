/* SPDX-License-Identifier: Apache-2.0 */
/* Facts derived from a schema. */
#include "kernels/op/op.h"

#include <inttypes.h>
#include <stdio.h>

#include "formats/base/checked.h"
#include "formats/encoding/encoding.h"

op_run *op_runner(const struct op_descriptor *op, enum cpu_isa isa)
{
    for (int i = (int)isa; i > CPU_PORTABLE; i--)
        if (op->run[i]) return op->run[i];
    return op->run[CPU_PORTABLE];
}

/* ---- sizes ---- */

bool op_page_table_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                         uint64_t *bytes)
{
    (void)params, (void)target;
    const uint64_t factors[] = {geometry->slots, geometry->pages_per_slot, sizeof(int32_t)};
    return checked_product(factors, 3, bytes);
}

uint64_t op_operand_width(const struct op_operand *operand, const int64_t *params)
{
    if (operand->width) return operand->width(params);
    return operand->columns == OP_NONE ? 1 : (uint64_t)params[operand->columns];
}

bool op_operand_bytes(const struct op_descriptor *op, enum engine_target target, const int64_t *params,
                      const struct plan_geometry *geometry, int operand, uint64_t *bytes)
{
    const struct op_operand *schema = &op->operands[operand];
    if (schema->bytes) return schema->bytes(params, geometry, target, bytes);
    const enum dtype dtype = schema->dtype ? (enum dtype)params[schema->dtype] : (enum dtype)schema->fixed;
    const uint64_t factors[] = {schema->times ? (uint64_t)params[schema->times] : 1,
                                schema->rows == OP_NONE ? 1 : (uint64_t)params[schema->rows],
                                op_operand_width(schema, params),
                                schema->element_bytes ? schema->element_bytes : dtype_bytes(dtype)};
    return checked_product(factors, 4, bytes);
}

/* ---- operands of a launch ---- */

bool op_has_operand(const struct op_descriptor *op, enum engine_target target, const int64_t *params, int operand)
{
    const struct op_operand *schema = &op->operands[operand];
    return (!schema->targets || schema->targets & (1u << target)) && (!schema->present || params[schema->present] != 0);
}

int op_operand_position(const struct op_descriptor *op, enum engine_target target, const int64_t *params, int operand)
{
    int position = 0;
    if (!op_has_operand(op, target, params, operand)) return -1;
    for (int i = 0; i < operand; i++) position += op_has_operand(op, target, params, i);
    return position;
}

int op_operands_present(const struct op_descriptor *op, enum engine_target target, const int64_t *params)
{
    int count = 0;
    for (int i = 0; i < op->operand_count; i++) count += op_has_operand(op, target, params, i);
    return count;
}

uint8_t op_operand_access(const struct op_operand *operand)
{
    if (operand->access) return operand->access;
    switch (operand->role) {
    case ROLE_OUTPUT: return ACCESS_WRITE;
    case ROLE_EXCHANGE:
    case ROLE_WORKSPACE:
    case ROLE_COUNTERS: return ACCESS_READ_WRITE;
    default: return ACCESS_READ;
    }
}

static uint8_t spaces_of(enum op_role role)
{
    switch (role) {
    case ROLE_WEIGHT: return 1u << SPACE_WEIGHTS;
    case ROLE_STEP: return 1u << SPACE_STEP;
    case ROLE_STATE: return 1u << SPACE_STATE;
    case ROLE_KV: return 1u << SPACE_KV;
    case ROLE_HEADER:
    case ROLE_EXCHANGE: return 1u << SPACE_COMM;
    case ROLE_WORKSPACE:
    case ROLE_COUNTERS: return 1u << SPACE_ARENA;
    case ROLE_INPUT:
    case ROLE_OUTPUT: break;
    }
    return 1u << SPACE_ARENA | 1u << SPACE_STEP; /* STEP: plan_step_is_result */
}

static uint8_t field_of(const struct op_operand *operand)
{
    if (operand->role == ROLE_HEADER) return OP_FIELD_COMM_HEADER;
    return operand->role == ROLE_STEP || operand->role == ROLE_STATE ? OP_FIELD(operand->field) : 0;
}

/* ---- facts ---- */

static bool has_role(const struct op_descriptor *op, unsigned roles, uint8_t access)
{
    for (int i = 0; i < op->operand_count; i++)
        if (i != OP_OPERAND_COUNTS && roles & (1u << op->operands[i].role) &&
            op_operand_access(&op->operands[i]) & access)
            return true;
    return false;
}

bool op_is_row_wise(const struct op_descriptor *op)
{
    return op->finds_out_rows || !has_role(op, 1u << ROLE_STEP | 1u << ROLE_STATE | 1u << ROLE_KV, ACCESS_READ_WRITE);
}

bool op_has_effect(const struct op_descriptor *op)
{
    return has_role(op, 1u << ROLE_STEP | 1u << ROLE_STATE | 1u << ROLE_KV, ACCESS_WRITE);
}

bool op_is_of_out_rows(const struct op_descriptor *op) { return op->params[OP_PARAM_COUNT_INDEX].least == 1; }

/* ---- parameters ---- */

enum { REASON_BYTES = 160 };
static _Thread_local char reason[REASON_BYTES];

const char *op_no_kernel(const struct encoding *encoding, const char *param)
{
    snprintf(reason, sizeof reason, "there is no kernel for encoding %s (parameter %s)", encoding->name, param);
    return reason;
}

static const char *param_illegal(const struct op_param *param, int64_t value)
{
    if (param->type == PARAM_ENCODING && encoding_find(value)) return NULL;
    if (param->type == PARAM_CODES && (value == DTYPE_F8_E4M3 || value == DTYPE_I8)) return NULL;
    if (op_param_is_type(param)) {
        const struct encoding *encoding = encoding_find(value);
        if (value == DTYPE_F32 || value == DTYPE_F16 || value == DTYPE_BF16) return NULL;
        if (encoding && param->source == PARAM_OF_DTYPE) return op_no_kernel(encoding, param->name);
        snprintf(reason, sizeof reason, "parameter %s is %" PRId64 " (%s), expected F32, F16 or BF16", param->name,
                 value, value >= 0 && value < DTYPE_COUNT ? dtype_name((enum dtype)value) : "unknown");
        return reason;
    }
    if (value >= param->least && value <= param->most) return NULL;
    if (param->type == PARAM_FLOAT)
        snprintf(reason, sizeof reason, "parameter %s is %" PRId64 ", expected the bits of a float32 from %g to %g",
                 param->name, value, (double)float_from_bits((uint32_t)param->least),
                 (double)float_from_bits((uint32_t)param->most));
    else
        snprintf(reason, sizeof reason, "parameter %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, param->name,
                 value, param->least, param->most);
    return reason;
}

const char *op_params_illegal(const struct op_descriptor *op, const int64_t *params)
{
    for (int i = 0; i < op->param_count; i++) {
        const char *why = param_illegal(&op->params[i], params[i]);
        if (why) return why;
    }
    return op->illegal ? op->illegal(params) : NULL;
}

static bool check_engine(const struct op_descriptor *op, const int64_t *params, const struct plan_geometry *geometry,
                         struct status *status)
{
    bool paged = false;
    for (int i = 0; i < op->param_count; i++) {
        const struct op_param *param = &op->params[i];
        uint64_t expected;
        if (param->source != PARAM_OF_ENGINE) continue;
        memcpy(&expected, (const uint8_t *)geometry + param->field, sizeof expected);
        if (param->field == offsetof(struct plan_geometry, ranks)) expected = plan_ranks(geometry);
        if ((uint64_t)params[i] != expected)
            return status_fail(status, STATUS_CORRUPT,
                               "%s: parameter %s is %" PRId64 ", but the engine's geometry says %" PRIu64, op->name,
                               param->name, params[i], expected);
    }
    for (int i = 0; i < op->operand_count; i++) paged = paged || op->operands[i].role == ROLE_KV;
    if (paged) {
        uint64_t tokens;
        if (geometry->page_bytes % PLAN_ALIGNMENT)
            return status_fail(status, STATUS_CORRUPT, "%s: pages of %" PRIu64 " bytes are no multiple of %d", op->name,
                               geometry->page_bytes, (int)PLAN_ALIGNMENT);
        if (geometry->max_context > INT32_MAX ||
            !checked_mul(geometry->page_tokens, geometry->pages_per_slot, &tokens) || tokens < geometry->max_context)
            return status_fail(status, STATUS_CORRUPT,
                               "%s: the pages of a slot hold fewer tokens than its context of %" PRIu64, op->name,
                               geometry->max_context);
    }
    const char *why = op->misfit ? op->misfit(params, geometry) : NULL;
    return !why || status_fail(status, STATUS_CORRUPT, "%s: %s", op->name, why);
}

/* CPU code computes in float32. */
static const char *cpu_illegal(const struct op_descriptor *op, const int64_t *params)
{
    if (!op->run[CPU_PORTABLE]) return "there is no CPU code for this op";
    for (int i = 0; i < op->operand_count; i++) {
        const struct op_operand *operand = &op->operands[i];
        const bool is_value = operand->role == ROLE_INPUT || operand->role == ROLE_OUTPUT;
        if (is_value && operand->dtype && params[operand->dtype] != DTYPE_F32 &&
            op_has_operand(op, TARGET_CPU, params, i))
            return "CPU code computes in float32 only";
    }
    return op->cpu_illegal ? op->cpu_illegal(params) : NULL;
}

bool op_demands(const struct op_descriptor *op, enum engine_target target, const int64_t *params,
                const struct plan_geometry *geometry, struct op_demand *demands, int *count, struct status *status)
{
    const char *why = op_params_illegal(op, params);
    if (why) return status_fail(status, STATUS_CORRUPT, "%s: %s", op->name, why);
    if (!check_engine(op, params, geometry, status)) return false;
    why = target == TARGET_CPU ? cpu_illegal(op, params) : NULL;
    if (why) return status_fail(status, STATUS_CORRUPT, "%s: %s", op->name, why);
    *count = 0;
    for (int i = 0; i < op->operand_count; i++) {
        const struct op_operand *operand = &op->operands[i];
        struct op_demand *demand = &demands[*count];
        if (!op_has_operand(op, target, params, i)) continue;
        *demand = (struct op_demand){.name = operand->name,
                                     .operand = (uint8_t)i,
                                     .space_mask = spaces_of(operand->role),
                                     .access = op_operand_access(operand),
                                     .field = field_of(operand)};
        if (!op_operand_bytes(op, target, params, geometry, i, &demand->bytes))
            return status_fail(status, STATUS_CORRUPT, "%s: the size of operand %s overflows 64 bits", op->name,
                               operand->name);
        ++*count;
    }
    return true;
}
