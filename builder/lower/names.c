/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/names.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/op/op.h"

struct names {
    const char *operands[PLAN_MAX_OPERANDS];
    struct engine_param_name params[PLAN_MAX_PARAMS];
};

/* Parameters by the op's schema, then tunables; `op` may be NULL. */
static size_t list_params(const struct op_descriptor *op, const char *const *tunables, int count, struct names *names)
{
    const int params = op ? op->param_count : 0;
    for (int i = 0; i < params; i++)
        names->params[i] = (struct engine_param_name){op->params[i].id, op->params[i].name};
    for (int i = 0; i < count; i++)
        names->params[params + i] = (struct engine_param_name){op_first_tunable_id(op) + (unsigned)i, tunables[i]};
    return (size_t)(params + count);
}

/* By the op's schema; on the CPU its tunables follow, on a GPU they are the kernels'. */
static struct engine_name_table op_table(unsigned id, const struct kernel_set *set, struct names *names)
{
    const struct op_descriptor *op = op_find(id);
    for (int i = 0; i < op->operand_count; i++) names->operands[i] = op->operands[i].name;
    return (struct engine_name_table){.op = id,
                                      .name = plan_op_name(id),
                                      .operands = names->operands,
                                      .operand_count = (size_t)op->operand_count,
                                      .params = names->params,
                                      .param_count = list_params(op, op->tunables, set ? 0 : op->tunable_count, names)};
}

static size_t list_ops(const struct plan *plans, size_t count, const struct kernel_set *set,
                       struct engine_name_table tables[OP_COUNT], struct names names[OP_COUNT])
{
    bool used[OP_COUNT] = {false};
    size_t tables_used = 0;
    for (size_t p = 0; p < count; p++)
        for (uint32_t n = 0; n < plans[p].header.launch_count; n++) used[plans[p].launches[n].op] = true;
    /* Plans that call libraries also have the ops of companion kernels. */
    for (size_t i = 0; set && i < set->count; i++) used[set->entries[i].tactic.kernel->op] = true;
    for (unsigned op = 0; op < OP_COUNT; op++) {
        if (!used[op]) continue;
        tables[tables_used] = op_table(op, set, &names[tables_used]);
        tables_used++;
    }
    return tables_used;
}

/* Adds the kernel unless one of that name is there. */
static void add_kernel(struct engine_name_table *tables, struct names *names, size_t *count,
                       const struct device_kernel *kernel)
{
    for (size_t i = 0; i < *count; i++)
        if (strcmp(tables[i].name, kernel->name) == 0) return;
    tables[*count] = (struct engine_name_table){
        .name = kernel->name,
        .params = names[*count].params,
        .param_count = list_params(kernel->problem, kernel->own_names, kernel->own_count, &names[*count]),
    };
    ++*count;
}

bool write_names(struct engine_writer *writer, const struct plan *plans, size_t count, const struct kernel_set *set,
                 struct status *status)
{
    struct engine_name_table ops[OP_COUNT];
    struct names names[OP_COUNT];
    const size_t op_count = list_ops(plans, count, set, ops, names), most = set ? set->count + set->call_count : 0;
    struct engine_name_table *kernels = calloc(most + 1, sizeof *kernels);
    struct names *kernel_names = calloc(most + 1, sizeof *kernel_names);
    const char **calls = calloc(most + 1, sizeof *calls);
    size_t kernel_count = 0, call_count = set ? set->call_count : 0;
    bool ok = kernels && kernel_names && calls;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while writing names");
    for (size_t i = 0; ok && set && i < set->count; i++)
        add_kernel(kernels, kernel_names, &kernel_count, set->entries[i].tactic.kernel);
    for (size_t i = 0; ok && i < call_count; i++) {
        add_kernel(kernels, kernel_names, &kernel_count, set->call_tactics[i].kernel);
        calls[i] = set->call_tactics[i].kernel->name;
    }
    ok = ok && engine_writer_names(writer, ops, op_count, kernels, kernel_count, calls, call_count, status);
    free(calls);
    free(kernel_names);
    free(kernels);
    return ok;
}
