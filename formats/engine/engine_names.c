/* SPDX-License-Identifier: Apache-2.0 */
/* The names section: JSON with display names of ops, operands, parameters, kernels and library calls. Tools print these
 * names, so that they describe an engine of another release correctly. Nothing that is computed depends on them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "formats/base/json.h"
#include "formats/base/printable.h"
#include "formats/engine/engine_verify.h"

enum { KEY_BYTES = 24 };

/* ---- writing ---- */

static bool put_table(json_t *object, const char *key, const struct engine_name_table *table, bool has_name)
{
    json_t *entry = json_object(), *operands = json_array(), *params = json_object();
    bool ok = json_put(object, key, entry) && json_put(entry, "operands", operands);
    ok = json_put(entry, "params", params) && ok;
    if (has_name) ok = json_put(entry, "name", json_string(table->name)) && ok;
    for (size_t i = 0; ok && i < table->operand_count; i++) ok = json_add(operands, json_string(table->operands[i]));
    for (size_t i = 0; ok && i < table->param_count; i++) {
        char id[KEY_BYTES];
        snprintf(id, sizeof id, "%u", table->params[i].id);
        ok = json_put(params, id, json_string(table->params[i].name));
    }
    return ok;
}

bool engine_writer_names(struct engine_writer *writer, const struct engine_name_table *ops, size_t op_count,
                         const struct engine_name_table *kernels, size_t kernel_count, const char *const *calls,
                         size_t call_count, struct status *status)
{
    errno = 0;
    json_t *root = json_object(), *op_tables = json_object(), *kernel_tables = json_object(), *names = json_array();
    bool ok = json_put(root, "ops", op_tables);
    ok = json_put(root, "kernels", kernel_tables) && ok;
    ok = json_put(root, "calls", names) && ok;
    for (size_t i = 0; ok && i < op_count; i++) {
        char id[KEY_BYTES];
        snprintf(id, sizeof id, "%u", ops[i].op);
        ok = put_table(op_tables, id, &ops[i], true);
    }
    for (size_t i = 0; ok && i < kernel_count; i++) ok = put_table(kernel_tables, kernels[i].name, &kernels[i], false);
    for (size_t i = 0; ok && i < call_count; i++) ok = json_add(names, json_string(calls[i]));
    char *text = ok ? json_format(root, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) return json_fail_build(status, "engine names");
    ok = engine_writer_section(writer, SECTION_NAMES, text, strlen(text), true, status);
    free(text);
    return ok;
}

/* ---- reading ---- */

static bool is_name(const json_t *value)
{
    const size_t bytes = json_string_length(value);
    return json_is_string(value) && bytes > 0 && printable_text(json_string_value(value), bytes);
}

/* An id in decimal, without leading zeros; 0: none. */
static unsigned id_of_key(const char *key)
{
    char text[KEY_BYTES];
    const unsigned long id = strtoul(key, NULL, 10);
    snprintf(text, sizeof text, "%lu", id);
    return id <= UINT16_MAX && strcmp(text, key) == 0 ? (unsigned)id : 0;
}

static bool verify_table(json_t *table, bool has_name, struct status *status)
{
    json_t *operands = json_object_get(table, "operands"), *params = json_object_get(table, "params"), *value;
    const char *key;
    size_t index;
    if (!json_is_array(operands) || !json_is_object(params))
        return status_fail(status, STATUS_CORRUPT, "expected an array 'operands' and an object 'params'");
    if (has_name && !is_name(json_object_get(table, "name")))
        return status_fail(status, STATUS_CORRUPT, "the name is not a text");
    json_array_foreach (operands, index, value)
        if (!is_name(value)) return status_fail(status, STATUS_CORRUPT, "operand %zu: the name is not a text", index);
    json_object_foreach (params, key, value)
        if (id_of_key(key) == 0 || !is_name(value))
            return status_fail(status, STATUS_CORRUPT, "parameter '%.20s': not an id with a text",
                               printable_text(key, strlen(key)) ? key : "?");
    return true;
}

/* Tables of all ops, or of all kernels. */
static bool verify_tables(json_t *tables, const char *what, bool has_names, struct status *status)
{
    const char *key;
    json_t *table;
    if (!json_is_object(tables)) return status_fail(status, STATUS_CORRUPT, "expected an object '%s'", what);
    json_object_foreach (tables, key, table)
        if (!verify_table(table, has_names, status))
            return status_prefix(status, "%s: '%.60s'", what, printable_text(key, strlen(key)) ? key : "?");
    return true;
}

static bool verify_plan(const struct engine *engine, const struct plan *plan, struct status *status)
{
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (!engine_op_name(engine, plan->launches[i].op))
            return status_fail(status, STATUS_CORRUPT, "op %u, which a plan has, is missing", plan->launches[i].op);
    return true;
}

bool engine_verify_names(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct status found = {0};
    engine->names = json_parse((const char *)part->bytes, (size_t)part->size, "names", &found);
    if (!engine->names) {
        status_fail(status, found.code == STATUS_BAD_INPUT ? STATUS_CORRUPT : found.code, "%s", found.message);
        return false;
    }
    json_t *calls = json_object_get(engine->names, "calls"), *call;
    size_t index;
    if (!verify_tables(json_object_get(engine->names, "ops"), "ops", true, status) ||
        !verify_tables(json_object_get(engine->names, "kernels"), "kernels", false, status))
        return false;
    json_array_foreach (calls, index, call)
        if (!is_name(call)) return status_fail(status, STATUS_CORRUPT, "calls: element %zu is not a text", index);
    for (size_t i = 0; i < engine->plan_count; i++) {
        if (!verify_plan(engine, &engine->plans[i], status)) return false;
        if (engine->library_plans && !verify_plan(engine, &engine->library_plans[i], status)) return false;
    }
    return true;
}

static const json_t *op_table(const struct engine *engine, unsigned op)
{
    char id[KEY_BYTES];
    snprintf(id, sizeof id, "%u", op);
    return json_object_get(json_object_get(engine->names, "ops"), id);
}

const char *engine_op_name(const struct engine *engine, unsigned op)
{
    return json_string_value(json_object_get(op_table(engine, op), "name"));
}

const char *engine_kernel_name(const struct engine *engine, const struct plan_launch *launch)
{
    if (engine->manifest.target != TARGET_CUDA) return engine_op_name(engine, launch->op);
    if (launch->attributes & LAUNCH_LIBRARY) {
        const char *name = json_string_value(json_array_get(json_object_get(engine->names, "calls"), launch->kernel));
        return name ? name : plan_library_name(engine->calls[launch->kernel].library);
    }
    return engine->kernels[launch->kernel].entry;
}

/* The kernel's table, which includes its own tunables; else that of the op. */
static const json_t *launch_table(const struct engine *engine, const struct plan_launch *launch)
{
    const json_t *table = NULL;
    if (engine->manifest.target == TARGET_CUDA)
        table = json_object_get(json_object_get(engine->names, "kernels"), engine_kernel_name(engine, launch));
    return table ? table : op_table(engine, launch->op);
}

bool engine_param(const struct engine *engine, const struct plan *plan, const struct plan_launch *launch,
                  const char *name, int64_t *value)
{
    const json_t *names = json_object_get(launch_table(engine, launch), "params");
    for (uint32_t i = 0; i < launch->param_count; i++) {
        const struct plan_param *param = &plan->params[launch->first_param + i];
        char id[KEY_BYTES];
        snprintf(id, sizeof id, "%u", param->id);
        const char *found = json_string_value(json_object_get(names, id));
        if (!found || strcasecmp(found, name) != 0) continue;
        *value = param->value;
        return true;
    }
    return false;
}
