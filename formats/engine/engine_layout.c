/* SPDX-License-Identifier: Apache-2.0 */
/* Computations that reader and writer of the engine file share. */
#include "formats/engine/engine_layout.h"

#include "formats/base/checked.h"

/* Sections that are unused, or used in place, have no limit of their own. */
static const struct engine_section_traits section_traits[SECTION_COUNT] = {
    [0] = {"unknown", INT64_MAX, false, false},
    [SECTION_MANIFEST] = {"manifest", 64 << 10, true, true},
    [SECTION_TENSORS] = {"tensors", 64 << 20, true, true},
    [SECTION_WEIGHTS] = {"weights", INT64_MAX, true, false},
    [SECTION_WEIGHT_HASHES] = {"weight hashes", INT64_MAX, true, true},
    [SECTION_KERNELS] = {"kernels", 1 << 30, true, true},
    [SECTION_PLANS] = {"plans", 1 << 30, true, true},
    [SECTION_COLLECTIVES] = {"collectives", INT64_MAX, false, false},
    [SECTION_TACTICS] = {"tactics", 256 << 20, true, false},
    [SECTION_TOKENIZER] = {"tokenizer", 256 << 20, true, false},
    [SECTION_GOLDEN] = {"golden", 1 << 30, true, false},
    [SECTION_SIGNATURE] = {"signature", INT64_MAX, false, false},
    [SECTION_LIBRARY_CALLS] = {"library calls", 1 << 30, true, false},
    [SECTION_LIBRARY_PLANS] = {"library plans", 1 << 30, true, false},
    [SECTION_NAMES] = {"names", 256 << 10, true, true},
    [SECTION_GOLDEN_PLANS] = {"golden plans", 1 << 30, true, false},
    [SECTION_GOLDEN_DRAFTS] = {"golden drafts", 1 << 30, true, false},
    [SECTION_CHAT_TEMPLATES] = {"chat templates", CHAT_TEMPLATES_MOST_BYTES, true, false},
};

const struct engine_section_traits *engine_section_traits(unsigned id)
{
    return &section_traits[id < SECTION_COUNT ? id : 0];
}

const char *engine_section_name(unsigned id) { return engine_section_traits(id)->name; }

bool engine_section_place(unsigned type, uint64_t stored_bytes, uint64_t position, uint64_t *offset)
{
    /* Large pages pay for large weights; a small engine would only grow. */
    bool large = type == SECTION_WEIGHTS && stored_bytes >= ENGINE_WEIGHT_LARGE_BYTES;
    return checked_align(position, large ? ENGINE_WEIGHT_ALIGNMENT_LARGE : ENGINE_SECTION_ALIGNMENT, offset);
}

bool engine_plan_body_bytes(const struct plan_header *header, uint64_t *bytes)
{
    /* Six 32-bit counts times small structs: cannot overflow. */
    uint64_t total = (uint64_t)header->launch_count * sizeof(struct plan_launch) +
                     (uint64_t)header->operand_count * sizeof(struct plan_operand) +
                     (uint64_t)header->param_count * sizeof(struct plan_param) +
                     (uint64_t)header->tensor_map_count * sizeof(struct plan_tensor_map) +
                     (uint64_t)header->field_count * sizeof(struct plan_field_entry) +
                     (uint64_t)header->dependency_count * sizeof(uint32_t);
    return checked_align(total, sizeof(uint64_t), bytes);
}

bool engine_golden_plans_bytes(const struct engine_golden_plans_header *header, uint64_t *bytes)
{
    /* Five 32-bit counts times small structs: no overflow. */
    const uint64_t tables = (uint64_t)header->sequence_count * sizeof(struct golden_sequence) +
                            (uint64_t)header->row_count * sizeof(struct golden_row) +
                            (uint64_t)header->case_count * sizeof(struct golden_case) +
                            (uint64_t)header->item_count * sizeof(uint32_t) +
                            (uint64_t)header->token_count * sizeof(int32_t);
    const uint64_t factors[] = {header->row_count, header->vocab_size, sizeof(float)};
    uint64_t logits;
    return checked_product(factors, 3, &logits) && checked_add(tables, logits, bytes);
}

bool engine_golden_drafts_bytes(const struct engine_golden_drafts_header *header, uint64_t *bytes)
{
    const uint64_t rows = (uint64_t)header->token_count + header->row_count;
    const uint64_t row_bytes = sizeof(int32_t) + plan_allowed_words(header->vocab_size) * sizeof(uint32_t);
    return checked_mul(rows, row_bytes, bytes);
}

bool engine_host_check(struct status *status)
{
    const uint16_t probe = 1;
    uint8_t first;
    __builtin_memcpy(&first, &probe, 1);
    if (first == 1) return true;
    return status_fail(status, STATUS_MACHINE,
                       "engine files are little endian and used in place; this processor is big endian");
}
