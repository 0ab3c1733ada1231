/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of launches: the list that a plan has, and the array that an op's code reads. */
#include "kernels/op/op.h"

unsigned op_first_tunable_id(const struct op_descriptor *op)
{
    unsigned last = 0;
    for (int i = 0; op && i < op->param_count; i++)
        if (op->params[i].id < OP_LATER_PARAM_ID && op->params[i].id > last) last = op->params[i].id;
    return last + 1;
}

/* Index of the parameter with that id in an op's array, -1 if there is none. */
static int index_of(const struct op_descriptor *op, int tunables, unsigned id)
{
    const unsigned first = op_first_tunable_id(op);
    for (int i = 0; i < op->param_count; i++)
        if (op->params[i].id == id) return i;
    return id >= first && id - first < (unsigned)tunables ? op->param_count + (int)(id - first) : -1;
}

bool op_params(const struct plan *plan, const struct plan_launch *launch, int tunables, int64_t *values,
               struct status *status)
{
    const struct op_descriptor *op = op_find(launch->op);
    for (int i = 0; i < op->param_count; i++) values[i] = op_param_absent(&op->params[i]);
    for (int i = 0; i < tunables; i++) values[op->param_count + i] = 0;
    for (uint32_t i = 0; i < launch->param_count; i++) {
        const struct plan_param *param = &plan->params[launch->first_param + i];
        const int index = index_of(op, tunables, param->id);
        if (index >= 0)
            values[index] = param->value;
        else if (param->flags & PLAN_PARAM_ESSENTIAL)
            return status_fail(status, STATUS_VERSION,
                               "needs a newer runtime: %s has an essential parameter of id %u, which this runtime "
                               "does not know; use the runtime that came with the builder",
                               plan_op_name(launch->op), param->id);
    }
    return true;
}

int op_list_params(const struct op_descriptor *op, const int64_t *values, int tunables, bool essential,
                   struct plan_param *list)
{
    const int params = op ? op->param_count : 0;
    const unsigned first = op_first_tunable_id(op);
    int count = 0;
    for (int i = 0; i < params; i++)
        if (op->params[i].id < OP_LATER_PARAM_ID)
            list[count++] = (struct plan_param){.id = op->params[i].id,
                                                .flags = essential ? PLAN_PARAM_ESSENTIAL : 0,
                                                .value = values[i]};
    for (int i = 0; i < tunables; i++)
        list[count++] = (struct plan_param){.id = (uint16_t)(first + (unsigned)i), .value = values[params + i]};
    for (int i = 0; i < params; i++)
        if (op->params[i].id >= OP_LATER_PARAM_ID && values[i] != op_param_absent(&op->params[i]))
            list[count++] =
                (struct plan_param){.id = op->params[i].id, .flags = PLAN_PARAM_ESSENTIAL, .value = values[i]};
    return count;
}

void op_leave_out_defaults(struct plan *plan)
{
    struct plan_launch *launches = (struct plan_launch *)(uintptr_t)plan->launches; /* the builder owns its plans */
    struct plan_param *params = (struct plan_param *)(uintptr_t)plan->params;
    uint32_t kept = 0;
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        struct plan_launch *launch = &launches[n];
        const uint32_t first = launch->first_param, count = launch->param_count;
        launch->first_param = kept;
        for (uint32_t i = first; i < first + count; i++)
            if (params[i].value != 0 || params[i].id >= OP_LATER_PARAM_ID) params[kept++] = params[i];
        launch->param_count = (uint16_t)(kept - launch->first_param);
    }
    plan->header.param_count = kept;
}
