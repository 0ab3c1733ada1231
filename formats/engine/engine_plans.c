/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the plans section and of the library plans that replace some of them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"

/* Checks of a launch against the engine's target and tactics. */
static bool verify_launch(const struct engine *engine, const struct plan *plan, const struct plan_launch *launch,
                          uint64_t tactic_count, struct status *status)
{
    if (launch->tactic != PLAN_NO_TACTIC && launch->tactic >= tactic_count)
        return status_fail(status, STATUS_CORRUPT, "tactic %" PRIu32 " of %" PRIu64, launch->tactic, tactic_count);
    if (engine->manifest.target == TARGET_CUDA) return engine_verify_device_launch(engine, plan, launch, status);
    for (uint32_t i = 0; i < launch->operand_count; i++)
        if (plan->operands[launch->first_operand + i].tensor_map != 0)
            return status_fail(status, STATUS_CORRUPT,
                               "operand %" PRIu32 ": a tensor map, which only device targets have", i);
    uint32_t device = launch->kernel | launch->shared_bytes | launch->attributes;
    for (int i = 0; i < 3; i++) device |= launch->grid[i] | launch->block[i] | launch->cluster[i];
    if (device != 0) return status_fail(status, STATUS_CORRUPT, "a field for device targets is not zero");
    return true;
}

static bool verify_plan(const struct engine *engine, const struct plan *plan, size_t index, uint64_t arena_bytes,
                        uint64_t tactic_count, struct status *status)
{
    const struct manifest *manifest = &engine->manifest;
    char name[64];
    snprintf(name, sizeof name, "plan %zu (%s, %" PRIu32 " rows)", index, plan_kind_name(plan->header.kind),
             plan->header.rows);
    struct plan_space_sizes sizes = manifest_space_sizes(manifest);
    sizes.bytes[SPACE_ARENA] = arena_bytes;
    if (!plan_verify(plan, &sizes, name, status)) return false;
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (!verify_launch(engine, plan, &plan->launches[i], tactic_count, status))
            return status_prefix(status, "%s: launch %" PRIu32, name, i);
    const bool is_of_slots = plan->header.kind == PLAN_DECODE || plan->header.kind == PLAN_MIXED;
    if (is_of_slots && plan->header.out_rows > manifest->geometry.slots)
        return status_fail(status, STATUS_CORRUPT, "%s: more %srows than the engine's %" PRIu64 " slots", name,
                           plan->header.kind == PLAN_MIXED ? "out " : "", manifest->geometry.slots);
    return true;
}

/* Decode before prefill before mixed before verify, rising rows: the runtime searches them in this order. */
static bool verify_plan_order(const struct engine *engine, struct status *status)
{
    const struct plan_header *first = &engine->plans[0].header;
    uint32_t longest = 0; /* chunk */
    if (first->kind != PLAN_DECODE || first->rows != 1)
        return status_fail(status, STATUS_CORRUPT,
                           "plan 0: expected decode of 1 row, found kind %" PRIu32 " of %" PRIu32 " rows", first->kind,
                           first->rows);
    for (size_t i = 1; i < engine->plan_count; i++) {
        const struct plan_header *before = &engine->plans[i - 1].header, *header = &engine->plans[i].header;
        if (header->kind == PLAN_PREFILL) longest = header->rows;
        if (header->kind < before->kind || (header->kind == before->kind && header->rows <= before->rows))
            return status_fail(status, STATUS_CORRUPT,
                               "plan %zu: kind %" PRIu32 " of %" PRIu32 " rows must not follow kind %" PRIu32
                               " of %" PRIu32 " rows",
                               i, header->kind, header->rows, before->kind, before->rows);
    }
    if (!longest) return status_fail(status, STATUS_CORRUPT, "there is no prefill plan");
    for (size_t i = 1; i < engine->plan_count; i++) {
        const struct plan_header *header = &engine->plans[i].header;
        if (plan_has_chunks(header->kind) && header->rows > longest) /* a window's pages have room for such a chunk */
            return status_fail(status, STATUS_CORRUPT,
                               "a %s plan of %" PRIu32 " rows: expected at most the %" PRIu32
                               " of the largest prefill plan",
                               plan_kind_name(header->kind), header->rows, longest);
    }
    return true;
}

/* Reads the fields of a plan's STEP space; its rows determine the least sizes. The first plan says whether all have hidden states, and
 * drafts. */
static bool read_step_fields(struct engine *engine, struct plan *plan, const struct plan_field_entry *entries,
                             struct status *status)
{
    const struct plan_header *header = &plan->header;
    struct plan_geometry *geometry = &engine->manifest.geometry;
    const bool has_hidden = plan_lists_field(entries, header->field_count, STEP_HIDDEN); /* not before 2.3 */
    const bool has_drafts = plan_lists_field(entries, header->field_count, STEP_DRAFTED);
    uint64_t total;
    if (plan == engine->plans) geometry->hidden_size = has_hidden ? engine->manifest.hidden_size : 0;
    if (plan == engine->plans) geometry->drafts = has_drafts;
    if (!step_layout(header->rows, header->out_rows, geometry->vocab_size, geometry->hidden_size, geometry->drafts,
                     plan->step, &total))
        return status_fail(status, STATUS_CORRUPT, "the size of its step overflows");
    if (!plan_lists_field(entries, header->field_count, STEP_ROUTE_SEEDS)) /* as before 2.3 */
        plan->step[STEP_ROUTE_SEEDS] = (struct plan_field){0, 0};
    if (!plan_read_fields(entries, header->field_count, SPACE_STEP, header->step_bytes, plan->step, STEP_FIELD_COUNT,
                          status))
        return false;
    if (has_hidden && !geometry->hidden_size)
        return status_fail(status, STATUS_CORRUPT, "step field of id %d (hidden states): the first plan has none",
                           STEP_HIDDEN + 1);
    const bool follows = plan_lists_field(entries, header->field_count, STEP_FOLLOWING);
    return ((has_drafts || follows) <= geometry->drafts) ||
           status_fail(status, STATUS_CORRUPT, "step field of id %d (drafts): the first plan has none",
                       (has_drafts ? STEP_DRAFTED : STEP_FOLLOWING) + 1);
}

/* Points the plan to its arrays in the section, from `position` on, and sets `position` to their end. */
static bool place_plan(struct engine *engine, const struct engine_part *part, struct plan *plan, uint64_t *position,
                       struct status *status)
{
    uint64_t body_bytes;
    if (!engine_plan_body_bytes(&plan->header, &body_bytes) || !checked_range(*position, body_bytes, part->size))
        return status_fail(status, STATUS_CORRUPT, "leaves the section");
    const uint8_t *body = part->bytes + *position;
    plan->launches = (const void *)body;
    body += plan->header.launch_count * sizeof *plan->launches;
    plan->operands = (const void *)body;
    body += plan->header.operand_count * sizeof *plan->operands;
    plan->params = (const void *)body;
    body += plan->header.param_count * sizeof *plan->params;
    plan->tensor_maps = (const void *)body;
    body += plan->header.tensor_map_count * sizeof *plan->tensor_maps;
    const struct plan_field_entry *fields = (const void *)body;
    body += plan->header.field_count * sizeof *fields;
    plan->dependencies = (const void *)body;
    body += plan->header.dependency_count * sizeof *plan->dependencies;
    *position += body_bytes;
    for (; body < part->bytes + *position; body++)
        if (*body != 0) return status_fail(status, STATUS_CORRUPT, "padding is not zero");
    return read_step_fields(engine, plan, fields, status);
}

/* The fields of the STATE space, which section `plans` lists for all plans. */
static bool read_state_fields(struct engine *engine, const struct plan_field_entry *entries, uint32_t count,
                              struct status *status)
{
    struct plan_geometry *geometry = &engine->manifest.geometry;
    uint64_t total;
    geometry->sampling_options = plan_lists_field(entries, count, STATE_ADJUSTMENTS); /* not before 2.3 */
    if (!geometry_place_state(geometry, &total))
        return status_fail(status, STATUS_CORRUPT, "the size of the state overflows");
    return plan_read_fields(entries, count, SPACE_STATE, engine->manifest.state_bytes, geometry->state,
                            STATE_FIELD_COUNT, status);
}

/* Reads the section except for the launches' contents. *plans is allocated by engine_take. */
static bool place_plans(struct engine *engine, const struct engine_part *part, bool lists_state, struct plan **plans,
                        size_t *count, struct status *status)
{
    struct engine_plans_header header;
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    const uint64_t headers_at = sizeof header + (uint64_t)header.field_count * sizeof(struct plan_field_entry);
    uint64_t position = headers_at + (uint64_t)header.plan_count * sizeof(struct plan_header);
    if (header.plan_count == 0 || position > part->size)
        return status_fail(status, STATUS_CORRUPT,
                           "header: %" PRIu32 " plans and %" PRIu32 " state fields in %" PRIu64 " bytes",
                           header.plan_count, header.field_count, part->size);
    const struct plan_field_entry *state = (const void *)(part->bytes + sizeof header);
    if (lists_state ? !read_state_fields(engine, state, header.field_count, status) : header.field_count != 0)
        return !lists_state ? status_fail(status, STATUS_CORRUPT, "header: %" PRIu32 " state fields, expected none",
                                          header.field_count)
                            : false;
    *plans = engine_take(engine, header.plan_count, sizeof **plans, status);
    if (!*plans) return false;
    *count = header.plan_count;
    for (uint32_t i = 0; i < header.plan_count; i++) {
        struct plan *plan = &(*plans)[i];
        memcpy(&plan->header, part->bytes + headers_at + i * sizeof plan->header, sizeof plan->header);
        if (!place_plan(engine, part, plan, &position, status)) return status_prefix(status, "plan %" PRIu32, i);
    }
    if (position != part->size)
        return status_fail(status, STATUS_CORRUPT, "expected %" PRIu64 " bytes for its plans, found %" PRIu64, position,
                           part->size);
    return true;
}

bool engine_verify_plans(struct engine *engine, const struct engine_part *part, uint64_t tactic_count,
                         struct status *status)
{
    uint64_t arena_bytes = 0, step_bytes = 0;
    if (!place_plans(engine, part, true, &engine->plans, &engine->plan_count, status)) return false;
    for (size_t i = 0; i < engine->plan_count; i++) {
        const struct plan_header *header = &engine->plans[i].header;
        if (!verify_plan(engine, &engine->plans[i], i, engine->manifest.arena_bytes, tactic_count, status))
            return false;
        if (header->step_bytes > step_bytes) step_bytes = header->step_bytes;
        if (header->arena_bytes > arena_bytes) arena_bytes = header->arena_bytes;
    }
    if (!verify_plan_order(engine, status)) return false;
    if (step_bytes != engine->manifest.step_bytes || arena_bytes != engine->manifest.arena_bytes)
        return status_fail(status, STATUS_CORRUPT,
                           "the plans need %" PRIu64 " arena and %" PRIu64 " step bytes, the manifest says %" PRIu64
                           " and %" PRIu64,
                           arena_bytes, step_bytes, engine->manifest.arena_bytes, engine->manifest.step_bytes);
    return true;
}

/* ---- library plans ---- */

static bool uses_library(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (plan->launches[i].attributes & LAUNCH_LIBRARY) return true;
    return false;
}

size_t engine_plan_twin(const struct plan *plans, size_t count, size_t from, const struct plan_header *header)
{
    while (from < count && (plans[from].header.kind < header->kind ||
                            (plans[from].header.kind == header->kind && plans[from].header.rows < header->rows)))
        from++;
    bool found = from < count && plans[from].header.kind == header->kind && plans[from].header.rows == header->rows;
    return found ? from : count;
}

bool engine_verify_library_plans(struct engine *engine, const struct engine_part *part, uint64_t tactic_count,
                                 struct status *status)
{
    struct plan *plans = NULL;
    size_t count = 0, next = 0;
    if (!part->bytes) {
        if (engine->call_count == 0) return true;
        return status_fail(status, STATUS_CORRUPT, "expected one, since there are library calls, found none");
    }
    engine->library_plans = engine_take(engine, engine->plan_count, sizeof *engine->library_plans, status);
    bool ok = engine->library_plans && place_plans(engine, part, false, &plans, &count, status);
    for (size_t i = 0; ok && i < count; i++) {
        const struct plan_header *header = &plans[i].header;
        size_t twin = engine_plan_twin(engine->plans, engine->plan_count, next, header);
        if (twin == engine->plan_count || header->out_rows != engine->plans[twin].header.out_rows)
            ok = status_fail(status, STATUS_CORRUPT,
                             "plan %zu: kind %" PRIu32 " of %" PRIu32 " rows has no counterpart among the plans, or "
                             "is out of order",
                             i, header->kind, header->rows);
        else if (memcmp(plans[i].step, engine->plans[twin].step, sizeof plans[i].step) != 0)
            ok = status_fail(status, STATUS_CORRUPT, "plan %zu: its step fields are not those of its counterpart", i);
        else if (!uses_library(&plans[i]))
            ok = status_fail(status, STATUS_CORRUPT, "plan %zu: calls no library", i);
        else
            ok = verify_plan(engine, &plans[i], i, header->arena_bytes, tactic_count, status);
        if (!ok) break;
        engine->library_plans[twin] = plans[i];
        next = twin + 1;
        if (header->arena_bytes > engine->library_arena_bytes) engine->library_arena_bytes = header->arena_bytes;
    }
    engine_give_back(engine, plans, count * sizeof *plans);
    return ok;
}
