/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of launches: the list that a plan has, and the array that an op's code reads. */
#include "kernels/op/op.h"

bool op_params(const struct plan *plan, const struct plan_launch *launch, int count, int64_t *values,
               struct status *status)
{
    for (int i = 0; i < count; i++) values[i] = 0;
    for (uint32_t i = 0; i < launch->param_count; i++) {
        const struct plan_param *param = &plan->params[launch->first_param + i];
        if (param->id >= 1 && param->id <= count)
            values[param->id - 1] = param->value;
        else if (param->flags & PLAN_PARAM_ESSENTIAL)
            return status_fail(
                status, STATUS_VERSION,
                "needs a newer runtime: %s has an essential parameter of id %u, this runtime knows ids 1 "
                "to %d; use the runtime that came with the builder",
                plan_op_name(launch->op), param->id, count);
    }
    return true;
}

void op_list_params(const int64_t *values, int count, int essential, struct plan_param *list)
{
    for (int i = 0; i < count; i++)
        list[i] = (struct plan_param){
            .id = (uint16_t)(i + 1),
            .flags = i < essential ? PLAN_PARAM_ESSENTIAL : 0,
            .value = values[i],
        };
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
            if (params[i].value != 0) params[kept++] = params[i];
        launch->param_count = (uint16_t)(kept - launch->first_param);
    }
    plan->header.param_count = kept;
}
