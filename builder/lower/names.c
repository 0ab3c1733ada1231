/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/names.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/op/op.h"

struct op_names {
    const char *operands[PLAN_MAX_OPERANDS], *params[PLAN_MAX_PARAMS];
};

/* By the op's schema; on the CPU its tunables follow, on a GPU they are the kernels'. */
static struct engine_name_table op_table(unsigned id, const struct kernel_set *set, struct op_names *names)
{
    const struct op_descriptor *op = op_find(id);
    const int params = set ? op->param_count : op_cpu_param_count(op);
    for (int i = 0; i < op->operand_count; i++) names->operands[i] = op->operands[i].name;
    for (int i = 0; i < params; i++) names->params[i] = op_cpu_param_name(op, i);
    return (struct engine_name_table){.op = id,
                                      .name = plan_op_name(id),
                                      .operands = names->operands,
                                      .operand_count = (size_t)op->operand_count,
                                      .params = names->params,
                                      .param_count = (size_t)params};
}

static size_t list_ops(const struct plan *plans, size_t count, const struct kernel_set *set,
                       struct engine_name_table tables[OP_COUNT], struct op_names names[OP_COUNT])
{
    bool used[OP_COUNT] = {false};
    size_t tables_used = 0;
    for (size_t p = 0; p < count; p++)
        for (uint32_t n = 0; n < plans[p].header.launch_count; n++) used[plans[p].launches[n].op] = true;
    /* Plans that call libraries have ops of companion kernels besides. */
    for (size_t i = 0; set && i < set->count; i++) used[set->entries[i].tactic.kernel->op] = true;
    for (unsigned op = 0; op < OP_COUNT; op++) {
        if (!used[op]) continue;
        tables[tables_used] = op_table(op, set, &names[tables_used]);
        tables_used++;
    }
    return tables_used;
}

/* Adds the kernel unless one of that name is there. */
static void add_kernel(struct engine_name_table *tables, size_t *count, const struct device_kernel *kernel)
{
    for (size_t i = 0; i < *count; i++)
        if (strcmp(tables[i].name, kernel->name) == 0) return;
    tables[(*count)++] = (struct engine_name_table){
        .name = kernel->name,
        .params = kernel->param_names,
        .param_count = (size_t)kernel->param_count,
    };
}

bool write_names(struct engine_writer *writer, const struct plan *plans, size_t count, const struct kernel_set *set,
                 struct status *status)
{
    struct engine_name_table ops[OP_COUNT];
    struct op_names names[OP_COUNT];
    const size_t op_count = list_ops(plans, count, set, ops, names), most = set ? set->count + set->call_count : 0;
    struct engine_name_table *kernels = calloc(most + 1, sizeof *kernels);
    const char **calls = calloc(most + 1, sizeof *calls);
    size_t kernel_count = 0, call_count = set ? set->call_count : 0;
    bool ok = kernels && calls;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while writing names");
    for (size_t i = 0; ok && set && i < set->count; i++)
        add_kernel(kernels, &kernel_count, set->entries[i].tactic.kernel);
    for (size_t i = 0; ok && i < call_count; i++) {
        add_kernel(kernels, &kernel_count, set->call_tactics[i].kernel);
        calls[i] = set->call_tactics[i].kernel->name;
    }
    ok = ok && engine_writer_names(writer, ops, op_count, kernels, kernel_count, calls, call_count, status);
    free(calls);
    free(kernels);
    return ok;
}
