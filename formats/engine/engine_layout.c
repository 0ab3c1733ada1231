/* SPDX-License-Identifier: Apache-2.0 */
/* Computations that reader and writer of the engine file share. */
#include "formats/engine/engine_layout.h"

#include "formats/base/checked.h"

const char *engine_section_name(unsigned id)
{
    switch (id) {
    case SECTION_MANIFEST: return "manifest";
    case SECTION_TENSORS: return "tensors";
    case SECTION_WEIGHTS: return "weights";
    case SECTION_WEIGHT_HASHES: return "weight hashes";
    case SECTION_KERNELS: return "kernels";
    case SECTION_PLANS: return "plans";
    case SECTION_COLLECTIVES: return "collectives";
    case SECTION_TACTICS: return "tactics";
    case SECTION_TOKENIZER: return "tokenizer";
    case SECTION_GOLDEN: return "golden";
    case SECTION_SIGNATURE: return "signature";
    case SECTION_LIBRARY_CALLS: return "library calls";
    case SECTION_LIBRARY_PLANS: return "library plans";
    case SECTION_NAMES: return "names";
    case SECTION_GOLDEN_PLANS: return "golden plans";
    default: return "unknown";
    }
}

bool engine_section_place(unsigned type, uint64_t stored_bytes, uint64_t position, uint64_t *offset)
{
    /* Large pages pay for large weights; a small engine would only grow. */
    bool large = type == SECTION_WEIGHTS && stored_bytes >= ENGINE_WEIGHT_LARGE_BYTES;
    return checked_align(position, large ? ENGINE_WEIGHT_ALIGNMENT_LARGE : ENGINE_SECTION_ALIGNMENT, offset);
}

uint64_t engine_section_limit(unsigned type)
{
    switch (type) {
    case SECTION_MANIFEST: return UINT64_C(64) << 10;
    case SECTION_NAMES: return UINT64_C(256) << 10;
    case SECTION_TENSORS: return UINT64_C(64) << 20;
    case SECTION_KERNELS:
    case SECTION_LIBRARY_CALLS:
    case SECTION_LIBRARY_PLANS:
    case SECTION_PLANS: return UINT64_C(1) << 30;
    case SECTION_TACTICS:
    case SECTION_TOKENIZER: return UINT64_C(256) << 20;
    case SECTION_GOLDEN:
    case SECTION_GOLDEN_PLANS: return UINT64_C(1) << 30;
    default: return INT64_MAX; /* unused, or used in place */
    }
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

bool engine_host_check(struct status *status)
{
    const uint16_t probe = 1;
    uint8_t first;
    __builtin_memcpy(&first, &probe, 1);
    if (first == 1) return true;
    return status_fail(status, STATUS_MACHINE,
                       "engine files are little endian and used in place; this processor is big endian");
}
