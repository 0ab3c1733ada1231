/* SPDX-License-Identifier: Apache-2.0 */
/* The control flow of matmul, the same for every instruction set: activations are brought into the form that the
 * register tiles read, tasks are shared out by ticket, and each task runs
 *
 *   for each block of rows: for each tile of panels: for each block of K: for each tile of rows
 *
 * While a block of weights is used by several tiles of rows, they prefetch the next block between them: it would
 * otherwise be read when the first of them needs it, with the memory idle in between. A single tile of rows reads
 * weights as plain streams, which the hardware's prefetch alone follows best (measured: software prefetch costs it 5 %
 * of the bandwidth in anonymous memory and 20 % in a file mapping with its 4 KiB pages). */
#include <string.h>

#include "kernels/matmul/matmul_tile.h"

const float matmul_no_sums[MATMUL_MAX_TILE_SUMS];

enum {
    LINE_BYTES = 64,
    /* Sums of one tile of panels over a block of rows; meant to stay in the L2 cache. */
    SUMS_FLOATS = 16384,
    /* Activations up to this many bytes are prepared by each member for itself: cheaper than the barrier after a shared
     * preparation. */
    PRIVATE_BYTES = 32768,
    /* Elements of K per ticket of a shared preparation. */
    PREPARE_DEPTH = 1024,
    /* Decoded weights of one tile of panels. */
    NUMBERS_BYTES = 65536,
    /* Blocks of k are multiples of it where there are no spans. */
    DEPTH_STEP = 64,
};

/* In the member's scratch. */
struct scratch {
    _Alignas(LINE_BYTES) float sums[SUMS_FLOATS];
    _Alignas(LINE_BYTES) float activations[PRIVATE_BYTES / sizeof(float)];
    _Alignas(LINE_BYTES) unsigned char numbers[NUMBERS_BYTES];
    uint32_t tile_shape;
};
_Static_assert(sizeof(struct scratch) <= TEAM_SCRATCH_BYTES, "fits the scratch of a team's member");

/* Division of a launch into tasks. */
struct blocking {
    int64_t tile_panels, tile_rows;
    int64_t block_depth, block_rows;
    int64_t task_panels, total_panels;
    bool any_rows; /* a tile may have any number of rows up to tile_rows, not only those of MATMUL_TILES_24 */
};

static enum matmul_weights weights_kind(int64_t encoding)
{
    switch (encoding_find(encoding)->code) {
    case CODE_FLOAT: break;
    case CODE_INT8: return MATMUL_WEIGHTS_INT8;
    case CODE_UINT4: return MATMUL_WEIGHTS_INT4;
    case CODE_E4M3: return MATMUL_WEIGHTS_E4M3;
    case CODE_E2M1: return MATMUL_WEIGHTS_E2M1;
    case CODE_TABLE: return MATMUL_WEIGHTS_TABLE;
    }
    return encoding == ENCODING_BF16  ? MATMUL_WEIGHTS_BF16
           : encoding == ENCODING_F16 ? MATMUL_WEIGHTS_F16
                                      : MATMUL_WEIGHTS_F32;
}

static void decode(const struct op_call *call, struct matmul_problem *problem)
{
    const int64_t *params = call->params;
    *problem = (struct matmul_problem){
        .rows = op_valid_rows(call),
        .n = matmul_expert_n(params),
        .k = params[MATMUL_K],
        .weights_kind = weights_kind(params[MATMUL_DTYPE]),
        .activation = matmul_activation(params),
        .is_gated = matmul_is_gated(params),
        .cap = op_float_param(params, MATMUL_CAP_BITS),
        .scale = op_float_param(params, MATMUL_SCALE_BITS),
        .compute = (enum encoding_id)params[MATMUL_COMPUTE_DTYPE],
        .bias_dtype = (enum dtype)params[MATMUL_BIAS_DTYPE],
        .x = call->operands[MATMUL_X],
        .weights = call->operands[MATMUL_W],
        .panel_bytes = panel_bytes((uint64_t)params[MATMUL_K], params[MATMUL_DTYPE]),
        .out = call->operands[MATMUL_OUT],
        .bias = call->operands[MATMUL_BIAS],
        .residual = call->operands[MATMUL_RESIDUAL],
        .workspace = call->operands[MATMUL_WORKSPACE],
        .routes = call->operands[MATMUL_ROUTES],
        .top_k = matmul_slots(params, 1),
        .x_pitch = matmul_x_pitch(params),
        .has_blocks = matmul_blocks(params) > 0,
    };
    panel_form(params[MATMUL_DTYPE], &problem->form);
    problem->out_columns = matmul_is_gated(params) ? problem->n / 2 : problem->n;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void plan_blocking(const int64_t *params, const struct matmul_problem *problem,
                          const struct matmul_kernels *kernels, struct blocking *blocking)
{
    const int64_t span = problem->form.span_k ? problem->form.span_k : DEPTH_STEP;
    blocking->any_rows = kernels->tile != NULL;
    blocking->tile_panels = params[MATMUL_PANELS_PER_TILE];
    blocking->tile_rows = params[MATMUL_ROWS_PER_TILE];
    blocking->block_depth = params[MATMUL_DEPTH_BLOCK] ? params[MATMUL_DEPTH_BLOCK] : problem->k;
    if (problem->form.span_k) /* whole spans */
        blocking->block_depth = (blocking->block_depth + span - 1) / span * span;
    if (kernels->tile) {
        const int64_t most = matmul_amx_panels(params);
        blocking->tile_panels = matmul_panels_choice(smaller(blocking->tile_panels, most), problem->is_gated);
        blocking->tile_rows = matmul_amx_rows(blocking->tile_panels);
        const int64_t fit = NUMBERS_BYTES / (blocking->tile_panels * PANEL_ROWS * kernels->number_bytes);
        blocking->block_depth = smaller(blocking->block_depth, fit / span * span);
    } else {
        matmul_clamp_tile(params, kernels->isa, &blocking->tile_panels, &blocking->tile_rows);
    }
    int64_t block_rows = params[MATMUL_ROWS_PER_BLOCK] ? params[MATMUL_ROWS_PER_BLOCK] : problem->rows;
    blocking->block_rows = smaller(block_rows, SUMS_FLOATS / (blocking->tile_panels * PANEL_ROWS));
    blocking->task_panels = params[MATMUL_PANELS_PER_TASK];
    blocking->total_panels = (int64_t)panel_count((uint64_t)problem->n);
}

/* Rows of the next register tile when `remaining` rows of a block are left. A last single row is avoided if possible:
 * its few chains of additions leave the processor idle. */
static int64_t next_tile_rows(int64_t remaining, int64_t most)
{
    int64_t rows = matmul_rows_choice(smaller(remaining, most));
    return remaining - rows == 1 && rows > 1 ? matmul_rows_choice(rows - 1) : rows;
}

/* The next register tile at or after `row`; blocks of rows are cut one by one. */
static int64_t tile_rows_at(const struct matmul_problem *problem, const struct blocking *blocking, int64_t row)
{
    int64_t block_end = row - row % blocking->block_rows + blocking->block_rows;
    const int64_t remaining = smaller(block_end, problem->rows) - row;
    return blocking->any_rows ? smaller(remaining, blocking->tile_rows)
                              : next_tile_rows(remaining, blocking->tile_rows);
}

static void prepare_float(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    float *to = out;
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * k;
        for (int64_t i = first; i < last; i++) to[i * rows + row] = from[i];
    }
}

static void prepare_rounded(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last,
                            enum encoding_id compute, float *to)
{
    float values[MATMUL_INT8_BLOCK];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t block = first; block < last; block += MATMUL_INT8_BLOCK) {
            const int64_t count = smaller(last - block, MATMUL_INT8_BLOCK);
            matmul_round(x + row * k + block, count, compute, values);
            for (int64_t i = 0; i < count; i++) to[(block + i) * rows + row] = values[i];
        }
}

static void prepare_rows(const struct matmul_problem *problem, const struct matmul_kernels *kernels, const float *x,
                         int64_t k, int64_t rows, int64_t first, int64_t last, float *group)
{
    if (!kernels->prepare && problem->compute != ENCODING_F32)
        prepare_rounded(x, k, rows, first, last, problem->compute, group);
    else
        (kernels->prepare ? kernels->prepare : prepare_float)(x, k, rows, first, last, group);
}

static void prepare_group(const struct matmul_problem *problem, const struct matmul_kernels *kernels, int64_t row,
                          int64_t rows, int64_t first, int64_t last, float *activations)
{
    prepare_rows(problem, kernels, problem->x + row * problem->k, problem->k, rows, first, last,
                 activations + row * problem->activation_depth);
}

static void prepare_private(const struct matmul_problem *problem, const struct blocking *blocking,
                            const struct matmul_kernels *kernels, float *activations)
{
    for (int64_t row = 0, rows; row < problem->rows; row += rows) {
        rows = tile_rows_at(problem, blocking, row);
        prepare_group(problem, kernels, row, rows, 0, problem->k, activations);
    }
}

static void prepare_shared(const struct matmul_problem *problem, const struct blocking *blocking,
                           const struct matmul_kernels *kernels, float *activations, struct team_member *member)
{
    int64_t ticket = team_ticket(member), item = 0;
    for (int64_t row = 0, rows; row < problem->rows; row += rows) {
        rows = tile_rows_at(problem, blocking, row);
        for (int64_t first = 0; first < problem->k; first += PREPARE_DEPTH, item++) {
            if (item != ticket) continue;
            prepare_group(problem, kernels, row, rows, first, smaller(first + PREPARE_DEPTH, problem->k), activations);
            ticket = team_ticket(member);
        }
    }
}

/* Units of 4 bytes that k elements of a row take. */
static int64_t activation_units(const struct matmul_kernels *kernels, int64_t k)
{
    return kernels->pair_units ? k / 2 * kernels->pair_units : k;
}

/* The weights of a tile's block of k as numbers: those of BF16 are numbers where the block is whole. */
static void decode_block(const struct matmul_problem *problem, const struct matmul_kernels *kernels,
                         struct matmul_tile_call *tile, int64_t panels, unsigned char *numbers)
{
    const int64_t padded = (tile->depth + MATMUL_AMX_K - 1) / MATMUL_AMX_K * MATMUL_AMX_K;
    if (problem->weights_kind == MATMUL_WEIGHTS_BF16 && padded == tile->depth) {
        tile->numbers = tile->weights;
        tile->numbers_bytes = tile->panel_bytes;
        return;
    }
    tile->numbers = numbers;
    tile->numbers_bytes = (size_t)(padded * PANEL_ROWS * kernels->number_bytes);
    for (int64_t panel = 0; panel < panels; panel++)
        kernels->decode(tile->form, problem->weights_kind, tile->weights + (size_t)panel * tile->panel_bytes,
                        tile->depth, numbers + (size_t)panel * tile->numbers_bytes);
}

/* One tile of panels for one block of rows. `next_weights`: what this member reads after it, NULL if unknown. */
static void run_panels(const struct matmul_problem *problem, const struct blocking *blocking,
                       const struct matmul_kernels *kernels, const float *activations, int64_t first_panel,
                       int64_t panels, int64_t first_row, int64_t rows, const unsigned char *next_weights,
                       struct scratch *scratch)
{
    float *const sums = scratch->sums;
    memset(sums, 0, (size_t)(rows * panels * PANEL_ROWS) * sizeof(float));
    int64_t tiles = 0;
    for (int64_t row = first_row; row < first_row + rows; row += tile_rows_at(problem, blocking, row)) tiles++;
    const unsigned char *panel = problem->weights + (size_t)first_panel * problem->panel_bytes;
    size_t begin = panel_offset(&problem->form, 0), end;
    struct matmul_tile_call tile = {
        .form = &problem->form,
        .panel_bytes = problem->panel_bytes,
        .panels = (int)panels,
        .tile_shape = &scratch->tile_shape,
    };
    /* Each of the row tiles prefetches its share of the next block. */
    size_t step = tiles == 1 ? 0 : tiles < LINE_BYTES ? (size_t)((LINE_BYTES + tiles - 1) / tiles) : 1;
    for (int64_t first = 0; first < problem->k; first += tile.depth) {
        tile.depth = smaller(blocking->block_depth, problem->k - first);
        const bool last = first + tile.depth == problem->k;
        end = last ? problem->panel_bytes : panel_offset(&problem->form, (uint64_t)(first + tile.depth));
        tile.weights = panel + begin;
        if (kernels->tile) decode_block(problem, kernels, &tile, panels, scratch->numbers);
        const unsigned char *next = last ? next_weights : panel + end;
        size_t block_bytes = end - begin, prefetched = 0;
        for (int64_t row = first_row, tile_rows; row < first_row + rows; row += tile_rows) {
            tile_rows = tile_rows_at(problem, blocking, row);
            tile.prefetch_step = next && prefetched < block_bytes ? step : 0;
            tile.prefetch = tile.prefetch_step ? next + prefetched : tile.weights; /* 0: the same line each time */
            tile.activations =
                activations + row * problem->activation_depth + activation_units(kernels, first) * tile_rows;
            tile.sums = sums + (row - first_row) * panels * PANEL_ROWS;
            tile.rows = (int)tile_rows;
            if (kernels->tile)
                kernels->tile(&tile);
            else
                kernels->tiles[problem->weights_kind][MATMUL_SIZE_INDEX(panels)][MATMUL_SIZE_INDEX(tile_rows)](&tile);
            prefetched += block_bytes / LINE_BYTES * step;
        }
        begin = end;
    }
    const struct matmul_finish_call finish = {
        .problem = problem,
        .sums = sums,
        .first_row = first_row,
        .rows = rows,
        .first_panel = first_panel,
        .panels = panels,
    };
    kernels->finish(&finish);
}

static void run_task(const struct matmul_problem *problem, const struct blocking *blocking,
                     const struct matmul_kernels *kernels, const float *activations, int64_t first_panel,
                     struct scratch *scratch)
{
    int64_t last_panel = smaller(first_panel + blocking->task_panels, blocking->total_panels);
    for (int64_t row = 0; row < problem->rows; row += blocking->block_rows) {
        int64_t rows = smaller(blocking->block_rows, problem->rows - row);
        bool last_block = row + rows == problem->rows;
        for (int64_t panel = first_panel, panels; panel < last_panel; panel += panels) {
            panels = matmul_panels_choice(smaller(blocking->tile_panels, last_panel - panel), problem->is_gated);
            int64_t next_panel = panel + panels < last_panel ? panel + panels : first_panel;
            bool known = panel + panels < last_panel || !last_block;
            run_panels(problem, blocking, kernels, activations, panel, panels, row, rows,
                       known ? problem->weights + (size_t)next_panel * problem->panel_bytes : NULL, scratch);
        }
    }
}

/* ---- experts ---- */

/* Where the choices of an expert begin in its launch: a launch of its own, but for the places of its rows. */
static void select_expert(const int64_t *params, const struct matmul_problem *all, const struct expert_lists *lists,
                          int64_t expert, const struct matmul_kernels *kernels, struct matmul_problem *one,
                          struct blocking *blocking)
{
    const uint64_t panels = panel_count((uint64_t)all->n);
    *one = *all;
    one->rows = lists->begin[expert + 1] - lists->begin[expert];
    one->slots = lists->slots + lists->begin[expert];
    one->weights += (uint64_t)expert * panels * all->panel_bytes;
    if (one->bias)
        one->bias =
            (const unsigned char *)all->bias + (uint64_t)expert * panels * PANEL_ROWS * dtype_bytes(all->bias_dtype);
    plan_blocking(params, one, kernels, blocking);
}

/* Rows [row, row + rows) of an expert: parts of them are brought together before they are prepared. */
static void prepare_choices(const struct matmul_problem *one, const struct matmul_kernels *kernels, int64_t row,
                            int64_t rows, float *gathered, float *activations)
{
    float *group = activations + row * one->activation_depth;
    const int64_t depth = rows * PREPARE_DEPTH > SUMS_FLOATS ? PREPARE_DEPTH / 2 : PREPARE_DEPTH;
    for (int64_t first = 0; first < one->k; first += depth) {
        const int64_t count = smaller(depth, one->k - first);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t slot = one->slots[row + i], part = one->activation ? 0 : slot % one->top_k;
            const float *x = one->x + slot / one->top_k * one->x_pitch + part * one->k + first;
            memcpy(gathered + i * count, x, (size_t)count * sizeof(float));
        }
        prepare_rows(one, kernels, gathered, count, rows, 0, count, group + activation_units(kernels, first) * rows);
    }
}
_Static_assert(MATMUL_MAX_TILE_ROWS *PREPARE_DEPTH <= SUMS_FLOATS && MATMUL_AMX_ROWS * PREPARE_DEPTH / 2 <= SUMS_FLOATS,
               "a part of a group's rows fits where sums do");

/* Outputs that products are added to, for a task's panels; of experts with an activation, those of choices that name no expert. */
static void begin_outputs(const struct matmul_problem *all, const struct expert_lists *lists, int64_t first_panel,
                          int64_t panels)
{
    const int64_t first = first_panel * PANEL_ROWS, count = smaller(panels * PANEL_ROWS, all->n - first);
    if (all->has_blocks) return;
    for (int64_t row = 0; !all->activation && row < all->rows; row++) {
        float *out = all->out + row * all->n + first;
        if (!all->residual)
            memset(out, 0, (size_t)count * sizeof *out);
        else if (all->residual != all->out)
            memcpy(out, all->residual + row * all->n + first, (size_t)count * sizeof *out);
    }
    for (int64_t i = lists->begin[lists->experts]; all->activation && i < all->rows * all->top_k; i++)
        memset(all->out + lists->slots[i] * all->out_columns, 0, (size_t)all->out_columns * sizeof *all->out);
}

/* The first matrix at or after `expert` that has rows; lists->experts: none. */
static int64_t next_with_rows(const struct expert_lists *lists, int64_t expert)
{
    while (expert < lists->experts && lists->begin[expert + 1] == lists->begin[expert]) expert++;
    return expert;
}

/* A task is some panels of one block, or of one expert with an activation that has rows, else the same panels of all experts, one after the
 * other, since they add to the same outputs. */
static void run_experts(const int64_t *params, const struct matmul_problem *all, const struct matmul_kernels *kernels,
                        struct scratch *scratch, struct team_member *member, bool works)
{
    struct expert_lists lists;
    struct matmul_problem one;
    struct blocking blocking;
    matmul_expert_lists(params, all->workspace, &lists);
    float *activations = (float *)((unsigned char *)all->workspace + matmul_expert_list_bytes(params));
    if (works && team_ticket(member) == 0) {
        if (all->has_blocks)
            matmul_fill_block_lists(all->rows, &lists);
        else
            matmul_fill_expert_lists(all->routes, all->rows, all->top_k, &lists);
    }
    team_barrier(member);

    int64_t item = 0, ticket = works ? (int64_t)team_ticket(member) : -1;
    for (int64_t expert = next_with_rows(&lists, 0); works && expert < lists.experts;
         expert = next_with_rows(&lists, expert + 1)) {
        select_expert(params, all, &lists, expert, kernels, &one, &blocking);
        float *own = activations + lists.begin[expert] * all->activation_depth;
        for (int64_t row = 0, rows; row < one.rows; row += rows, item++) {
            rows = tile_rows_at(&one, &blocking, row);
            if (item != ticket) continue;
            prepare_choices(&one, kernels, row, rows, scratch->sums, own);
            ticket = team_ticket(member);
        }
    }
    team_barrier(member);

    const int64_t panels = (int64_t)panel_count((uint64_t)all->n), each = params[MATMUL_PANELS_PER_TASK];
    const int64_t tasks = (panels + each - 1) / each;
    const bool apart = all->activation != ACTIVATION_NONE || all->has_blocks; /* no two add to the same outputs */
    int64_t first = next_with_rows(&lists, 0), matrix = 0; /* of a task's panels: its place among those with rows */
    for (int64_t task; works && (task = team_ticket(member)) < (apart ? tasks * lists.experts : tasks);) {
        const int64_t first_panel = task % tasks * each;
        if (!apart || task == 0) begin_outputs(all, &lists, first_panel, each);
        for (; matrix < task / tasks && first < lists.experts; matrix++) first = next_with_rows(&lists, first + 1);
        if (apart && first == lists.experts) break;
        for (int64_t expert = first; expert < lists.experts; expert = next_with_rows(&lists, expert + 1)) {
            select_expert(params, all, &lists, expert, kernels, &one, &blocking);
            run_task(&one, &blocking, kernels, activations + lists.begin[expert] * all->activation_depth, first_panel,
                     scratch);
            if (apart) break;
        }
    }
}

static void run_launch(const struct op_call *call, struct team_member *member, const struct matmul_kernels *kernels)
{
    struct scratch *scratch = member->scratch;
    struct matmul_problem problem;
    struct blocking blocking;
    decode(call, &problem);
    if (problem.rows <= 0) return;
    problem.activation_depth = problem.k;
    if (kernels->pair_units) {
        const int64_t blocks = (problem.k + kernels->block_k - 1) / kernels->block_k;
        problem.activation_depth = blocks * kernels->block_k / 2 * kernels->pair_units;
    }
    int64_t threads = call->params[MATMUL_THREADS];
    bool works = threads == 0 || member->index < threads;
    if (problem.routes || problem.has_blocks) {
        run_experts(call->params, &problem, kernels, scratch, member, works);
        return;
    }
    plan_blocking(call->params, &problem, kernels, &blocking);

    const float *activations = problem.x;
    /* Single rows in float form are x itself. */
    if (kernels->pair_units || problem.compute != ENCODING_F32 || (problem.rows > 1 && blocking.tile_rows > 1)) {
        if (problem.rows * problem.activation_depth <= PRIVATE_BYTES / (int64_t)sizeof(float)) {
            if (works) prepare_private(&problem, &blocking, kernels, scratch->activations);
            activations = scratch->activations;
        } else {
            if (works) prepare_shared(&problem, &blocking, kernels, problem.workspace, member);
            team_barrier(member);
            activations = problem.workspace;
        }
    }
    if (!works) return;
    uint32_t tasks = (uint32_t)((blocking.total_panels + blocking.task_panels - 1) / blocking.task_panels);
    for (uint32_t task; (task = team_ticket(member)) < tasks;)
        run_task(&problem, &blocking, kernels, activations, (int64_t)task * blocking.task_panels, scratch);
}

void matmul_loop(const struct op_call *call, struct team_member *member, const struct matmul_kernels *kernels)
{
    struct scratch *scratch = member->scratch;
    scratch->tile_shape = 0;
    run_launch(call, member, kernels);
    if (scratch->tile_shape) kernels->release();
}
