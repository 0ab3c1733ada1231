/* SPDX-License-Identifier: Apache-2.0 */
/* eng_info: the manifest as stored and facts of this load, as one JSON object. */

#include "formats/base/json.h"
#include "formats/engine/page_groups.h"
#include "kernels/op/op.h"
#include "runtime/load/info.h"
#include "runtime/load/load_gpu.h"

/* Weight bytes that one replay reads: of the matrices of experts as many as its rows choose, which are all that such a launch moves
 * but for its rows. An embedding table is looked up, not read; as LM head it is counted with its matmul. */
static uint64_t weight_bytes(const struct plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->header.launch_count; i++) {
        const struct plan_launch *launch = &plan->launches[i];
        uint64_t weights = 0;
        for (unsigned k = 0; launch->op != OP_EMBED && k < launch->operand_count; k++) {
            const struct plan_operand *operand = &plan->operands[launch->first_operand + k];
            if (operand->space == SPACE_WEIGHTS) weights += operand->bytes;
        }
        bytes += weights < launch->bytes ? weights : launch->bytes;
    }
    return bytes;
}

static json_t *plans_json(const struct engine *file)
{
    json_t *plans = json_array();
    for (size_t i = 0; plans && i < file->plan_count; i++) {
        const struct plan *plan = &file->plans[i];
        uint64_t bytes = 0, flops = 0;
        for (uint32_t launch = 0; launch < plan->header.launch_count; launch++) {
            bytes += plan->launches[launch].bytes;
            flops += plan->launches[launch].flops;
        }
        json_t *entry =
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "kind", plan_kind_name(plan->header.kind), "rows",
                      (json_int_t)plan->header.rows, "launches", (json_int_t)plan->header.launch_count, "bytes",
                      (json_int_t)bytes, "flops", (json_int_t)flops, "weight_bytes", (json_int_t)weight_bytes(plan));
        if (json_array_append_new(plans, entry)) {
            json_decref(plans);
            return NULL;
        }
    }
    return plans;
}

/* The plans that call libraries: which plan each replaces, and its number of calls. */
static json_t *library_plans_json(const struct engine *file)
{
    json_t *plans = json_array();
    for (size_t i = 0; plans && i < file->plan_count; i++) {
        const struct plan *plan = &file->library_plans[i];
        json_int_t calls = 0;
        for (uint32_t launch = 0; launch < plan->header.launch_count; launch++)
            calls += (plan->launches[launch].attributes & LAUNCH_LIBRARY) != 0;
        if (plan->header.launch_count == 0) continue;
        json_t *entry =
            json_pack("{s:s, s:I, s:I, s:I}", "kind", plan_kind_name(plan->header.kind), "rows",
                      (json_int_t)plan->header.rows, "launches", (json_int_t)plan->header.launch_count, "calls", calls);
        if (json_array_append_new(plans, entry)) {
            json_decref(plans);
            return NULL;
        }
    }
    return plans;
}

static json_t *device_json(const struct load_cuda *cuda)
{
    const struct device_facts *facts = &cuda->device.facts;
    return json_pack("{s:i, s:s, s:s, s:i, s:I, s:i, s:f}", "number", cuda->device.ordinal, "name", facts->name, "uuid",
                     facts->uuid, "capability", facts->capability, "memory_bytes", (json_int_t)facts->memory_bytes,
                     "driver_version", facts->driver_version, "nominal_gb_per_second", cuda->nominal_gb_per_second);
}

/* "used": whether plans that call libraries run; "reason": why not. */
static json_t *libraries_json(const struct eng_engine *engine)
{
    const struct load_cuda *cuda = engine->cuda;
    return json_pack("{s:b, s:s?}", "used", cuda->uses_libraries, "reason", cuda->fallback);
}

static json_t *load_json(const struct eng_engine *engine)
{
    double rate =
        engine->verify_seconds > 0 ? (double)engine->file.manifest.weights_bytes / engine->verify_seconds * 1e-9 : 0;
    json_t *load =
        json_pack("{s:s, s:i, s:f, s:f, s:f, s:s}", "library", ENG_VERSION_TEXT, "threads", engine->load_threads,
                  "open_seconds", engine->open_seconds, "verify_seconds", engine->verify_seconds,
                  "verify_gb_per_second", rate, "instruction_set", cpu_isa_name(cpu_isa_best()));
    if (!engine->cuda) return load;
    bool ok = json_put(load, "device", device_json(engine->cuda));
    if (engine->cuda->link) {
        json_t *exchange =
            json_pack("{s:s, s:s?}", "link", cuda_link_name(engine->cuda->link), "reason", engine->cuda->detour);
        ok = json_put(load, "exchange", exchange) && ok;
    }
    if (engine->file.call_count > 0) ok = json_put(load, "libraries", libraries_json(engine)) && ok;
    if (ok) return load;
    json_decref(load);
    return NULL;
}

/* Matrices by encoding: how many, their elements (padding included) and bytes. */
static json_t *encodings_json(const struct engine *file)
{
    json_t *encodings = json_object();
    for (size_t e = 0; encodings && encoding_at(e); e++) {
        json_int_t tensors = 0, elements = 0, bytes = 0;
        for (size_t i = 0; i < file->tensor_count; i++) {
            const struct engine_tensor *tensor = &file->tensors[i];
            if (tensor->rank != 2 || (int)tensor->dtype != (int)encoding_at(e)->id) continue;
            tensors++;
            elements += (json_int_t)(tensor->shape[0] * tensor->shape[1]);
            bytes += (json_int_t)tensor->bytes;
        }
        if (tensors &&
            !json_put(encodings, encoding_label(encoding_at(e)->id),
                      json_pack("{s:I, s:I, s:I}", "tensors", tensors, "elements", elements, "bytes", bytes))) {
            json_decref(encodings);
            return NULL;
        }
    }
    return encodings;
}

json_t *info_json(const struct engine *file, const char *path)
{
    json_t *info = json_object();
    json_t *manifest = json_parse(file->manifest_text, file->manifest_text_size, "manifest", NULL);
    const struct engine_golden *golden = &file->golden;
    const struct golden_cases *cases = &file->golden_plans;
    json_t *golden_json =
        json_pack("{s:I, s:I, s:f, s:{s:I, s:I, s:I, s:f}}", "prompt_tokens", (json_int_t)golden->prompt_count,
                  "tokens", (json_int_t)golden->token_count, "tolerance", (double)golden->tolerance, "plans", "cases",
                  (json_int_t)cases->case_count, "tokens", (json_int_t)cases->row_count, "longest_context",
                  (json_int_t)golden_longest(cases), "tolerance", (double)cases->tolerance);
    bool ok = json_put(info, "file", json_string_or_null(path)) /* a path need not be valid UTF-8 */;
    ok = json_put(info, "manifest", manifest) && ok;
    ok = json_put(info, "plans", plans_json(file)) && ok;
    ok = json_put(info, "kv_of_sequence",
                  page_groups_json(&file->manifest.geometry, plan_longest_chunk(file->plans, file->plan_count))) &&
         ok;
    if (file->call_count > 0) ok = json_put(info, "library_plans", library_plans_json(file)) && ok;
    ok = json_put(info, "golden", golden_json) && ok;
    ok = json_put(info, "hidden_states", json_boolean(file->manifest.geometry.hidden_size > 0)) && ok;
    ok = json_put(info, "mtp", json_boolean(file->manifest.geometry.drafts != 0)) && ok;
    ok = json_put(info, "file_bytes", json_integer((json_int_t)file->size)) && ok;
    ok = json_put(info, "tensors", json_integer((json_int_t)file->tensor_count)) && ok;
    ok = json_put(info, "matrices", encodings_json(file)) && ok;
    if (ok) return info;
    json_decref(info);
    return NULL;
}

char *info_format(const struct eng_engine *engine, struct status *status)
{
    char *text = NULL;
    json_t *info = info_json(&engine->file, engine->path);
    if (info && json_put(info, "load", load_json(engine)))
        text = json_format(info, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    if (!text) status_fail(status, STATUS_MACHINE, "out of memory");
    json_decref(info);
    return text;
}

const char *eng_info(const struct eng_engine *engine) { return engine ? engine->info : NULL; }
