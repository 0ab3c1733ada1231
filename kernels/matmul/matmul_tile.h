/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the one control flow of matmul (matmul_loop.c) and the instruction sets (matmul_<isa>.c): the
 * register tile, the preparation of activations, the epilogue. Private to this folder.
 *
 * A register tile is `panels` panels of W times `rows` rows of x; it adds the products of a range of k to sums in
 * memory. Since f32 stores and loads are exact, cutting K into ranges changes no bit. Activations come in groups of
 * `rows` rows, so that a tile reads them as one stream:
 *   float form: f32[k][rows]
 *   split form: {hi, lo}[k / 2][rows], hi and lo each two bf16 for k and k + 1 (0 beyond K)
 *   pair form:  two bf16 [k / 2][rows], for k and k + 1 (0 beyond K)
 *   int8 form:  blocks of 32 k, each 16 units of 4 bytes for each row: matmul_int8.h
 * AMX has forms of its own (matmul_amx.h). */
#ifndef KERNELS_MATMUL_MATMUL_TILE_H
#define KERNELS_MATMUL_MATMUL_TILE_H

#include <stddef.h>

#include "kernels/matmul/matmul.h"

enum { MATMUL_MAX_TILE_PANELS = 8, MATMUL_MAX_TILE_ROWS = 12, MATMUL_MAX_TILE_SUMS = 24 * PANEL_ROWS };
enum { MATMUL_AMX_ROWS = 32, MATMUL_AMX_PANELS = 4, MATMUL_AMX_K = 32 };

/* A side of a register tile has 1, 2, 3, 4, 6, 8 or 12 panels or rows: the index of a size in this list. */
#define MATMUL_SIZE_INDEX(size) ((size) <= 4 ? (size)-1 : (size) <= 8 ? (size) / 2 + 1 : 6)
enum {
    MATMUL_TILE_PANEL_SIZES = MATMUL_SIZE_INDEX(MATMUL_MAX_TILE_PANELS) + 1,
    MATMUL_TILE_ROW_SIZES = MATMUL_SIZE_INDEX(MATMUL_MAX_TILE_ROWS) + 1
};

/* Which weights a tile function reads; the index into struct matmul_kernels.tiles. */
enum matmul_weights {
    MATMUL_WEIGHTS_BF16,
    MATMUL_WEIGHTS_F16,
    MATMUL_WEIGHTS_F32,
    MATMUL_WEIGHTS_INT4,
    MATMUL_WEIGHTS_INT8,
    MATMUL_WEIGHTS_E4M3,
    MATMUL_WEIGHTS_E2M1,
    MATMUL_WEIGHTS_TABLE,
    MATMUL_WEIGHTS_COUNT
};

struct matmul_tile_call {
    const struct panel_form *form;
    const unsigned char *weights; /* the first panel at the first k, which begins a span where there are groups */
    size_t panel_bytes;           /* from one panel to the next */
    const void *activations;      /* of this group of rows, at the first k */
    int64_t depth;                /* how many k; odd only at the end of K */
    const unsigned char
        *prefetch;        /* for each 64 bytes that it reads of each panel, the tile prefetches one line here */
    size_t prefetch_step; /* (and panel_bytes further on for each further panel), then goes on by this */
    float *sums;          /* [rows][panels * PANEL_ROWS] */
    /* The rest is for kernels with one tile function. */
    int panels, rows;
    const unsigned char *numbers; /* the weights, decoded; or as they are stored, if that is the same */
    size_t numbers_bytes;         /* from one panel to the next */
    uint32_t *tile_shape;         /* of this member's tile registers, as the kernels note it; 0: they have none */
};
typedef void matmul_tile(const struct matmul_tile_call *call);

/* A launch, decoded. */
struct matmul_problem {
    int64_t rows; /* valid ones */
    int64_t n, k;
    enum matmul_weights weights_kind;
    struct panel_form form;
    enum activation activation;
    bool is_gated;
    float cap; /* SOFTCAP, CLAMPED */
    float scale;
    enum dtype bias_dtype;
    const float *x;
    int64_t activation_depth; /* units of 4 bytes that the activations of a row take */
    enum encoding_id compute; /* to what activations are rounded; F32: they are not */
    const unsigned char *weights;
    size_t panel_bytes;
    float *out;
    int64_t out_columns;
    const void *bias;      /* NULL: none */
    const float *residual; /* NULL: none */
    void *workspace;
    /* Over experts, of one of them: the choices that name it, [rows], counted over all rows of x. NULL: no experts. A block has its
     * parts of the rows, likewise; top_k is then the number of blocks, and there are no routes. */
    const int32_t *slots;
    const float *routes;
    int64_t x_pitch; /* elements from a row of x to the next */
    int64_t top_k;
    bool has_blocks;
};

/* Turns finished sums into outputs. */
struct matmul_finish_call {
    const struct matmul_problem *problem;
    float *sums; /* [rows][panels * PANEL_ROWS]; overwritten */
    int64_t first_row, rows;
    int64_t first_panel, panels;
};

typedef void matmul_prepare(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out);

struct matmul_kernels {
    enum cpu_isa isa;
    int pair_units; /* units of 4 bytes for a pair of k: 2 in split form, 1 in pair and int8 form; 0: float form */
    int block_k;    /* other than float form: activations are padded to a multiple of so many k */
    /* Writes k in [first, last) of a group of `rows` rows; `first` is even, and `last` too unless it is K. `out` is the
     * group's start. NULL: float form. int8 form: `first` is a multiple of 32. */
    matmul_prepare *prepare;
    void (*finish)(const struct matmul_finish_call *call);
    /* Instead of `tiles`: one function for up to MATMUL_AMX_ROWS rows with up to 2 panels, or half of them with up to 4. It reads
     * the numbers that `decode` makes of `depth` k of a panel, [depth rounded up to MATMUL_AMX_K][PANEL_ROWS] of number_bytes each.
     * `release` ends a member's use of tile registers. */
    matmul_tile *tile;
    void (*decode)(const struct panel_form *form, enum matmul_weights kind, const unsigned char *weights, int64_t depth,
                   unsigned char *numbers);
    int number_bytes;
    void (*release)(void);
    matmul_tile *tiles[MATMUL_WEIGHTS_COUNT][MATMUL_TILE_PANEL_SIZES][MATMUL_TILE_ROW_SIZES]; /* by MATMUL_SIZE_INDEX */
};

/* The lists of a launch over experts, at the start of its workspace. */
uint64_t matmul_expert_list_bytes(const int64_t *params); /* whole lines */
void matmul_expert_lists(const int64_t *params, void *workspace, struct expert_lists *lists);
void matmul_fill_block_lists(int64_t rows, const struct expert_lists *lists); /* the blocks in the place of experts */

/* Where the sums of a group begin: zeros. */
extern const float matmul_no_sums[MATMUL_MAX_TILE_SUMS];

/* Where row `row` of a launch, or choice `row` of an expert, has its outputs: a row of out, which the first matrix of experts
 * and blocks divide. */
static inline int64_t matmul_out_row(const struct matmul_problem *problem, int64_t row)
{
    if (!problem->slots) return row;
    return problem->activation || problem->has_blocks ? problem->slots[row] : problem->slots[row] / problem->top_k;
}

/* What the outputs of choice `row` of an expert are multiplied by. */
static inline float matmul_route_weight(const struct matmul_problem *problem, int64_t row)
{
    const int64_t slot = problem->slots[row];
    return router_weight(problem->routes + slot / problem->top_k * 2 * problem->top_k, slot % problem->top_k);
}

/* Runs a launch on this member with these kernels. */
void matmul_loop(const struct op_call *call, struct team_member *member, const struct matmul_kernels *kernels);

/* Whether AMX multiplies such a launch, with `rows` rows of each matrix, by tile registers. The choice changes no bit of launches with
 * activations in int8; of those with activations in bf16 it depends on the weights alone, so that a row has the same bits alone and
 * in a batch. */
static inline bool matmul_takes_amx(const int64_t *params, int64_t rows)
{
    enum { LEAST_INT8_ROWS = 16 }; /* fewer do not pay for the decoding */
    const enum encoding_id encoding = (enum encoding_id)params[MATMUL_DTYPE];
    const enum encoding_code code = encoding_find(encoding)->code;
    if (params[MATMUL_K] < MATMUL_AMX_K) return false; /* padded activations would not fit the workspace */
    if (params[MATMUL_COMPUTE_DTYPE] == ENCODING_INT8_G32)
        return rows >= LEAST_INT8_ROWS && (code == CODE_UINT4 || code == CODE_INT8);
    if (code == CODE_FLOAT || code == CODE_TABLE) /* a bf16 does not hold the numbers of tables */
        return params[MATMUL_COMPUTE_DTYPE] == ENCODING_BF16 && encoding == ENCODING_BF16;
    return params[MATMUL_COMPUTE_DTYPE] == ENCODING_BF16;
}

/* Rows that each matrix of a launch of `rows` rows has, on average. */
static inline int64_t matmul_matrix_rows(const int64_t *params, int64_t rows)
{
    const int64_t matrices = matmul_matrices(params);
    return matmul_slots(params, rows) / (matrices > 0 ? matrices : 1);
}

/* Register tiles of AMX: panels that most of them may have, and rows for so many panels. */
static inline int64_t matmul_amx_panels(const int64_t *params)
{
    return matmul_is_coded(params) ? MATMUL_AMX_PANELS / 2
                                   : MATMUL_AMX_PANELS; /* the numbers of two panels fit the scratch */
}
static inline int64_t matmul_amx_rows(int64_t panels)
{
    return panels > MATMUL_AMX_PANELS / 2 ? MATMUL_AMX_ROWS / 2 : MATMUL_AMX_ROWS;
}

/* Accumulators (panels times rows) that the registers of an instruction set hold beside the operands of such a launch. */
int64_t matmul_tile_limit(const int64_t *params, enum cpu_isa isa);

/* Largest legal size of at most `most` panels or rows (at least 1; with `even`, at least 2). */
int64_t matmul_panels_choice(int64_t most, bool even);
int64_t matmul_rows_choice(int64_t most);

/* Shrinks a register tile until the instruction set holds it, the longer side first. */
void matmul_clamp_tile(const int64_t *params, enum cpu_isa isa, int64_t *panels, int64_t *rows);

/* A group's sums of products, [rows][panels * PANEL_ROWS], times its scales, are added to the sums of the call. `head`: of the
 * first panel's span, `place`: of the group in it, x_sums: sums of the group's activations, [rows]. */
typedef void matmul_add_group(const struct matmul_tile_call *call, const unsigned char *head, int place,
                              const float *x_sums, const float *group_sums, int panels, int rows);

/* The epilogue and the end of a group in AVX2 and AVX-512 vectors, for every instruction set that has them. */
void matmul_finish_avx2(const struct matmul_finish_call *call);
matmul_add_group matmul_add_group_avx2;
void matmul_finish_avx512(const struct matmul_finish_call *call);
matmul_add_group matmul_add_group_avx512;

op_run matmul_run_portable;
op_run matmul_run_avx2, matmul_run_float_avx2; /* the second: activations in float form */
op_run matmul_run_avx512;
op_run matmul_run_avx512vnni;
op_run matmul_run_avx512bf16;
op_run matmul_run_amx;

/* Bits below a code of 4 bits, at a place of a line of codes (panel.h). */
#define MATMUL_NIBBLE_SHIFT(place) (4 * ((place) / 2) + 16 * ((place) % 2))

#define MATMUL_INLINE static inline __attribute__((always_inline))
/* Loops over the sides of a register tile must vanish, otherwise the sums live in memory. Under a sanitizer speed does
 * not matter, but the checks in a hundred unrolled tiles would cost a compiler minutes. */
#if defined(__SANITIZE_ADDRESS__)
#define MATMUL_UNROLL
#elif defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define MATMUL_UNROLL
#else
#define MATMUL_UNROLL _Pragma("clang loop unroll(full)")
#endif
#else
#define MATMUL_UNROLL _Pragma("GCC unroll 64")
#endif

/* Codes of activations in the order of two lines of int4 codes (panel.h), each of which splits into two words of bytes, of k
 * 0, 4, 1, 5 and of k 2, 6, 3, 7. */
#define INT8_NIBBLE_ORDER 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15

/* An initializer of struct matmul_kernels.tiles. */
#define MATMUL_TILE_AT(PANELS, ROWS, KIND, FUNCTION) \
    [MATMUL_WEIGHTS_##KIND][MATMUL_SIZE_INDEX(PANELS)][MATMUL_SIZE_INDEX(ROWS)] = FUNCTION,

/* Tiles with at most 3, 6, 12 and 24 accumulators: the lists from which each instruction set makes its tile functions. */
/* (panels, rows); the formatter finds no rest in such lists. */
/* clang-format off */
#define MATMUL_TILES_3(TILE, kind) \
    TILE(1, 1, kind) TILE(1, 2, kind) TILE(1, 3, kind) TILE(2, 1, kind) TILE(3, 1, kind)
#define MATMUL_TILES_6(TILE, kind) \
    MATMUL_TILES_3(TILE, kind) \
    TILE(1, 4, kind) TILE(1, 6, kind) TILE(2, 2, kind) TILE(2, 3, kind) TILE(3, 2, kind) TILE(4, 1, kind) \
    TILE(6, 1, kind)
#define MATMUL_TILES_12(TILE, kind) \
    MATMUL_TILES_6(TILE, kind) \
    TILE(1, 8, kind) TILE(1, 12, kind) TILE(2, 4, kind) TILE(2, 6, kind) TILE(3, 3, kind) TILE(3, 4, kind) \
    TILE(4, 2, kind) TILE(4, 3, kind) TILE(6, 2, kind) TILE(8, 1, kind)
#define MATMUL_TILES_24(TILE, kind) \
    MATMUL_TILES_12(TILE, kind) \
    TILE(2, 8, kind) TILE(2, 12, kind) TILE(3, 6, kind) TILE(3, 8, kind) TILE(4, 4, kind) TILE(4, 6, kind) \
    TILE(6, 3, kind) TILE(6, 4, kind) TILE(8, 2, kind) TILE(8, 3, kind)
/* clang-format on */

#endif
