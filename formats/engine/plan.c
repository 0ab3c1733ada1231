/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/engine/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"

const char *plan_kind_name(uint32_t kind)
{
    static const char *const names[PLAN_KIND_END] =
        {[PLAN_DECODE] = "decode", [PLAN_PREFILL] = "prefill", [PLAN_MIXED] = "mixed", [PLAN_VERIFY] = "verify"};
    return kind < PLAN_KIND_END && names[kind] ? names[kind] : "?";
}

const char *plan_space_name(unsigned space)
{
    static const char *const names[SPACE_COUNT] = {
        [SPACE_NONE] = "none", [SPACE_WEIGHTS] = "weights", [SPACE_ARENA] = "arena", [SPACE_KV] = "kv",
        [SPACE_STEP] = "step", [SPACE_STATE] = "state",     [SPACE_COMM] = "comm",
    };
    return space < SPACE_COUNT && names[space] ? names[space] : "?";
}

const char *plan_op_name(unsigned op)
{
    static const char *const names[OP_COUNT] = {
        [OP_EMBED] = "embed",
        [OP_ROPE_TABLE] = "rope_table",
        [OP_RMS_NORM] = "rms_norm",
        [OP_MATMUL] = "matmul",
        [OP_ROPE_APPEND] = "rope_append",
        [OP_ATTENTION] = "attention",
        [OP_SWIGLU] = "swiglu",
        [OP_ADD] = "add",
        [OP_SELECT_ROWS] = "select_rows",
        [OP_SAMPLE] = "sample",
        [OP_ROPE_ATTENTION] = "rope_attention",
        [OP_ALL_REDUCE] = "all_reduce",
        [OP_ALL_GATHER] = "all_gather",
        [OP_ALL_REDUCE_FINISH] = "all_reduce_finish",
        [OP_ALL_GATHER_PLACE] = "all_gather_place",
        [OP_ATTENTION_CUDNN_INPUTS] = "attention_cudnn_inputs",
        [OP_QUANTISE] = "quantise",
        [OP_ROUTER] = "router",
        [OP_SUM_PARTS] = "sum_parts",
        [OP_LATENT_APPEND] = "latent_append",
        [OP_SHORT_CONV] = "short_conv",
        [OP_DELTA_RULE] = "delta_rule",
        [OP_SIGMOID_GATE] = "sigmoid_gate",
        [OP_MULTIPLY] = "multiply",
        [OP_ROPE_QUERY] = "rope_query",
        [OP_ROUTED_MATMUL] = "routed_matmul",
        [OP_MEAN_SQUARES] = "mean_squares",
        [OP_DRAFT] = "draft",
        [OP_SELECT_COLUMNS] = "select_columns",
        [OP_NORM_ROUTER] = "norm_router",
        [OP_STATE_SPACE] = "state_space",
        [OP_GROUP_NORM] = "group_norm",
        [OP_XIELU] = "xielu",
        [OP_ROUTED_MLP] = "routed_mlp",
    };
    return op < OP_COUNT && names[op] ? names[op] : "?";
}

const char *plan_library_name(unsigned library)
{
    static const char *const names[LIBRARY_COUNT] =
        {[LIBRARY_CUBLASLT] = "cuBLASLt", [LIBRARY_CUDNN] = "cuDNN", [LIBRARY_NCCL] = "NCCL"};
    return library < LIBRARY_COUNT && names[library] ? names[library] : "?";
}

/* Places fields of known sizes one after the other, in `order`; the caller fills fields[i].bytes. */
static bool place_fields(struct plan_field *fields, const int *order, int count, uint64_t *total_bytes)
{
    uint64_t position = 0;
    for (int i = 0; i < count; i++) {
        struct plan_field *field = &fields[order[i]];
        field->offset = position;
        if (!checked_add(position, field->bytes, &position)) return false;
        if (!checked_align(position, PLAN_ALIGNMENT, &position)) return false;
    }
    *total_bytes = position;
    return true;
}

bool step_layout(uint64_t rows, uint64_t out_rows, uint64_t vocab_size, uint64_t hidden_size, uint64_t drafts,
                 struct plan_field fields[STEP_FIELD_COUNT], uint64_t *total_bytes)
{
    uint64_t row_bytes, out_row_bytes, logits_bytes, hidden_bytes;
    const uint64_t logits_factors[] = {out_rows, vocab_size, sizeof(float)};
    const uint64_t hidden_factors[] = {out_rows, hidden_size, sizeof(float)};
    if (!checked_mul(rows, sizeof(int32_t), &row_bytes)) return false;
    if (!checked_mul(out_rows, sizeof(int32_t), &out_row_bytes)) return false;
    if (!checked_product(logits_factors, 3, &logits_bytes)) return false;
    if (!checked_product(hidden_factors, 3, &hidden_bytes)) return false;
    static const int order[STEP_FIELD_COUNT] = {STEP_COUNTS,   STEP_TOKENS,      STEP_SLOTS,     STEP_POSITIONS,
                                                STEP_OUT_ROWS, STEP_ROUTE_SEEDS, STEP_FOLLOWING, STEP_NEXT_TOKENS,
                                                STEP_DRAFTED,  STEP_LOGITS,      STEP_HIDDEN};
    fields[STEP_COUNTS].bytes = 2 * sizeof(int32_t);
    fields[STEP_TOKENS].bytes = row_bytes;
    fields[STEP_SLOTS].bytes = row_bytes;
    fields[STEP_POSITIONS].bytes = row_bytes;
    fields[STEP_OUT_ROWS].bytes = out_row_bytes;
    fields[STEP_NEXT_TOKENS].bytes = out_row_bytes;
    fields[STEP_LOGITS].bytes = logits_bytes;
    fields[STEP_ROUTE_SEEDS].bytes = row_bytes;
    fields[STEP_HIDDEN].bytes = hidden_bytes;
    fields[STEP_FOLLOWING].bytes = drafts ? row_bytes : 0;
    fields[STEP_DRAFTED].bytes = drafts ? out_row_bytes : 0;
    if (!place_fields(fields, order, STEP_FIELD_COUNT, total_bytes)) return false;
    for (int i = 0; i < STEP_FIELD_COUNT; i++)
        if (!fields[i].bytes) fields[i].offset = 0;
    return true;
}

uint32_t step_field_count(uint64_t hidden_size, uint64_t drafts)
{
    return (uint32_t)STEP_FIELD_COUNT - (hidden_size == 0) - (drafts == 0 ? 2u : 0u);
}

bool state_layout(const struct plan_geometry *geometry, struct plan_field fields[STATE_FIELD_COUNT],
                  uint64_t *total_bytes)
{
    const uint64_t table_factors[] = {geometry->slots, geometry->pages_per_slot, sizeof(int32_t)};
    uint64_t table_bytes, stride, other_tables;
    uint64_t seen_bytes = geometry->vocab_size / 8 + (geometry->vocab_size % 8 != 0);
    if (!checked_product(table_factors, 3, &table_bytes) || !checked_align(table_bytes, PLAN_ALIGNMENT, &stride) ||
        !checked_mul(stride, plan_page_groups(geometry) - 1, &other_tables) ||
        !checked_add(other_tables, table_bytes, &fields[STATE_PAGE_TABLE].bytes))
        return false;
    if (!checked_mul(geometry->slots, sizeof(struct sampler_state), &fields[STATE_SAMPLERS].bytes)) return false;
    if (!checked_mul(geometry->slots, seen_bytes, &fields[STATE_SEEN].bytes)) return false;
    if (!checked_mul(geometry->rope_original ? geometry->slots : 0, sizeof(int32_t), &fields[STATE_ROPE_SET].bytes))
        return false;
    if (!checked_mul(geometry->slots, geometry->recurrent_bytes, &fields[STATE_RECURRENT].bytes)) return false;
    const uint64_t rows = geometry->sampling_options ? geometry->slots : 0;
    const uint64_t adjustment_factors[] = {rows, plan_adjustment_words(geometry->vocab_size), sizeof(uint32_t)};
    const uint64_t allowed_factors[] = {rows, plan_allowed_words(geometry->vocab_size), sizeof(uint32_t)};
    if ((rows && geometry->vocab_size > UINT64_MAX - PLAN_BIAS_WORDS) ||
        !checked_product(adjustment_factors, 3, &fields[STATE_ADJUSTMENTS].bytes) ||
        !checked_product(allowed_factors, 3, &fields[STATE_ALLOWED].bytes))
        return false;
    /* What the host writes lies together (plan_host_state_bytes). */
    static const int order[STATE_FIELD_COUNT] = {STATE_PAGE_TABLE,  STATE_SAMPLERS, STATE_SEEN,     STATE_ROPE_SET,
                                                 STATE_ADJUSTMENTS, STATE_ALLOWED,  STATE_RECURRENT};
    if (!place_fields(fields, order, STATE_FIELD_COUNT, total_bytes)) return false;
    for (int i = 0; i < STATE_FIELD_COUNT; i++)
        if (!fields[i].bytes) fields[i].offset = 0;
    return true;
}

bool plan_place_step(struct plan *plan, uint64_t vocab_size, uint64_t hidden_size, uint64_t drafts)
{
    struct plan_header *header = &plan->header;
    header->field_count = step_field_count(hidden_size, drafts);
    return step_layout(header->rows, header->out_rows, vocab_size, hidden_size, drafts, plan->step,
                       &header->step_bytes);
}

uint64_t plan_page_table_stride(const struct plan_geometry *geometry)
{
    const uint64_t bytes = geometry->slots * geometry->pages_per_slot * sizeof(int32_t);
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

uint64_t plan_page_row(const struct plan_geometry *geometry, unsigned group, uint64_t slot)
{
    return group * (plan_page_table_stride(geometry) / sizeof(int32_t)) + slot * geometry->pages_per_slot;
}

/* A step reads the window before its first token and writes `chunk` tokens: window + chunk - 1 tokens in a row, of which the first
 * may be the last one of its page. No two of the pages that these touch are the same: kernels may clear the unused rows of the last one
 * (attention_cudnn_inputs). */
uint64_t plan_ring_pages(const struct plan_geometry *geometry, unsigned group, uint64_t chunk)
{
    const uint64_t window = geometry->page_window[group];
    if (!window || chunk > UINT64_MAX - window) return UINT64_MAX;
    const uint64_t after_first = window + chunk - 2;
    return after_first / geometry->page_tokens + (after_first % geometry->page_tokens != 0) + 1;
}

uint64_t plan_group_pages(const struct plan_geometry *geometry, unsigned group, uint64_t tokens, uint64_t chunk)
{
    const uint64_t all = tokens / geometry->page_tokens + (tokens % geometry->page_tokens != 0);
    const uint64_t ring = plan_ring_pages(geometry, group, chunk);
    return all < ring ? all : ring;
}

uint64_t plan_sequence_pages(const struct plan_geometry *geometry, uint64_t tokens, uint64_t chunk)
{
    uint64_t pages = 0;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        if (!checked_add(pages, plan_group_pages(geometry, g, tokens, chunk), &pages)) return UINT64_MAX;
    return pages;
}

uint64_t plan_most_out_rows(const struct plan *plans, size_t count)
{
    uint64_t most = 0;
    for (size_t p = 0; p < count; p++)
        if (plans[p].header.out_rows > most) most = plans[p].header.out_rows;
    return most;
}

uint64_t plan_longest_chunk(const struct plan *plans, size_t count)
{
    uint64_t longest = 1;
    for (size_t p = 0; p < count; p++)
        if (plans[p].header.kind == PLAN_PREFILL && plans[p].header.rows > longest) longest = plans[p].header.rows;
    return longest;
}

bool geometry_place_state(struct plan_geometry *geometry, uint64_t *total_bytes)
{
    return state_layout(geometry, geometry->state, total_bytes);
}

uint64_t plan_host_state_bytes(const struct plan_geometry *geometry)
{
    uint64_t bytes = 0;
    for (int i = 0; i < STATE_FIELD_COUNT; i++) {
        const struct plan_field *field = &geometry->state[i];
        if (i != STATE_RECURRENT && field->offset + field->bytes > bytes) bytes = field->offset + field->bytes;
    }
    return bytes;
}

uint64_t plan_input_bytes(const struct plan *plan)
{
    static const int inputs[] = {STEP_COUNTS,   STEP_TOKENS,      STEP_SLOTS,    STEP_POSITIONS,
                                 STEP_OUT_ROWS, STEP_ROUTE_SEEDS, STEP_FOLLOWING};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        const struct plan_field *field = &plan->step[inputs[i]];
        if (field->offset + field->bytes > bytes) bytes = field->offset + field->bytes;
    }
    return bytes;
}

unsigned plan_list_fields(const struct plan_field *fields, unsigned count, struct plan_field_entry *entries)
{
    unsigned listed = 0;
    for (unsigned i = 0; i < count; i++)
        if (fields[i].bytes)
            entries[listed++] = (struct plan_field_entry){
                .id = (uint16_t)(i + 1),
                .flags = PLAN_FIELD_ESSENTIAL,
                .offset = fields[i].offset,
                .bytes = fields[i].bytes,
            };
    return listed;
}

bool plan_lists_field(const struct plan_field_entry *entries, uint32_t entry_count, unsigned field)
{
    for (uint32_t i = 0; i < entry_count; i++)
        if (entries[i].id == field + 1) return true;
    return false;
}

static bool verify_field(const struct plan_field_entry *entries, uint32_t index, uint64_t space_bytes,
                         struct status *status)
{
    const struct plan_field_entry *entry = &entries[index];
    if (entry->id == 0 || (index > 0 && entry->id <= entries[index - 1].id))
        return status_fail(status, STATUS_CORRUPT, "id %u is not above the id before it", entry->id);
    if ((entry->flags & ~PLAN_FIELD_ESSENTIAL) != 0 || entry->reserved != 0)
        return status_fail(status, STATUS_CORRUPT, "unknown flags 0x%x, or a reserved field is not zero", entry->flags);
    if (entry->offset % PLAN_ALIGNMENT != 0 || entry->bytes == 0 ||
        !checked_range(entry->offset, entry->bytes, space_bytes))
        return status_fail(status, STATUS_CORRUPT,
                           "%" PRIu64 " bytes at offset %" PRIu64
                           ": expected at least 1 at a multiple of %d inside %" PRIu64 " bytes",
                           entry->bytes, entry->offset, PLAN_ALIGNMENT, space_bytes);
    for (uint32_t i = 0; i < index; i++)
        if (entry->offset < entries[i].offset + entries[i].bytes && entries[i].offset < entry->offset + entry->bytes)
            return status_fail(status, STATUS_CORRUPT, "overlaps the field of id %u", entries[i].id);
    return true;
}

bool plan_read_fields(const struct plan_field_entry *entries, uint32_t entry_count, enum plan_space space,
                      uint64_t space_bytes, struct plan_field *fields, unsigned count, struct status *status)
{
    const char *name = plan_space_name(space);
    unsigned found = 0, wanted = 0;
    for (unsigned i = 0; i < count; i++) wanted += fields[i].bytes > 0;
    if (entry_count > PLAN_MAX_FIELDS)
        return status_fail(status, STATUS_CORRUPT, "%" PRIu32 " fields of the %s space, at most %d are possible",
                           entry_count, name, PLAN_MAX_FIELDS);
    for (uint32_t i = 0; i < entry_count; i++) {
        const struct plan_field_entry *entry = &entries[i];
        if (!verify_field(entries, i, space_bytes, status)) return status_prefix(status, "%s field %" PRIu32, name, i);
        if (entry->id > count) {
            if (!(entry->flags & PLAN_FIELD_ESSENTIAL)) continue;
            return status_fail(status, STATUS_VERSION,
                               "needs a newer runtime: %s field %" PRIu32 " has id %u and is essential, this runtime "
                               "knows ids 1 to %u; use the runtime that came with the builder",
                               name, i, entry->id, count);
        }
        struct plan_field *field = &fields[entry->id - 1];
        found += field->bytes > 0;
        if (entry->bytes < field->bytes)
            return status_fail(status, STATUS_CORRUPT,
                               "%s field of id %u: expected at least %" PRIu64 " bytes, found %" PRIu64, name,
                               entry->id, field->bytes, entry->bytes);
        *field = (struct plan_field){entry->offset, entry->bytes};
    }
    if (found == wanted) return true;
    return status_fail(status, STATUS_CORRUPT, "the %s space has %u of its %u fields", name, found, wanted);
}

static bool verify_header(const struct plan_header *header, const struct plan_space_sizes *sizes, struct status *status)
{
    if (header->kind < PLAN_DECODE || header->kind >= PLAN_KIND_END)
        return status_fail(status, STATUS_CORRUPT,
                           "kind: expected %d (decode), %d (prefill), %d (mixed) or %d (verify), found %" PRIu32,
                           PLAN_DECODE, PLAN_PREFILL, PLAN_MIXED, PLAN_VERIFY, header->kind);
    if (header->rows < 1 || header->rows > INT32_MAX)
        return status_fail(status, STATUS_CORRUPT, "rows: expected 1 to %d, found %" PRIu32, INT32_MAX, header->rows);
    const uint32_t most = (uint32_t)plan_out_rows(header->kind, header->rows, header->rows);
    if (header->kind == PLAN_MIXED ? header->out_rows < 1 || header->out_rows > most : header->out_rows != most)
        return status_fail(status, STATUS_CORRUPT, "out_rows: expected %s%" PRIu32 ", found %" PRIu32,
                           header->kind == PLAN_MIXED ? "1 to " : "", most, header->out_rows);
    if (header->launch_count < 1 || header->launch_count > PLAN_MAX_LAUNCHES)
        return status_fail(status, STATUS_CORRUPT, "launch count: expected 1 to %d, found %" PRIu32, PLAN_MAX_LAUNCHES,
                           header->launch_count);
    /* Arrays longer than all launches together can use are a defect of the writer. */
    const struct {
        const char *what;
        uint32_t count, owners, each;
        const char *of;
    } arrays[] = {
        {"operand", header->operand_count, header->launch_count, PLAN_MAX_OPERANDS, "launches"},
        {"parameter", header->param_count, header->launch_count, PLAN_MAX_PARAMS, "launches"},
        {"tensor map", header->tensor_map_count, header->operand_count, 1, "operands"},
        {"dependency", header->dependency_count, header->launch_count, PLAN_MAX_DEPENDENCIES, "launches"},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i].count > arrays[i].owners * arrays[i].each)
            return status_fail(status, STATUS_CORRUPT, "%s count: %" PRIu32 " is too many for %" PRIu32 " %s",
                               arrays[i].what, arrays[i].count, arrays[i].owners, arrays[i].of);
    if (header->use > PLAN_USE_APART)
        return status_fail(status, STATUS_CORRUPT, "use: expected 0 or 1, found %" PRIu32, header->use);
    const uint64_t needed[SPACE_COUNT] = {[SPACE_ARENA] = header->arena_bytes, [SPACE_STEP] = header->step_bytes};
    for (unsigned space = 0; space < SPACE_COUNT; space++)
        if (needed[space] > sizes->bytes[space])
            return status_fail(status, STATUS_CORRUPT, "needs %" PRIu64 " %s bytes, the engine has %" PRIu64,
                               needed[space], plan_space_name(space), sizes->bytes[space]);
    return true;
}

static bool verify_operand(const struct plan_header *header, const struct plan_operand *operand,
                           const struct plan_space_sizes *sizes, struct status *status)
{
    if (operand->space >= SPACE_COUNT)
        return status_fail(status, STATUS_CORRUPT, "unknown memory space %u", operand->space);
    if (operand->reserved0 != 0) return status_fail(status, STATUS_CORRUPT, "a reserved field is not zero");
    if (operand->space == SPACE_NONE) {
        if (operand->access == 0 && operand->tensor_map == 0 && operand->offset == 0 && operand->bytes == 0)
            return true;
        return status_fail(status, STATUS_CORRUPT, "is absent, but a field of it is not zero");
    }
    if (operand->access < ACCESS_READ || operand->access > ACCESS_READ_WRITE)
        return status_fail(status, STATUS_CORRUPT, "unknown access %u", operand->access);
    if (operand->space == SPACE_WEIGHTS && operand->access != ACCESS_READ)
        return status_fail(status, STATUS_CORRUPT, "writes to the weights");
    if (operand->tensor_map > header->tensor_map_count)
        return status_fail(status, STATUS_CORRUPT, "tensor map %" PRIu32 " of %" PRIu32, operand->tensor_map - 1,
                           header->tensor_map_count);
    if (operand->offset % PLAN_ALIGNMENT != 0)
        return status_fail(status, STATUS_CORRUPT, "offset %" PRIu64 " is not a multiple of %d", operand->offset,
                           PLAN_ALIGNMENT);
    /* Arena and step: this plan's own sizes, so that the header states exactly what the plan uses. */
    uint64_t limit = operand->space == SPACE_ARENA  ? header->arena_bytes
                     : operand->space == SPACE_STEP ? header->step_bytes
                                                    : sizes->bytes[operand->space];
    if (operand->bytes == 0 || !checked_range(operand->offset, operand->bytes, limit))
        return status_fail(status, STATUS_CORRUPT,
                           "%" PRIu64 " bytes at offset %" PRIu64 " do not lie in the %" PRIu64 " bytes of space '%s'",
                           operand->bytes, operand->offset, limit, plan_space_name(operand->space));
    return true;
}

/* The launch's slices of the operand, parameter and dependency arrays. */
static bool verify_slices(const struct plan_header *header, const struct plan_launch *launch, struct status *status)
{
    const struct {
        const char *what;
        uint32_t first, count, most, all;
    } slices[] = {
        {"operands", launch->first_operand, launch->operand_count, PLAN_MAX_OPERANDS, header->operand_count},
        {"parameters", launch->first_param, launch->param_count, PLAN_MAX_PARAMS, header->param_count},
        {"dependencies", launch->first_dependency, launch->dependency_count, PLAN_MAX_DEPENDENCIES,
         header->dependency_count},
    };
    enum { SLICES = sizeof slices / sizeof *slices };
    for (int i = 0; i < SLICES; i++)
        if (slices[i].count > slices[i].most)
            return status_fail(status, STATUS_CORRUPT, "%" PRIu32 " %s, at most %" PRIu32 " are possible",
                               slices[i].count, slices[i].what, slices[i].most);
    for (int i = 0; i < SLICES; i++)
        if (!checked_range(slices[i].first, slices[i].count, slices[i].all))
            return status_fail(status, STATUS_CORRUPT, "%s %" PRIu32 " + %" PRIu32 " lie outside the plan's %" PRIu32,
                               slices[i].what, slices[i].first, slices[i].count, slices[i].all);
    return true;
}

/* Rising ids: none twice, and a reader merges them with its own list in one pass. */
static bool verify_params(const struct plan *plan, const struct plan_launch *launch, struct status *status)
{
    const struct plan_param *params = plan->params + launch->first_param;
    for (uint32_t i = 0; i < launch->param_count; i++) {
        if (params[i].id == 0 || (i > 0 && params[i].id <= params[i - 1].id))
            return status_fail(status, STATUS_CORRUPT, "parameter %" PRIu32 ": id %u is not above the id before it", i,
                               params[i].id);
        if ((params[i].flags & ~PLAN_PARAM_ESSENTIAL) != 0 || params[i].reserved != 0)
            return status_fail(status, STATUS_CORRUPT,
                               "parameter %" PRIu32 ": unknown flags 0x%x, or a reserved field is not zero", i,
                               params[i].flags);
    }
    return true;
}

static bool verify_launch(const struct plan *plan, uint32_t index, const struct plan_space_sizes *sizes,
                          struct status *status)
{
    const struct plan_launch *launch = &plan->launches[index];
    if (launch->op < OP_EMBED) return status_fail(status, STATUS_CORRUPT, "unknown op %u", launch->op);
    if (launch->op >= OP_COUNT)
        return status_fail(status, STATUS_VERSION,
                           "needs a newer runtime: unknown op %u; use the runtime that came with the builder",
                           launch->op);
    if (launch->reserved != 0) return status_fail(status, STATUS_CORRUPT, "a reserved field is not zero");
    if (!verify_slices(&plan->header, launch, status) || !verify_params(plan, launch, status)) return false;
    for (uint32_t i = 0; i < launch->operand_count; i++)
        if (!verify_operand(&plan->header, &plan->operands[launch->first_operand + i], sizes, status))
            return status_prefix(status, "operand %" PRIu32, i);
    /* Strictly rising indices below the launch's own: no cycle, no duplicate. */
    int64_t previous = -1;
    for (uint32_t i = 0; i < launch->dependency_count; i++) {
        uint32_t dependency = plan->dependencies[launch->first_dependency + i];
        if (dependency >= index || (int64_t)dependency <= previous)
            return status_fail(status, STATUS_CORRUPT,
                               "dependency %" PRIu32 ": launch %" PRIu32 " is not earlier, or not in rising order", i,
                               dependency);
        previous = dependency;
    }
    return true;
}

bool plan_verify(const struct plan *plan, const struct plan_space_sizes *sizes, const char *name, struct status *status)
{
    if (!verify_header(&plan->header, sizes, status)) return status_prefix(status, "%s", name);
    for (uint32_t i = 0; i < plan->header.launch_count; i++)
        if (!verify_launch(plan, i, sizes, status))
            return status_prefix(status, "%s: launch %" PRIu32 " (%s)", name, i, plan_op_name(plan->launches[i].op));
    return true;
}

void plan_free(struct plan *plan)
{
    free((void *)plan->launches);
    free((void *)plan->operands);
    free((void *)plan->params);
    free((void *)plan->tensor_maps);
    free((void *)plan->dependencies);
    memset(plan, 0, sizeof *plan);
}
