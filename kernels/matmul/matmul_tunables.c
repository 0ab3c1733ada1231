/* SPDX-License-Identifier: Apache-2.0 */
/* Tunables of matmul: legality, defaults without measuring, and candidates for measuring. */
#include <stddef.h>
#include <string.h>

#include "kernels/matmul/matmul_tile.h"

/* The sizes for which tile functions exist: MATMUL_TILES_24. */
static const int64_t panel_choices[] = {1, 2, 3, 4, 6, 8};
static const int64_t row_choices[] = {1, 2, 3, 4, 6, 8, 12};
enum {
    PANEL_CHOICES = sizeof panel_choices / sizeof panel_choices[0],
    ROW_CHOICES = sizeof row_choices / sizeof row_choices[0],
};

int64_t matmul_panels_choice(int64_t most, bool even)
{
    int64_t best = even ? 2 : 1;
    for (int i = 0; i < PANEL_CHOICES; i++)
        if (panel_choices[i] <= most && (!even || panel_choices[i] % 2 == 0)) best = panel_choices[i];
    return best;
}

int64_t matmul_rows_choice(int64_t most)
{
    int64_t best = 1;
    for (int i = 0; i < ROW_CHOICES; i++)
        if (row_choices[i] <= most) best = row_choices[i];
    return best;
}

int64_t matmul_tile_limit(const int64_t *params, enum cpu_isa isa)
{
    const bool is_int8 = params[MATMUL_COMPUTE_DTYPE] == ENCODING_INT8_G32; /* needs registers beside the sums */
    switch (isa) {
    case CPU_AVX2: return 6;    /* 12 of 16 registers, two to a panel */
    case CPU_AVX512: return 24; /* of 32 */
    case CPU_AVX512VNNI:
    case CPU_AVX512BF16:
    case CPU_AMX: return is_int8 ? 12 : 24; /* tile registers aside: an engine tuned with them is legal without */
    default: return 3;                      /* 12 of SSE2's 16, four to a panel */
    }
}

void matmul_clamp_tile(const int64_t *params, enum cpu_isa isa, int64_t *panels, int64_t *rows)
{
    const bool even = matmul_is_gated(params);
    int64_t limit = matmul_tile_limit(params, isa), least_panels = even ? 2 : 1;
    *panels = matmul_panels_choice(*panels, even);
    while (*panels * *rows > limit) {
        if (*panels > least_panels && (*panels >= *rows || *rows == 1))
            *panels = matmul_panels_choice(*panels - 1, even);
        else
            *rows = matmul_rows_choice(*rows - 1);
    }
}

const char *matmul_tunables_illegal(const int64_t *params, enum cpu_isa isa)
{
    int64_t panels = params[MATMUL_PANELS_PER_TILE], rows = params[MATMUL_ROWS_PER_TILE];
    int64_t depth_block = params[MATMUL_DEPTH_BLOCK], rows_per_block = params[MATMUL_ROWS_PER_BLOCK];
    int64_t panels_per_task = params[MATMUL_PANELS_PER_TASK], threads = params[MATMUL_THREADS];
    if (panels < 1 || matmul_panels_choice(panels, false) != panels)
        return "panels_per_tile is none of 1, 2, 3, 4, 6, 8";
    if (rows < 1 || matmul_rows_choice(rows) != rows) return "rows_per_tile is none of 1, 2, 3, 4, 6, 8, 12";
    if (matmul_is_gated(params) && panels % 2 != 0) return "panels_per_tile is odd, but a gate pairs panels";
    if (panels * rows > matmul_tile_limit(params, isa))
        return "panels_per_tile times rows_per_tile exceeds the registers of the instruction set";
    if (depth_block < 0 || depth_block > INT32_MAX || depth_block % 64 != 0)
        return "depth_block is neither 0 nor a positive multiple of 64";
    if (rows_per_block < 0 || rows_per_block > INT32_MAX || (rows_per_block != 0 && rows_per_block < rows))
        return "rows_per_block is neither 0 nor at least rows_per_tile";
    if (panels_per_task < 1 || panels_per_task > MATMUL_MAX_TASK_PANELS || panels_per_task % panels != 0)
        return "panels_per_task is no multiple of panels_per_tile from 1 to 4096";
    if (threads < 0 || threads > TEAM_MAX_THREADS) return "threads is neither 0 nor at most the largest team";
    return NULL;
}

enum {
    PANELS = MATMUL_PANELS_PER_TILE - MATMUL_FIRST_TUNABLE,
    ROWS = MATMUL_ROWS_PER_TILE - MATMUL_FIRST_TUNABLE,
    DEPTH = MATMUL_DEPTH_BLOCK - MATMUL_FIRST_TUNABLE,
    BLOCK = MATMUL_ROWS_PER_BLOCK - MATMUL_FIRST_TUNABLE,
    TASK = MATMUL_PANELS_PER_TASK - MATMUL_FIRST_TUNABLE,
    THREADS = MATMUL_THREADS - MATMUL_FIRST_TUNABLE,
};

/* Number of tasks per thread, each of at least one tile: few enough that tickets and the start of a task cost nothing,
 * many enough that the last ones do not keep the rest of the team waiting. */
enum { DEFAULT_TASKS_PER_THREAD = 8 };

static int64_t task_panels(const int64_t *params, int threads, int64_t tile_panels, int64_t tasks_per_thread)
{
    int64_t panels = (int64_t)panel_count((uint64_t)matmul_expert_n(params));
    int64_t tiles = panels / (tile_panels * tasks_per_thread * (threads > 0 ? threads : 1));
    int64_t most = MATMUL_MAX_TASK_PANELS / tile_panels;
    return tile_panels * (tiles < 1 ? 1 : tiles > most ? most : tiles);
}

static bool takes_amx(const int64_t *params, enum cpu_isa isa)
{
    return isa == CPU_AMX && matmul_takes_amx(params, matmul_matrix_rows(params, params[MATMUL_ROWS]));
}

/* A tile covers all rows, so that blocks of k save no reads; with codes they still bound the numbers that a cache holds. */
static bool is_one_tile(const int64_t *params, enum cpu_isa isa, const int64_t *tunables)
{
    const int64_t rows = params[MATMUL_ROWS];
    if (!takes_amx(params, isa)) return tunables[ROWS] >= rows && matmul_rows_choice(rows) == rows;
    return rows <= matmul_amx_rows(tunables[PANELS]) && !matmul_is_coded(params);
}

static void default_tile(const int64_t *params, enum cpu_isa isa, int threads, int64_t *panels, int64_t *rows)
{
    bool even = matmul_is_gated(params);
    int64_t limit = matmul_tile_limit(params, isa), least_panels = even ? 2 : 1, most_rows = 6;
    /* AVX2 with converted weights: two panels times three rows would need one register more than there are. */
    if (isa == CPU_AVX2 && even && params[MATMUL_DTYPE] != DTYPE_F32) most_rows = 2;
    if (most_rows * least_panels > limit) most_rows = limit / least_panels;
    if (most_rows > params[MATMUL_ROWS]) most_rows = params[MATMUL_ROWS];
    *rows = matmul_rows_choice(most_rows);
    /* An expert of few rows leaves the rest of such a tile empty: panels have the registers instead. */
    const int64_t expert_rows = matmul_matrix_rows(params, params[MATMUL_ROWS]) + 1;
    while (params[MATMUL_EXPERTS] > 0 && *rows > expert_rows && limit / *rows < 4)
        *rows = matmul_rows_choice(*rows - 1);
    /* Six rows and as many panels as fit, at most four: with AVX-512 that takes the fewest loads per product, with one
     * row it keeps enough chains of additions going, and more streams the hardware's prefetch does not follow well. */
    *panels = matmul_panels_choice(limit / *rows < 4 ? limit / *rows : 4, even);
    /* As many panels as fit beside the rows; those of the register tile stay, for other processors. */
    if (takes_amx(params, isa))
        *panels = params[MATMUL_ROWS] > MATMUL_AMX_ROWS / 2 ? 2 : matmul_panels_choice(matmul_amx_panels(params), even);
    /* A narrow matrix gets smaller tasks, to keep the whole team busy. */
    int64_t all_panels = (int64_t)panel_count((uint64_t)matmul_expert_n(params));
    while (*panels > least_panels && *panels * threads > all_panels) *panels = matmul_panels_choice(*panels - 1, even);
}

void matmul_default_tunables(const int64_t *params, enum cpu_isa isa, int threads, int64_t *tunables)
{
    int64_t rows = params[MATMUL_ROWS], tile_panels, tile_rows;
    default_tile(params, isa, threads, &tile_panels, &tile_rows);
    tunables[PANELS] = tile_panels;
    tunables[ROWS] = tile_rows;
    /* Several tiles of rows share a block of weights (32 KiB of 16-bit ones), small enough to stay near the L1. */
    const bool has_blocks = takes_amx(params, isa) ? !is_one_tile(params, isa, tunables) : tile_rows < rows;
    tunables[DEPTH] = has_blocks && params[MATMUL_K] > 256 ? 256 : 0;
    tunables[BLOCK] = 0;
    tunables[TASK] = task_panels(params, threads, tile_panels, DEFAULT_TASKS_PER_THREAD);
    tunables[THREADS] = 0;
}

/* Candidates as they are collected. */
struct collection {
    const int64_t *params;
    enum cpu_isa isa;
    int threads;
    int64_t (*candidates)[MATMUL_TUNABLES];
    int capacity, count;
};

/* Appends unless it is there, illegal, beyond the capacity, or has a block where 0 means the same: because the block
 * covers all, or because there is one tile of rows, so that nothing is read twice. */
static void append(struct collection *to, const int64_t *tunables)
{
    int64_t params[MATMUL_PARAMS];
    int64_t rows = to->params[MATMUL_ROWS];
    bool one_tile = is_one_tile(to->params, to->isa, tunables);
    if (to->count >= to->capacity || (one_tile && tunables[DEPTH] != 0) || tunables[DEPTH] >= to->params[MATMUL_K] ||
        tunables[BLOCK] >= rows)
        return;
    memcpy(params, to->params, MATMUL_FIRST_TUNABLE * sizeof params[0]);
    memcpy(params + MATMUL_FIRST_TUNABLE, tunables, MATMUL_TUNABLES * sizeof params[0]);
    if (matmul_tunables_illegal(params, to->isa)) return;
    for (int i = 0; i < to->count; i++)
        if (memcmp(to->candidates[i], tunables, sizeof to->candidates[i]) == 0) return;
    memcpy(to->candidates[to->count++], tunables, sizeof to->candidates[0]);
}

/* Register tiles that use at least half the registers, or as many rows as there are; larger ones first. */
static void append_tiles(struct collection *to, const int64_t base[MATMUL_TUNABLES])
{
    int64_t limit = matmul_tile_limit(to->params, to->isa), most_rows = matmul_rows_choice(to->params[MATMUL_ROWS]);
    for (int64_t size = limit; size >= 1; size--) {
        for (int i = PANEL_CHOICES - 1; i >= 0; i--) {
            int64_t panels = panel_choices[i], rows = size / panels, tunables[MATMUL_TUNABLES];
            if (size % panels != 0 || matmul_rows_choice(rows) != rows || rows > most_rows) continue;
            if (2 * size < limit && (rows < most_rows || panels < 2)) continue;
            memcpy(tunables, base, sizeof tunables);
            tunables[PANELS] = panels;
            tunables[ROWS] = rows;
            if (rows >= to->params[MATMUL_ROWS]) tunables[DEPTH] = 0;
            tunables[TASK] = task_panels(to->params, to->threads, panels, DEFAULT_TASKS_PER_THREAD);
            append(to, tunables);
        }
    }
}

/* The panels of tiles of AMX, whose rows follow. */
static void append_amx_tiles(struct collection *to, const int64_t base[MATMUL_TUNABLES])
{
    for (int64_t panels = matmul_amx_panels(to->params); panels >= 1; panels /= 2) {
        int64_t tunables[MATMUL_TUNABLES];
        memcpy(tunables, base, sizeof tunables);
        tunables[PANELS] = panels;
        if (is_one_tile(to->params, to->isa, tunables)) tunables[DEPTH] = 0;
        while (panels * tunables[ROWS] > matmul_tile_limit(to->params, to->isa))
            tunables[ROWS] = matmul_rows_choice(tunables[ROWS] - 1);
        tunables[TASK] = task_panels(to->params, to->threads, panels, DEFAULT_TASKS_PER_THREAD);
        append(to, tunables);
    }
}

/* Copies of `base` with one tunable changed. */
static void append_values(struct collection *to, const int64_t base[MATMUL_TUNABLES], int which, const int64_t *values,
                          int count)
{
    for (int i = 0; i < count; i++) {
        int64_t tunables[MATMUL_TUNABLES];
        memcpy(tunables, base, sizeof tunables);
        tunables[which] = values[i];
        append(to, tunables);
    }
}

int matmul_candidates(const int64_t *params, enum cpu_isa isa, int threads, int64_t (*candidates)[MATMUL_TUNABLES],
                      int capacity)
{
    enum { MAX_CANDIDATES = 60 }; /* measuring more costs more than it gains */
    static const int64_t depths[] = {256, 0, 128, 512, 1024}, blocks[] = {24, 48, 96}, amx_blocks[] = {32, 64, 128};
    enum { DEPTHS = sizeof depths / sizeof depths[0], BLOCKS = sizeof blocks / sizeof blocks[0] };
    void (*const append_all)(struct collection *, const int64_t *) =
        takes_amx(params, isa) ? append_amx_tiles : append_tiles;
    struct collection to = {params, isa, threads, candidates, capacity < MAX_CANDIDATES ? capacity : MAX_CANDIDATES, 0};
    int64_t base[MATMUL_TUNABLES];
    matmul_default_tunables(params, isa, threads, base);
    append(&to, base);

    /* Where matrices have tasks of their own, there may be enough of them for one to be a task. */
    const bool is_apart = matmul_matrices(params) > 0 && !matmul_sums_choices(params);
    const int64_t tasks[] = {
        task_panels(params, threads, base[PANELS], 2),  task_panels(params, threads, base[PANELS], 4),
        task_panels(params, threads, base[PANELS], 16), base[PANELS],
        task_panels(params, 1, base[PANELS], 1),
    };
    append_values(&to, base, TASK, tasks, is_apart ? 5 : 4);
    /* Work that takes less time than waking and joining a team is done by a part of it. */
    const int64_t parts[] = {1, 2, threads / 2};
    if (matmul_slots(params, params[MATMUL_ROWS]) * matmul_expert_n(params) * params[MATMUL_K] < 4000000)
        append_values(&to, base, THREADS, parts, 3);
    append_all(&to, base);
    append_values(&to, base, DEPTH, depths, DEPTHS);
    if (matmul_matrix_rows(params, params[MATMUL_ROWS]) > 24)
        append_values(&to, base, BLOCK, takes_amx(params, isa) ? amx_blocks : blocks, BLOCKS);
    for (int i = 0; i < DEPTHS; i++) {
        base[DEPTH] = depths[i];
        append_all(&to, base);
    }
    return to.count;
}
