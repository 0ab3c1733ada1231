/* SPDX-License-Identifier: Apache-2.0 */
/* How attention is cut into tasks, independent of the instruction set.
 *
 * A "line" is one query vector: one head of one row. A run is a stretch of rows of one slot; the lines of a run that
 * share a kv head are numbered row by row, and a task covers up to attention_tile_lines of them, so that keys and values
 * are fetched and rearranged once for many lines. A task covers all blocks of its lines, or, where that would leave
 * members idle, a single block; then the partial results go through the workspace. */
#ifndef KERNELS_ATTENTION_ATTENTION_PLAN_H
#define KERNELS_ATTENTION_ATTENTION_PLAN_H

#include "kernels/attention/attention.h"
#include "kernels/cpu/pages.h"
#include "kernels/op/op.h"

enum {
    ATTENTION_TILE_LINES = 64,    /* most lines of a task */
    ATTENTION_TILE_FLOATS = 8192, /* most floats of accumulated values of a task */
    ATTENTION_STRIDE_FLOATS = 16, /* accumulators are padded to a multiple, so that full vectors may be stored */
    ATTENTION_SPLIT_ROWS = 16,    /* rows for which the workspace has room */
    ATTENTION_PARTIAL_MAX = 0,    /* a partial result: maximum, sum, then the values at a multiple of 64 bytes */
    ATTENTION_PARTIAL_SUM = 1,
    ATTENTION_PARTIAL_VALUES = 16,
};

struct attention_problem {
    const float *q;
    float *out, *workspace;
    const int32_t *slots, *positions;
    struct pages pages;
    enum encoding_id encoding; /* of the KV cache */
    int64_t rows, heads, kv_heads, group, head_dim, value_dim, stride, window, blocks;
    float scale, cap;  /* cap 0: none */
    const void *sinks; /* NULL: none */
    enum dtype sinks_dtype;
};

static inline int64_t attention_stride(int64_t value_dim)
{
    return (value_dim + ATTENTION_STRIDE_FLOATS - 1) / ATTENTION_STRIDE_FLOATS * ATTENTION_STRIDE_FLOATS;
}

static inline struct attention_problem attention_problem_of(const struct op_call *call)
{
    const int64_t *params = call->params;
    int64_t heads = params[ATTENTION_HEADS], kv_heads = params[ATTENTION_KV_HEADS];
    int64_t head_dim = params[ATTENTION_HEAD_DIM];
    int64_t tokens = params[ATTENTION_PAGE_TOKENS] * params[ATTENTION_PAGES_PER_SLOT];
    return (struct attention_problem){
        .q = call->operands[ATTENTION_Q],
        .out = call->operands[ATTENTION_OUT],
        .workspace = call->operands[ATTENTION_WORKSPACE],
        .slots = call->operands[ATTENTION_SLOTS],
        .positions = call->operands[ATTENTION_POSITIONS],
        .pages = pages_of_latent(call->operands[ATTENTION_KV], call->operands[ATTENTION_PAGE_TABLE], params,
                                 params[ATTENTION_VALUE_DIM]),
        .encoding = (enum encoding_id)params[ATTENTION_KV_DTYPE],
        .rows = op_valid_rows(call),
        .heads = heads,
        .kv_heads = kv_heads,
        .group = heads / kv_heads,
        .head_dim = head_dim,
        .value_dim = attention_value_dim(params),
        .stride = attention_stride(attention_value_dim(params)),
        .window = params[ATTENTION_WINDOW],
        .blocks = (tokens + ATTENTION_BLOCK_TOKENS - 1) / ATTENTION_BLOCK_TOKENS,
        .scale = op_float_param(params, ATTENTION_SCALE_BITS),
        .cap = op_float_param(params, ATTENTION_CAP_BITS),
        .sinks = params[ATTENTION_HAS_SINKS] ? call->operands[ATTENTION_SINKS] : NULL,
        .sinks_dtype = (enum dtype)params[ATTENTION_SINKS_DTYPE],
    };
}

/* First token that a row sees; the last one is its own position. */
static inline int64_t attention_first_token(const struct attention_problem *problem, int64_t row)
{
    int64_t first = (int64_t)problem->positions[row] - problem->window + 1;
    return problem->window && first > 0 ? first : 0;
}

static inline int64_t attention_first_block(const struct attention_problem *problem, int64_t row)
{
    return attention_first_token(problem, row) / ATTENTION_BLOCK_TOKENS;
}

static inline int64_t attention_last_block(const struct attention_problem *problem, int64_t row)
{
    return problem->positions[row] / ATTENTION_BLOCK_TOKENS;
}

static inline int64_t attention_tile_lines(const struct attention_problem *problem)
{
    int64_t lines = ATTENTION_TILE_FLOATS / problem->stride;
    return lines < ATTENTION_TILE_LINES ? lines : ATTENTION_TILE_LINES;
}

/* The place of the partial result of a line and block, ATTENTION_PARTIAL_VALUES + stride floats. */
static inline float *attention_partial(const struct attention_problem *problem, int64_t row, int64_t head,
                                       int64_t block)
{
    int64_t index = (row * problem->blocks + block) * problem->heads + head;
    return problem->workspace + index * (ATTENTION_PARTIAL_VALUES + problem->stride);
}

/* Number of rows from `first` on that belong to its slot. */
static inline int64_t attention_run_rows(const struct attention_problem *problem, int64_t first)
{
    int64_t last = first + 1;
    while (last < problem->rows && problem->slots[last] == problem->slots[first]) last++;
    return last - first;
}

/* Blocks [*first, *last] that any of the rows needs. */
static inline void attention_run_blocks(const struct attention_problem *problem, int64_t row, int64_t rows,
                                        int64_t *first, int64_t *last)
{
    *first = attention_first_block(problem, row);
    *last = attention_last_block(problem, row);
    for (int64_t r = row + 1; r < row + rows; r++) {
        int64_t low = attention_first_block(problem, r), high = attention_last_block(problem, r);
        if (low < *first) *first = low;
        if (high > *last) *last = high;
    }
}

/* Whether a task is a single block: if one task over all its blocks would be a large part of each member's work. All
 * members decide alike, as they read the same data. */
static inline bool attention_is_split(const struct attention_problem *problem, int members)
{
    enum { LONGEST_TASK_SHARE = 4 }; /* a whole task may be this fraction of a member's share */
    if (members == 1 || problem->rows > ATTENTION_SPLIT_ROWS) return false;
    int64_t total = 0, longest = 0, most_blocks = 0, run_rows;
    for (int64_t row = 0; row < problem->rows; row += run_rows) {
        int64_t first, last;
        run_rows = attention_run_rows(problem, row);
        attention_run_blocks(problem, row, run_rows, &first, &last);
        int64_t blocks = last - first + 1, lines = run_rows * problem->group;
        total += blocks * lines * problem->kv_heads;
        if (lines > attention_tile_lines(problem)) lines = attention_tile_lines(problem);
        if (blocks * lines > longest) longest = blocks * lines;
        if (blocks > most_blocks) most_blocks = blocks;
    }
    return most_blocks > 1 && longest * LONGEST_TASK_SHARE * members > total;
}

struct attention_task {
    int64_t row; /* first row of the run */
    int64_t kv_head;
    int64_t first_line, lines;       /* of this run and kv head */
    int64_t first_block, last_block; /* inclusive */
};

/* A member's position in the sequence of tasks; tickets only rise, so it never goes back. Zero at the start. */
struct attention_cursor {
    int64_t row, tasks_before;
};

/* Task number `ticket`; false when there are no more. Later rows come first, as they have the most tokens. */
static inline bool attention_task_at(const struct attention_problem *problem, bool split,
                                     struct attention_cursor *cursor, int64_t ticket, struct attention_task *task)
{
    const int64_t tile_lines = attention_tile_lines(problem);
    while (cursor->row < problem->rows) {
        int64_t run_rows = attention_run_rows(problem, cursor->row), first_block, last_block;
        attention_run_blocks(problem, cursor->row, run_rows, &first_block, &last_block);
        int64_t lines = run_rows * problem->group, tiles = (lines + tile_lines - 1) / tile_lines;
        int64_t blocks = split ? last_block - first_block + 1 : 1;
        int64_t tasks = tiles * blocks * problem->kv_heads, index = ticket - cursor->tasks_before;
        if (index >= tasks) {
            cursor->tasks_before += tasks;
            cursor->row += run_rows;
            continue;
        }
        int64_t tile = tiles - 1 - index / (blocks * problem->kv_heads);
        int64_t block = index / problem->kv_heads % blocks;
        task->row = cursor->row;
        task->kv_head = index % problem->kv_heads;
        task->first_line = tile * tile_lines;
        task->lines = lines - task->first_line < tile_lines ? lines - task->first_line : tile_lines;
        task->first_block = split ? first_block + block : first_block;
        task->last_block = split ? first_block + block : last_block;
        return true;
    }
    return false;
}

#endif
