/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders of the sections that have a structure of their own: tensors, plans, golden outputs. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_layout.h"

/* A section under construction; `used` never exceeds `size`, which the encoders compute beforehand. */
struct section_buffer {
    uint8_t *bytes;
    uint64_t size, used;
};

static bool buffer_open(struct section_buffer *buffer, uint64_t size, struct status *status)
{
    *buffer = (struct section_buffer){.bytes = calloc(1, size ? (size_t)size : 1), .size = size};
    return buffer->bytes || status_fail(status, STATUS_MACHINE, "out of memory");
}

static void buffer_add(struct section_buffer *buffer, const void *data, uint64_t size)
{
    if (size == 0) return;
    memcpy(buffer->bytes + buffer->used, data, (size_t)size);
    buffer->used += size;
}

static int compare_offsets(const void *left, const void *right)
{
    const struct engine_tensor *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* `sorted` by rising offset. */
static bool encode_tensors(struct engine_writer *writer, const struct engine_tensor *sorted, size_t count,
                           struct status *status)
{
    struct section_buffer buffer;
    uint64_t name_bytes = 0;
    for (size_t i = 0; i < count; i++) name_bytes += strlen(sorted[i].name) + 1;
    if (count > UINT32_MAX || name_bytes > UINT32_MAX)
        return status_fail(status, STATUS_BAD_INPUT, "engine: too many tensors");
    struct engine_tensors_header header = {.tensor_count = (uint32_t)count, .name_bytes = (uint32_t)name_bytes};
    if (!buffer_open(&buffer, sizeof header + count * sizeof(struct engine_tensor_entry) + name_bytes, status))
        return false;
    buffer_add(&buffer, &header, sizeof header);
    uint32_t name_offset = 0;
    for (size_t i = 0; i < count; i++) {
        const struct engine_tensor *tensor = &sorted[i];
        struct engine_tensor_entry entry = {
            .name_offset = name_offset,
            .name_bytes = (uint32_t)strlen(tensor->name),
            .dtype = (uint32_t)tensor->dtype,
            .layout = (uint16_t)tensor->layout,
            .rank = (uint16_t)tensor->rank,
            .offset = tensor->offset,
            .bytes = tensor->bytes,
        };
        for (int dimension = 0; dimension < tensor->rank && dimension < 4; dimension++)
            entry.shape[dimension] = tensor->shape[dimension];
        buffer_add(&buffer, &entry, sizeof entry);
        name_offset += entry.name_bytes + 1;
    }
    for (size_t i = 0; i < count; i++) buffer_add(&buffer, sorted[i].name, strlen(sorted[i].name) + 1);
    bool done = engine_writer_section(writer, SECTION_TENSORS, buffer.bytes, buffer.size, false, status);
    free(buffer.bytes);
    return done;
}

bool engine_writer_tensors(struct engine_writer *writer, const struct engine_tensor *tensors, size_t count,
                           struct status *status)
{
    if (count == 0) return status_fail(status, STATUS_INTERNAL, "engine writer: no tensors");
    struct engine_tensor *sorted = calloc(count, sizeof *sorted);
    if (!sorted) return status_fail(status, STATUS_MACHINE, "out of memory");
    memcpy(sorted, tensors, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_offsets);
    bool done = encode_tensors(writer, sorted, count, status);
    free(sorted);
    return done;
}

/* Only routers read seeds, and those that do have an essential parameter. */
static unsigned list_step_fields(const struct plan *plan, struct plan_field_entry entries[STEP_FIELD_COUNT])
{
    const unsigned count = plan_list_fields(plan->step, STEP_FIELD_COUNT, entries);
    for (unsigned i = 0; i < count; i++)
        if (entries[i].id == STEP_ROUTE_SEEDS + 1) entries[i].flags = 0;
    return count;
}

/* Only sample reads these two, and its launches that do have an essential parameter. */
static unsigned list_state_fields(const struct plan_geometry *geometry,
                                  struct plan_field_entry entries[STATE_FIELD_COUNT])
{
    const unsigned count = plan_list_fields(geometry->state, STATE_FIELD_COUNT, entries);
    for (unsigned i = 0; i < count; i++)
        if (entries[i].id == STATE_ADJUSTMENTS + 1 || entries[i].id == STATE_ALLOWED + 1) entries[i].flags = 0;
    return count;
}

/* `geometry`: its state fields are listed in the section; NULL: none. */
static bool encode_plans(struct engine_writer *writer, enum engine_section section, const struct plan *plans,
                         size_t count, const struct plan_geometry *geometry, struct status *status)
{
    struct section_buffer buffer;
    struct plan_field_entry state[STATE_FIELD_COUNT], step[STEP_FIELD_COUNT];
    struct engine_plans_header header = {.plan_count = (uint32_t)count};
    if (geometry) header.field_count = list_state_fields(geometry, state);
    uint64_t size = sizeof header + header.field_count * sizeof *state + count * sizeof(struct plan_header);
    if (count > UINT32_MAX) return status_fail(status, STATUS_BAD_INPUT, "engine: too many plans");
    for (size_t i = 0; i < count; i++) {
        uint64_t body_bytes;
        if (plans[i].header.field_count != list_step_fields(&plans[i], step))
            return status_fail(status, STATUS_INTERNAL, "engine writer: plan %zu has no step fields", i);
        if (!engine_plan_body_bytes(&plans[i].header, &body_bytes) || !checked_add(size, body_bytes, &size))
            return status_fail(status, STATUS_BAD_INPUT, "engine: the plans are too large");
    }
    if (!buffer_open(&buffer, size, status)) return false;
    buffer_add(&buffer, &header, sizeof header);
    buffer_add(&buffer, state, header.field_count * sizeof *state);
    for (size_t i = 0; i < count; i++) buffer_add(&buffer, &plans[i].header, sizeof plans[i].header);
    for (size_t i = 0; i < count; i++) {
        const struct plan_header *counts = &plans[i].header;
        buffer_add(&buffer, plans[i].launches, counts->launch_count * sizeof *plans[i].launches);
        buffer_add(&buffer, plans[i].operands, counts->operand_count * sizeof *plans[i].operands);
        buffer_add(&buffer, plans[i].params, counts->param_count * sizeof *plans[i].params);
        buffer_add(&buffer, plans[i].tensor_maps, counts->tensor_map_count * sizeof *plans[i].tensor_maps);
        buffer_add(&buffer, step, list_step_fields(&plans[i], step) * sizeof *step);
        buffer_add(&buffer, plans[i].dependencies, counts->dependency_count * sizeof *plans[i].dependencies);
        buffer.used += buffer.used % sizeof(uint64_t); /* the last array may end in the middle of 8 bytes */
    }
    /* Not compressed, so that the runtime uses them in place. */
    bool done = engine_writer_section(writer, section, buffer.bytes, buffer.size, false, status);
    free(buffer.bytes);
    return done;
}

bool engine_writer_plans(struct engine_writer *writer, const struct plan *plans, size_t count,
                         const struct plan_geometry *geometry, struct status *status)
{
    return encode_plans(writer, SECTION_PLANS, plans, count, geometry, status);
}

bool engine_writer_library_plans(struct engine_writer *writer, const struct plan *plans, size_t count,
                                 struct status *status)
{
    return count == 0 || encode_plans(writer, SECTION_LIBRARY_PLANS, plans, count, NULL, status);
}

bool engine_writer_golden(struct engine_writer *writer, const struct engine_golden *golden, struct status *status)
{
    struct section_buffer buffer;
    struct engine_golden_header header = {
        .header_bytes = sizeof header,
        .prompt_count = golden->prompt_count,
        .token_count = golden->token_count,
        .vocab_size = golden->vocab_size,
        .tolerance = golden->tolerance,
    };
    uint64_t prompt_bytes = golden->prompt_count * sizeof(int32_t);
    uint64_t token_bytes = golden->token_count * sizeof(int32_t);
    uint64_t logits_bytes, size;
    const uint64_t factors[] = {golden->token_count, golden->vocab_size, sizeof(float)};
    if (!checked_product(factors, 3, &logits_bytes) ||
        !checked_add(sizeof header + prompt_bytes + token_bytes, logits_bytes, &size))
        return status_fail(status, STATUS_BAD_INPUT, "engine: the golden outputs are too large");
    if (!buffer_open(&buffer, size, status)) return false;
    buffer_add(&buffer, &header, sizeof header);
    buffer_add(&buffer, golden->prompt, prompt_bytes);
    buffer_add(&buffer, golden->tokens, token_bytes);
    buffer_add(&buffer, golden->logits, logits_bytes);
    /* Stored without compression: logits do not compress. */
    bool done = engine_writer_section(writer, SECTION_GOLDEN, buffer.bytes, buffer.size, false, status);
    free(buffer.bytes);
    return done;
}

bool engine_writer_golden_drafts(struct engine_writer *writer, const struct engine_golden *golden,
                                 const struct golden_cases *cases, struct status *status)
{
    struct section_buffer buffer;
    const struct golden_drafts *parts[] = {&golden->drafts, &cases->drafts};
    const struct engine_golden_drafts_header header = {
        .header_bytes = sizeof header,
        .vocab_size = cases->vocab_size,
        .token_count = golden->token_count,
        .row_count = cases->row_count,
    };
    const uint64_t counts[] = {header.token_count, header.row_count};
    const uint64_t row_bytes = plan_allowed_words(header.vocab_size) * sizeof(uint32_t);
    uint64_t body_bytes, size;
    if (!cases->drafts.tokens) return true;
    if (!engine_golden_drafts_bytes(&header, &body_bytes) || !checked_add(sizeof header, body_bytes, &size))
        return status_fail(status, STATUS_BAD_INPUT, "engine: the golden outputs of drafts are too large");
    if (!buffer_open(&buffer, size, status)) return false;
    buffer_add(&buffer, &header, sizeof header);
    for (int i = 0; i < 2; i++) buffer_add(&buffer, parts[i]->tokens, counts[i] * sizeof *parts[i]->tokens);
    for (int i = 0; i < 2; i++) buffer_add(&buffer, parts[i]->near, counts[i] * row_bytes);
    bool done = engine_writer_section(writer, SECTION_GOLDEN_DRAFTS, buffer.bytes, buffer.size, true, status);
    free(buffer.bytes);
    return done;
}

bool engine_writer_golden_plans(struct engine_writer *writer, const struct golden_cases *cases, struct status *status)
{
    struct section_buffer buffer;
    const struct engine_golden_plans_header header = {
        .header_bytes = sizeof header,
        .vocab_size = cases->vocab_size,
        .tolerance = cases->tolerance,
        .token_count = cases->token_count,
        .sequence_count = cases->sequence_count,
        .row_count = cases->row_count,
        .case_count = cases->case_count,
        .item_count = cases->item_count,
    };
    uint64_t body_bytes, size;
    if (cases->case_count == 0) return true;
    if (!engine_golden_plans_bytes(&header, &body_bytes) || !checked_add(sizeof header, body_bytes, &size))
        return status_fail(status, STATUS_BAD_INPUT, "engine: the golden outputs of the plans are too large");
    if (!buffer_open(&buffer, size, status)) return false;
    buffer_add(&buffer, &header, sizeof header);
    buffer_add(&buffer, cases->sequences, cases->sequence_count * sizeof *cases->sequences);
    buffer_add(&buffer, cases->rows, cases->row_count * sizeof *cases->rows);
    buffer_add(&buffer, cases->cases, cases->case_count * sizeof *cases->cases);
    buffer_add(&buffer, cases->items, cases->item_count * sizeof *cases->items);
    buffer_add(&buffer, cases->tokens, cases->token_count * sizeof *cases->tokens);
    buffer_add(&buffer, cases->logits, (uint64_t)cases->row_count * cases->vocab_size * sizeof *cases->logits);
    bool done = engine_writer_section(writer, SECTION_GOLDEN_PLANS, buffer.bytes, buffer.size, false, status);
    free(buffer.bytes);
    return done;
}
