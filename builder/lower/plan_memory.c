/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/plan_memory.h"

#include <stdlib.h>
#include <string.h>

#include "builder/lower/operands.h"
#include "formats/base/checked.h"

enum { NOWHERE = -1 };

/* The arena as a list of blocks in use, sorted by offset. */
struct arena {
    struct block {
        uint64_t offset, bytes;
    } * blocks;
    size_t count;
    uint64_t high_water;
};

static bool arena_take(struct arena *arena, uint64_t bytes, uint64_t *offset)
{
    uint64_t best = UINT64_MAX, best_slack = UINT64_MAX, end = 0;
    size_t at = arena->count;
    for (size_t i = 0; i <= arena->count; i++) {
        uint64_t limit = i < arena->count ? arena->blocks[i].offset : UINT64_MAX / 2;
        uint64_t hole = limit - end;
        /* The open end counts as a hole too, but only when nothing else fits. */
        uint64_t slack = i < arena->count ? hole - bytes : UINT64_MAX - 1;
        if (hole >= bytes && slack < best_slack) {
            best = end;
            best_slack = slack;
            at = i;
        }
        if (i < arena->count) end = arena->blocks[i].offset + arena->blocks[i].bytes;
    }
    if (best == UINT64_MAX) return false;
    memmove(&arena->blocks[at + 1], &arena->blocks[at], (arena->count - at) * sizeof *arena->blocks);
    arena->blocks[at] = (struct block){best, bytes};
    arena->count++;
    if (best + bytes > arena->high_water) arena->high_water = best + bytes;
    *offset = best;
    return true;
}

static void arena_give_back(struct arena *arena, uint64_t offset)
{
    for (size_t i = 0; i < arena->count; i++) {
        if (arena->blocks[i].offset != offset) continue;
        arena->count--;
        memmove(&arena->blocks[i], &arena->blocks[i + 1], (arena->count - i) * sizeof *arena->blocks);
        return;
    }
}

static bool value_bytes(const struct graph *graph, int value, uint64_t rows, uint64_t out_rows, uint64_t *bytes)
{
    const struct graph_value *v = &graph->values[value];
    uint64_t factors[] = {v->rows == ROWS_TOKENS ? rows : out_rows, v->width, dtype_bytes(v->dtype)};
    return checked_product(factors, 3, bytes) && checked_align(*bytes, PLAN_ALIGNMENT, bytes) &&
           *bytes < UINT64_MAX / 4;
}

/* Bytes of the node's operand of that role; 0: it has none. */
static bool role_bytes(const struct graph *graph, const struct graph_node *node, const struct lowering *lowering,
                       uint64_t rows, uint64_t out_rows, enum op_role role, uint64_t *bytes)
{
    const struct op_descriptor *op = op_find(node->op);
    int64_t params[PLAN_MAX_PARAMS];
    *bytes = 0;
    for (int i = 0; i < op->operand_count; i++) {
        if (op->operands[i].role != role) continue;
        lower_params(graph, lowering, rows, out_rows, node, params);
        if (op_has_operand(op, graph->target, params, i))
            return op_operand_bytes(op, graph->target, params, &lowering->geometry, i, bytes);
    }
    return true;
}

static bool workspace_bytes(const struct graph *graph, const struct graph_node *node, const struct lowering *lowering,
                            uint64_t rows, uint64_t out_rows, uint64_t *bytes)
{
    return role_bytes(graph, node, lowering, rows, out_rows, ROLE_WORKSPACE, bytes) &&
           checked_align(*bytes, PLAN_ALIGNMENT, bytes);
}

bool lower_exchange_bytes(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                          uint64_t *bytes, struct status *status)
{
    *bytes = 0;
    for (int n = 0; n < graph->node_count; n++) {
        uint64_t own;
        if (!role_bytes(graph, &graph->nodes[n], lowering, rows, out_rows, ROLE_EXCHANGE, &own) ||
            !checked_align(own, LOWER_EXCHANGE_OFFSET, &own))
            return status_fail(status, STATUS_BAD_INPUT, "what ranks exchange for %llu rows does not fit into 64 bits",
                               (unsigned long long)rows);
        if (own > *bytes) *bytes = own;
    }
    return true;
}

/* Two buffers in turn. A plan with an odd number of collectives ends in a third one, since the next plan begins in the
 * first (see struct comm_header). */
static bool place_exchange(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                           struct memory_plan *memory)
{
    int last = -1;
    uint64_t turn = 0;
    for (int n = 0; n < graph->node_count; n++) {
        if (!role_bytes(graph, &graph->nodes[n], lowering, rows, out_rows, ROLE_EXCHANGE, &memory->exchange_bytes[n]) ||
            memory->exchange_bytes[n] > lowering->exchange_bytes)
            return false;
        if (memory->exchange_bytes[n] == 0) continue;
        memory->exchange_offset[n] = LOWER_EXCHANGE_OFFSET + turn++ % 2 * lowering->exchange_bytes;
        last = n;
    }
    if (turn % 2) memory->exchange_offset[last] = LOWER_EXCHANGE_OFFSET + 2 * lowering->exchange_bytes;
    return true;
}

static void find_last_uses(const struct graph *graph, int *last_use)
{
    for (int v = 0; v < graph->value_count; v++) last_use[v] = NOWHERE;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(&graph->nodes[n], i)) last_use[graph->nodes[n].operands[i]] = n;
}

struct planner {
    const struct graph *graph;
    struct memory_plan *memory;
    struct arena arena;
    uint64_t *bytes;  /* [value_count] */
    int *last_use;    /* [value_count]: node index */
    bool *taken_over; /* [value_count]: another value lives in its memory now */
};

/* Whether an output may live in the memory of an input: one that dies here, of the same size. */
static bool can_replace(const struct planner *planner, int n, int input, int value)
{
    return input >= 0 && planner->last_use[input] == n && !planner->taken_over[input] &&
           planner->bytes[input] == planner->bytes[value] && planner->memory->value_offset[input] != UINT64_MAX;
}

static bool place_output(struct planner *planner, int n, int o)
{
    const struct graph_node *node = &planner->graph->nodes[n];
    const struct op_operand *schema = &op_find(node->op)->operands[o];
    const unsigned replaces =
        schema->replaces | (planner->graph->target == TARGET_CPU ? (unsigned)schema->replaces_cpu : 0);
    const int value = node->operands[o];
    if (planner->graph->values[value].place != VALUE_ARENA) return true;
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) {
        if (!(replaces & (1u << i)) || !can_replace(planner, n, node->operands[i], value)) continue;
        planner->memory->value_offset[value] = planner->memory->value_offset[node->operands[i]];
        planner->taken_over[node->operands[i]] = true;
        return true;
    }
    return arena_take(&planner->arena, planner->bytes[value], &planner->memory->value_offset[value]);
}

static bool plan_node(struct planner *planner, int n)
{
    const struct graph_node *node = &planner->graph->nodes[n];
    struct memory_plan *memory = planner->memory;
    for (int o = 0; o < PLAN_MAX_OPERANDS; o++)
        if (graph_makes(node, o) && !place_output(planner, n, o)) return false;
    if (memory->workspace_bytes[n]) {
        if (!arena_take(&planner->arena, memory->workspace_bytes[n], &memory->workspace_offset[n])) return false;
        arena_give_back(&planner->arena, memory->workspace_offset[n]);
    }
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) {
        int value = node->operands[i];
        if (!graph_reads(node, i) || planner->last_use[value] != n || planner->taken_over[value]) continue;
        if (memory->value_offset[value] == UINT64_MAX) continue;
        arena_give_back(&planner->arena, memory->value_offset[value]);
        planner->taken_over[value] = true; /* an input named twice is released once */
    }
    for (int o = 0; o < PLAN_MAX_OPERANDS; o++) {
        int value = node->operands[o];
        if (graph_makes(node, o) && planner->last_use[value] == NOWHERE && memory->value_offset[value] != UINT64_MAX)
            arena_give_back(&planner->arena, memory->value_offset[value]);
    }
    return true;
}

bool plan_memory(const struct graph *graph, const struct lowering *lowering, uint64_t rows, uint64_t out_rows,
                 struct memory_plan *memory, struct status *status)
{
    size_t values = (size_t)graph->value_count, nodes = (size_t)graph->node_count;
    bool ok = false;
    struct planner planner = {.graph = graph, .memory = memory};
    memory->arena_bytes = 0;
    memory->value_offset = malloc((values + 1) * sizeof *memory->value_offset);
    memory->workspace_offset = calloc(nodes + 1, sizeof *memory->workspace_offset);
    memory->workspace_bytes = calloc(nodes + 1, sizeof *memory->workspace_bytes);
    memory->exchange_offset = calloc(nodes + 1, sizeof *memory->exchange_offset);
    memory->exchange_bytes = calloc(nodes + 1, sizeof *memory->exchange_bytes);
    planner.bytes = calloc(values + 1, sizeof *planner.bytes);
    planner.last_use = calloc(values + 1, sizeof *planner.last_use);
    planner.taken_over = calloc(values + 1, sizeof *planner.taken_over);
    planner.arena.blocks = calloc(values + nodes + 2, sizeof *planner.arena.blocks);
    if (!memory->value_offset || !memory->workspace_offset || !memory->workspace_bytes || !memory->exchange_offset ||
        !memory->exchange_bytes || !planner.bytes || !planner.last_use || !planner.taken_over ||
        !planner.arena.blocks) {
        status_fail(status, STATUS_MACHINE, "out of memory while planning memory");
        goto done;
    }
    uint64_t scratch;
    if (lowering->scratch_bytes && !arena_take(&planner.arena, lowering->scratch_bytes, &scratch)) {
        status_fail(status, STATUS_BAD_INPUT, "the scratch memory does not fit into 64-bit sizes");
        goto done;
    }
    if (!place_exchange(graph, lowering, rows, out_rows, memory)) {
        status_fail(status, STATUS_BAD_INPUT, "what ranks exchange for %llu rows does not fit into 64 bits",
                    (unsigned long long)rows);
        goto done;
    }
    find_last_uses(graph, planner.last_use);
    for (size_t v = 0; v < values; v++) {
        memory->value_offset[v] = UINT64_MAX;
        if (!value_bytes(graph, (int)v, rows, out_rows, &planner.bytes[v])) {
            status_fail(status, STATUS_BAD_INPUT, "value '%s' of %llu rows does not fit into 64-bit sizes",
                        graph->values[v].name, (unsigned long long)rows);
            goto done;
        }
    }
    for (size_t n = 0; n < nodes; n++) {
        if (!workspace_bytes(graph, &graph->nodes[n], lowering, rows, out_rows, &memory->workspace_bytes[n]) ||
            !plan_node(&planner, (int)n)) {
            status_fail(status, STATUS_BAD_INPUT, "the arena for %llu rows does not fit into 64-bit sizes",
                        (unsigned long long)rows);
            goto done;
        }
    }
    memory->arena_bytes = planner.arena.high_water;
    ok = true;
done:
    free(planner.bytes);
    free(planner.last_use);
    free(planner.taken_over);
    free(planner.arena.blocks);
    if (!ok) memory_plan_free(memory);
    return ok;
}

void memory_plan_free(struct memory_plan *memory)
{
    free(memory->value_offset);
    free(memory->workspace_offset);
    free(memory->workspace_bytes);
    free(memory->exchange_offset);
    free(memory->exchange_bytes);
    memset(memory, 0, sizeof *memory);
}
