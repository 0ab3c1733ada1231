/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: what one step does, as data. A plan is a list of launches in order, each with operands (relocations into
 * named memory spaces), integer parameters and the launches it depends on. The builder writes plans, the engine file
 * carries them, the runtime binds and replays them.
 *
 * Memory spaces. WEIGHTS: the engine's weight section, read only. ARENA: scratch whose offsets the memory plan fixed.
 * KV: the page pool; page p of the pool begins at p * page_bytes. STEP: the input and output of one step (layout:
 * step_layout). STATE: what outlives a step for each slot (layout: state_layout). COMM: what collectives exchange
 * (struct comm_header, then buffers).
 *
 * Ranks. With plan_geometry.ranks above 1 that many ranks replay the same plan together, each with spaces of its own;
 * WEIGHTS is then the rank's region of the weight section. Only COMM is open to the other ranks, and only its header
 * tells a launch which rank it runs on. */
#ifndef FORMATS_ENGINE_PLAN_H
#define FORMATS_ENGINE_PLAN_H

#include <stddef.h>

#include "formats/encoding/encoding.h"
#include "formats/base/status.h"

enum { PLAN_MAX_OPERANDS = 12, PLAN_MAX_PARAMS = 64, PLAN_MAX_LAUNCHES = 65536, PLAN_MAX_DEPENDENCIES = 16 };
enum { PLAN_ALIGNMENT = 64 }; /* bytes: every operand offset is a multiple of it unless the op says otherwise */
#define PLAN_NO_TACTIC UINT32_MAX

/* Values below are written into engine files: never reused. */
enum plan_kind { PLAN_DECODE = 1, PLAN_PREFILL = 2 };
enum plan_space {
    SPACE_WEIGHTS = 1,
    SPACE_ARENA = 2,
    SPACE_KV = 3,
    SPACE_STEP = 4,
    SPACE_STATE = 5,
    SPACE_COMM = 6,
    SPACE_COUNT
};
enum plan_access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_READ_WRITE = 3 };
enum plan_op {
    OP_EMBED = 1,
    OP_ROPE_TABLE = 2,
    OP_RMS_NORM = 3,
    OP_MATMUL = 4,
    OP_ROPE_APPEND = 5,
    OP_ATTENTION = 6,
    OP_SWIGLU = 7,
    OP_ADD = 8,
    OP_SELECT_ROWS = 9,
    OP_SAMPLE = 10,
    OP_ROPE_ATTENTION = 11, /* rope_append and attention in one: device targets */
    OP_ALL_REDUCE = 12,     /* collectives: ranks above 1 */
    OP_ALL_GATHER = 13,
    OP_COUNT
};

/* Ops in which all ranks exchange data. */
static inline bool plan_op_is_collective(unsigned op) { return op == OP_ALL_REDUCE || op == OP_ALL_GATHER; }

/* struct plan_launch.attributes, device targets */
enum plan_attribute {
    LAUNCH_PROGRAMMATIC = 1, /* may begin before the launch it depends on has completed: its kernel waits by itself */
    LAUNCH_LIBRARY = 2,    /* a library call: `kernel` counts those, and grid, block, cluster and shared_bytes are 0 */
    LAUNCH_CORESIDENT = 4, /* its blocks wait for each other, so the GPU must hold all of them at the same time */
    LAUNCH_ATTRIBUTES_KNOWN = 7,
};
/* Whose call it is. */
enum plan_library { LIBRARY_CUBLASLT = 1, LIBRARY_CUDNN = 2, LIBRARY_NCCL = 3, LIBRARY_COUNT };

/* The structs below are also the encoding in the file: little endian, no padding. */
struct plan_operand {
    uint8_t space;  /* enum plan_space */
    uint8_t access; /* enum plan_access */
    uint16_t reserved0;
    uint32_t tensor_map; /* device targets: 1 + index, among the launch's parameters, of a struct plan_tensor_map that
                          * describes the operand; 0: the operand is passed as a pointer */
    uint64_t offset;     /* bytes from the start of the space; KV: from the start of every page */
    uint64_t bytes;
};
_Static_assert(sizeof(struct plan_operand) == 24, "encoding");

struct plan_launch {
    uint16_t op; /* enum plan_op */
    uint16_t operand_count;
    uint16_t param_count;
    uint16_t dependency_count;
    uint32_t first_operand; /* index into the plan's operand array; likewise below */
    uint32_t first_param;
    uint32_t first_dependency;              /* dependencies are indices of earlier launches */
    uint32_t tactic;                        /* line of the tactics section, PLAN_NO_TACTIC if the op has no tunables */
    uint32_t layer;                         /* for people and traces; UINT32_MAX outside the layers */
    uint32_t kernel;                        /* device targets: index into the kernels or library calls; 0 on the CPU */
    uint32_t grid[3], block[3], cluster[3]; /* device targets; 0 on the CPU */
    uint32_t shared_bytes;
    uint32_t attributes;
    uint32_t reserved;
    uint64_t bytes; /* moved at full row count: each input read once, each output written once */
    uint64_t flops; /* of attention both at a context of PLAN_COST_CONTEXT tokens, or half the engine's if less */
};
enum { PLAN_COST_CONTEXT = 512 };
_Static_assert(sizeof(struct plan_launch) == 96, "encoding");

/* A collective by a library, which has no part in the COMM space. */
static inline bool plan_calls_collective(const struct plan_launch *launch)
{
    return plan_op_is_collective(launch->op) && (launch->attributes & LAUNCH_LIBRARY);
}

/* A matrix for the tensor memory accelerator, as parameters of a launch: encoded by the loader over the operand. */
struct plan_tensor_map {
    int64_t dtype;         /* enum dtype */
    int64_t columns, rows; /* rows 0: all that the space behind the operand's offset holds (the KV pool) */
    int64_t pitch;         /* bytes between rows */
    int64_t box_columns, box_rows;
    int64_t swizzle; /* bytes: 0, 32, 64, 128 */
};
enum { PLAN_TENSOR_MAP_PARAMS = sizeof(struct plan_tensor_map) / sizeof(int64_t) };

/* When a plan that calls libraries takes the place of its counterpart. */
enum plan_use {
    PLAN_USE_ALWAYS = 0, /* and all other plans */
    PLAN_USE_APART = 1,  /* only where the ranks are in different processes: all its collectives are library calls */
};

struct plan_header {
    uint32_t kind;     /* enum plan_kind */
    uint32_t rows;     /* DECODE: batch size; PREFILL: chunk length; data says how many rows are valid */
    uint32_t out_rows; /* rows that get logits: rows for DECODE, 1 for PREFILL */
    uint32_t launch_count, operand_count, param_count, dependency_count;
    uint32_t use;         /* enum plan_use */
    uint64_t arena_bytes; /* what this plan needs of the arena */
};
_Static_assert(sizeof(struct plan_header) == 40, "encoding");

/* A plan in memory. The arrays are borrowed (engine file) or owned (builder, plan_free). */
struct plan {
    struct plan_header header;
    const struct plan_launch *launches;
    const struct plan_operand *operands;
    const int64_t *params;
    const uint32_t *dependencies;
};
void plan_free(struct plan *plan); /* of owned arrays */

/* What all plans of an engine share; kernels check their parameters against it. All values are positive. */
struct plan_geometry {
    uint64_t slots;          /* sequences that can be resident at once = largest decode batch */
    uint64_t max_context;    /* tokens per sequence */
    uint64_t page_tokens;    /* tokens per KV page */
    uint64_t pages_per_slot; /* ceil(max_context / page_tokens) */
    uint64_t page_bytes;     /* one page over all layers, K and V */
    uint64_t vocab_size;
    uint64_t ranks; /* 1, or up to PLAN_MAX_RANKS that share every plan (0 counts as 1) */
};

/* The COMM space begins with this on every rank; the loader fills it. Behind it lie buffers, each the operand of a
 * collective. Two collectives that follow each other (the last of a plan and the first of any plan among them) use
 * buffers that do not overlap: a rank may be one collective ahead of another, never two. A collective without valid rows
 * holds nobody back, so behind a plan that has some, all ranks must have ended before any begins the next. */
enum { PLAN_MAX_RANKS = 16 };
struct comm_header {
    uint32_t rank, ranks;
    uint32_t stop;       /* not 0: a rank has failed, and whoever waits for another gives up */
    uint32_t late;       /* 0, or 1 + the rank that this one has waited for in vain */
    uint64_t timeout_ns; /* how long a rank waits for another */
    uint32_t arrived;    /* processors: collectives of this rank whose data lie in its buffer, modulo 2^32 */
    uint32_t sleepers;   /* processors: ranks that sleep until `arrived` changes */
    uint64_t fault;      /* devices: address of a u32 on the host that `late` is written to, too */
    /* Devices: which part of rank r's buffers this rank fills: its own number. (Where one rank stands alone, for tests and
     * timing, all peers are itself and this is r, so that it gets all that it waits for.) */
    uint8_t slots[PLAN_MAX_RANKS];
    uint64_t reserved;
    uint64_t peers[PLAN_MAX_RANKS]; /* address of each rank's COMM space */
};
_Static_assert(sizeof(struct comm_header) == 192, "layout");

static inline uint64_t plan_ranks(const struct plan_geometry *geometry)
{
    return geometry->ranks ? geometry->ranks : 1;
}

/* Rows of the vocabulary on each rank: rank r has tokens from r times that on, the last ranks perhaps fewer or none. */
static inline uint64_t plan_rank_vocab(const struct plan_geometry *geometry)
{
    uint64_t ranks = plan_ranks(geometry);
    return geometry->vocab_size / ranks + (geometry->vocab_size % ranks != 0);
}

/* In STEP_NEXT_TOKENS: the row's logits are not finite, so no token was drawn. A step that takes its tokens from the step
 * before it (device targets) may then have it in STEP_TOKENS. */
enum { PLAN_NO_TOKEN = -1 };

/* The STEP space of a plan: byte offset and size of each field, each aligned to PLAN_ALIGNMENT. */
enum step_field {
    STEP_COUNTS,      /* i32[2]: valid token rows (1..rows), valid out rows (0..out_rows) */
    STEP_TOKENS,      /* i32[rows] in [0, vocab) */
    STEP_SLOTS,       /* i32[rows] in [0, slots) */
    STEP_POSITIONS,   /* i32[rows] in [0, max_context) */
    STEP_OUT_ROWS,    /* i32[out_rows]: the token row whose logits are wanted */
    STEP_NEXT_TOKENS, /* i32[out_rows], output: in [0, vocab) or PLAN_NO_TOKEN */
    STEP_LOGITS,      /* f32[out_rows, vocab], output */
    STEP_FIELD_COUNT
};
struct plan_field {
    uint64_t offset, bytes;
};
bool step_layout(uint64_t rows, uint64_t out_rows, uint64_t vocab_size, struct plan_field fields[STEP_FIELD_COUNT],
                 uint64_t *total_bytes);

/* One slot's sampler; 64 bytes. temperature 0 is greedy. The n-th draw of a slot uses the random number
 * (seed, draw = n), so a sequence's tokens depend on nothing but its own seed and logits. */
struct sampler_state {
    float temperature;        /* >= 0 */
    float top_p;              /* (0, 1]; 1 = off */
    float repetition_penalty; /* > 0; 1 = off */
    int32_t top_k;            /* 0 = off */
    uint64_t seed;
    uint64_t draw;
    uint64_t reserved[4];
};
_Static_assert(sizeof(struct sampler_state) == 64, "layout");

/* The STATE space. */
enum state_field {
    STATE_PAGE_TABLE, /* i32[slots, pages_per_slot]: page of the pool, for pages that hold tokens */
    STATE_SAMPLERS,   /* struct sampler_state[slots] */
    STATE_SEEN,       /* u8[slots, ceil(vocab / 8)]: bit t set = token t occurred in the sequence */
    STATE_FIELD_COUNT
};
bool state_layout(const struct plan_geometry *geometry, struct plan_field fields[STATE_FIELD_COUNT],
                  uint64_t *total_bytes);

/* Sizes of the spaces that a plan is checked against; KV counts one page. */
struct plan_space_sizes {
    uint64_t bytes[SPACE_COUNT];
};

/* Structural checks that need no knowledge of ops: counts, indices, spaces, access, bounds, alignment, dependencies
 * that point backwards, reserved fields zero. (What each op demands: kernels/op/op.h.) `name` is for messages. */
bool plan_verify(const struct plan *plan, const struct plan_space_sizes *sizes, const char *name,
                 struct status *status);

const char *plan_space_name(unsigned space);
const char *plan_op_name(unsigned op);
const char *plan_library_name(unsigned library); /* "cuBLASLt" */

#endif
