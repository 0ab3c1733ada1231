/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the choices that name each expert, or of the parts of each block, so that the rows of a matrix are multiplied
 * together. */
#include "kernels/matmul/matmul_tile.h"

static uint64_t begins(const int64_t *params) { return (uint64_t)matmul_matrices(params) + 1; }

uint64_t matmul_expert_list_bytes(const int64_t *params)
{
    const uint64_t numbers = begins(params) + (uint64_t)matmul_slots(params, params[MATMUL_ROWS]);
    return (numbers * sizeof(int32_t) + PANEL_LINE_BYTES - 1) / PANEL_LINE_BYTES * PANEL_LINE_BYTES;
}

void matmul_expert_lists(const int64_t *params, void *workspace, struct expert_lists *lists)
{
    int32_t *numbers = workspace;
    *lists = (struct expert_lists){matmul_matrices(params), numbers, numbers + begins(params)};
}

/* The list of a choice; the last one is of those that name no expert. */
static int64_t list_of(const float *routes, int64_t top_k, int64_t slot, int64_t experts)
{
    const int64_t expert = router_expert(routes + slot / top_k * 2 * top_k, top_k, slot % top_k, experts);
    return expert < 0 ? experts : expert;
}

/* A counting sort, which keeps the order of rows. */
void matmul_fill_expert_lists(const float *routes, int64_t rows, int64_t top_k, const struct expert_lists *lists)
{
    const int64_t experts = lists->experts;
    int32_t next[ROUTER_MAX_EXPERTS + 1] = {0}, total = 0;
    for (int64_t slot = 0; slot < rows * top_k; slot++) next[list_of(routes, top_k, slot, experts)]++;
    for (int64_t expert = 0; expert <= experts; expert++) {
        const int32_t count = next[expert];
        lists->begin[expert] = next[expert] = total;
        total += count;
    }
    for (int32_t slot = 0; slot < rows * top_k; slot++)
        lists->slots[next[list_of(routes, top_k, slot, experts)]++] = slot;
}

void matmul_fill_block_lists(int64_t rows, const struct expert_lists *lists)
{
    for (int64_t block = 0; block < lists->experts; block++) {
        lists->begin[block] = (int32_t)(block * rows);
        for (int64_t row = 0; row < rows; row++)
            lists->slots[block * rows + row] = (int32_t)(row * lists->experts + block);
    }
    lists->begin[lists->experts] = (int32_t)(lists->experts * rows);
}
