/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: one step as data. A plan is a list of launches in order, each with operands (relocations into named memory
 * spaces), integer parameters and the launches it depends on. The builder writes plans, the engine file stores them,
 * the runtime binds and replays them.
 *
 * Memory spaces. WEIGHTS: the engine's weight section, read only. ARENA: scratch at offsets fixed by the memory plan.
 * KV: the page pool; page p of the pool begins at p * page_bytes and holds tokens of one page group. STEP: the input and output of
 * one step (its fields: plan.step). STATE: the data of each slot that outlive a step (its fields: plan_geometry.state). COMM: the
 * data that collectives exchange (struct comm_header, then buffers). NONE: an optional operand that is absent.
 *
 * Ranks. With plan_geometry.ranks above 1, that many ranks replay the same plan together, each with spaces of its own;
 * WEIGHTS is then the rank's region of the weight section. Other ranks access only COMM, and only its header tells a
 * launch the number of its rank. */
#ifndef FORMATS_ENGINE_PLAN_H
#define FORMATS_ENGINE_PLAN_H

#include <stddef.h>

#include "formats/encoding/encoding.h"
#include "formats/base/status.h"

enum { PLAN_MAX_OPERANDS = 16, PLAN_MAX_PARAMS = 64, PLAN_MAX_LAUNCHES = 65536, PLAN_MAX_DEPENDENCIES = 16 };
enum { PLAN_MAX_PAGE_GROUPS = 16 };
enum { PLAN_ALIGNMENT = 64 }; /* bytes: every operand offset is a multiple of it unless the op says otherwise */
#define PLAN_NO_TACTIC UINT32_MAX

/* The values below are written into engine files and are never reused. */
enum plan_kind {
    PLAN_DECODE = 1,  /* a row of each of several sequences, all of which get logits */
    PLAN_PREFILL = 2, /* rows of one sequence: a chunk of its prompt */
    PLAN_MIXED = 3,   /* rows of several sequences, any number of each: decode rows and chunks of prompts in one step */
    /* Rows of several sequences, the last token of each and drafted ones that follow it, all of which get logits. */
    PLAN_VERIFY = 4,
    PLAN_KIND_END
};
enum plan_space {
    SPACE_NONE = 0,
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
    OP_ROPE_ATTENTION = 11, /* rope_append and attention fused: device targets */
    OP_ALL_REDUCE = 12,     /* collectives: ranks above 1 */
    OP_ALL_GATHER = 13,
    /* Device targets, in library plans: launches beside a library call. */
    OP_ALL_REDUCE_FINISH = 14,
    OP_ALL_GATHER_PLACE = 15,
    OP_ATTENTION_CUDNN_INPUTS = 16,
    OP_QUANTISE = 17, /* device targets */
    OP_ROUTER = 18,
    OP_SUM_PARTS = 19,
    OP_LATENT_APPEND = 20,
    OP_SHORT_CONV = 21,
    OP_DELTA_RULE = 22,
    OP_SIGMOID_GATE = 23,
    OP_MULTIPLY = 24,
    OP_ROPE_QUERY = 25,
    OP_ROUTED_MATMUL = 26, /* a router, its matrix and the matmul over the experts it chooses fused: device targets */
    OP_MEAN_SQUARES = 27,
    OP_DRAFT = 28,
    OP_SELECT_COLUMNS = 29,
    OP_NORM_ROUTER = 30, /* a norm, a router's matrix and the router fused: device targets */
    OP_STATE_SPACE = 31,
    OP_GROUP_NORM = 32,
    OP_XIELU = 33,
    OP_ROUTED_MLP = 34, /* routed_matmul and the second matmul over the experts fused: device targets */
    OP_COUNT
};

/* Ops in which all ranks exchange data. */
static inline bool plan_op_is_collective(unsigned op) { return op == OP_ALL_REDUCE || op == OP_ALL_GATHER; }

/* struct plan_launch.attributes, device targets */
enum plan_attribute {
    LAUNCH_PROGRAMMATIC = 1, /* may begin before the launch it depends on has completed: its kernel waits for it */
    LAUNCH_LIBRARY = 2,    /* a library call: `kernel` counts those, and grid, block, cluster and shared_bytes are 0 */
    LAUNCH_CORESIDENT = 4, /* its blocks wait for each other, so all of them must be resident on the GPU at the same
                            * time */
    LAUNCH_ATTRIBUTES_KNOWN = 7,
};
/* The library of a call. */
enum plan_library { LIBRARY_CUBLASLT = 1, LIBRARY_CUDNN = 2, LIBRARY_NCCL = 3, LIBRARY_COUNT };

/* The structs below are also the encoding in the file: little endian, without padding. */
struct plan_operand {
    uint8_t space;  /* enum plan_space; NONE: all other fields are 0, and the kernel gets a null pointer */
    uint8_t access; /* enum plan_access */
    uint16_t reserved0;
    uint32_t tensor_map; /* device targets: 1 + index into the plan's tensor maps; 0: the operand is a pointer */
    uint64_t offset;     /* bytes from the start of the space; KV: from the start of every page */
    uint64_t bytes;
};
_Static_assert(sizeof(struct plan_operand) == 24, "encoding");

/* A parameter of a launch. Those of one launch have strictly rising ids; engine_file.md says what an absent one means. */
enum plan_param_flag { PLAN_PARAM_ESSENTIAL = 1 /* a reader that does not know the id must refuse the plan */ };
struct plan_param {
    uint16_t id; /* from 1; of the op */
    uint16_t flags;
    uint32_t reserved;
    int64_t value;
};
_Static_assert(sizeof(struct plan_param) == 16, "encoding");

struct plan_launch {
    uint16_t op; /* enum plan_op */
    uint16_t operand_count;
    uint16_t param_count;
    uint16_t dependency_count;
    uint32_t first_operand; /* index into the plan's operand array; the next two are indices into their arrays */
    uint32_t first_param;
    uint32_t first_dependency;              /* dependencies are indices of earlier launches */
    uint32_t tactic;                        /* line of the tactics section, PLAN_NO_TACTIC if the op has no tunables */
    uint32_t layer;                         /* for display and traces; UINT32_MAX outside the layers */
    uint32_t kernel;                        /* device targets: index into the kernels or library calls; 0 on the CPU */
    uint32_t grid[3], block[3], cluster[3]; /* device targets; 0 on the CPU */
    uint32_t shared_bytes;
    uint32_t attributes;
    uint32_t reserved;
    uint64_t bytes; /* bytes moved at full row count: each input read once, each output written once */
    uint64_t flops; /* for attention both at a context of PLAN_COST_CONTEXT tokens, or half the engine's if less */
};
enum { PLAN_COST_CONTEXT = 512 };
_Static_assert(sizeof(struct plan_launch) == 96, "encoding");

/* A collective computed by a library, which does not use the COMM space. */
static inline bool plan_calls_collective(const struct plan_launch *launch)
{
    return plan_op_is_collective(launch->op) && (launch->attributes & LAUNCH_LIBRARY);
}

/* A matrix for the tensor memory accelerator: the loader encodes it for the operand that refers to it. */
struct plan_tensor_map {
    int64_t dtype;         /* enum dtype: F32, F16, BF16, F8_E4M3, I8 or I64 */
    int64_t columns, rows; /* rows 0: up to the end of the space (the KV pool) */
    int64_t pitch;         /* bytes between rows */
    int64_t box_columns, box_rows;
    int64_t swizzle; /* bytes: 0, 32, 64, 128 */
    int64_t reserved;
};
_Static_assert(sizeof(struct plan_tensor_map) == 64, "encoding");

/* Bytes of an element of a tensor map; 0: a tensor map cannot have the type. */
static inline uint64_t plan_tensor_map_element_bytes(const struct plan_tensor_map *map)
{
    switch (map->dtype) {
    case DTYPE_I64: return sizeof(int64_t);
    case DTYPE_F32: return sizeof(float);
    case DTYPE_F16:
    case DTYPE_BF16: return sizeof(uint16_t);
    case DTYPE_F8_E4M3:
    case DTYPE_I8: return 1;
    default: return 0;
    }
}

/* A field of the STEP or STATE space as the file lists it. Those of one space have strictly rising ids. */
enum plan_field_flag { PLAN_FIELD_ESSENTIAL = 1 /* a reader that does not know the id must refuse the engine */ };
enum { PLAN_MAX_FIELDS = 64 /* number of fields of a space */ };
struct plan_field_entry {
    uint16_t id; /* 1 + enum step_field or enum state_field */
    uint16_t flags;
    uint32_t reserved;
    uint64_t offset, bytes; /* in the space; the offset is a multiple of PLAN_ALIGNMENT */
};
_Static_assert(sizeof(struct plan_field_entry) == 24, "encoding");

/* When a plan that calls libraries replaces its counterpart. */
enum plan_use {
    PLAN_USE_ALWAYS = 0, /* always; also the value of all other plans */
    PLAN_USE_APART = 1,  /* only if the ranks are in different processes: all its collectives are library calls */
};

struct plan_header {
    uint32_t kind;     /* enum plan_kind */
    uint32_t rows;     /* DECODE: batch size; PREFILL: chunk length; others: all; the input gives the valid rows */
    uint32_t out_rows; /* rows that get logits: plan_out_rows */
    uint32_t launch_count, operand_count, param_count, tensor_map_count, field_count, dependency_count;
    uint32_t use;         /* enum plan_use */
    uint64_t arena_bytes; /* bytes of the arena that this plan needs */
    uint64_t step_bytes;  /* size of its STEP space */
};
_Static_assert(sizeof(struct plan_header) == 56, "encoding");

/* Whether a step of the plan may have several rows of each of several sequences. */
static inline bool plan_has_chunks(uint32_t kind) { return kind == PLAN_MIXED || kind == PLAN_VERIFY; }

/* The fields of the STEP space. Their ids in the file are 1 + these numbers: never reused. */
enum step_field {
    STEP_COUNTS,      /* i32[2]: valid token rows (1..rows), valid out rows (0..out_rows) */
    STEP_TOKENS,      /* i32[rows] in [0, vocab) */
    STEP_SLOTS,       /* i32[rows] in [0, slots) */
    STEP_POSITIONS,   /* i32[rows] in [0, max_context) */
    STEP_OUT_ROWS,    /* i32[out_rows]: the token row whose logits are computed */
    STEP_NEXT_TOKENS, /* i32[out_rows], output: in [0, vocab) or PLAN_NO_TOKEN */
    STEP_LOGITS,      /* f32[out_rows, vocab], output */
    STEP_ROUTE_SEEDS, /* i32[rows]: 0, or what routers choose the row's experts by, instead of by its scores (router.h); not in
                       * engines before 2.3 */
    STEP_HIDDEN, /* f32[out_rows, hidden], output: what the LM head multiplies; only with geometry.hidden_size */
    /* The next two: only with geometry.drafts. */
    STEP_FOLLOWING, /* i32[rows]: the token after the row's: in [0, vocab), or ~o: the one that out row o draws */
    STEP_DRAFTED,   /* i32[out_rows], output: the token that may follow the drawn one: as STEP_NEXT_TOKENS */
    STEP_FIELD_COUNT
};
/* Floats that no op uses as an index: any op may write them. */
static inline bool plan_step_is_result(int field) { return field == STEP_LOGITS || field == STEP_HIDDEN; }

/* The fields of the STATE space. Their ids in the file are 1 + these numbers: never reused. */
enum state_field {
    STATE_PAGE_TABLE, /* i32[page groups, slots, pages_per_slot]: page of the pool, for pages that hold tokens; the table of
                       * each group begins at a multiple of PLAN_ALIGNMENT (plan_page_row) */
    STATE_SAMPLERS, /* struct sampler_state[slots] */
    STATE_SEEN,     /* u8[slots, ceil(vocab / 8)]: bit t set = token t occurred in the sequence */
    STATE_ROPE_SET, /* i32[slots]: 0 or 1, the slot's set of rotary frequencies; only with geometry.rope_original */
    STATE_RECURRENT, /* u8[slots, recurrent_bytes]: what layers without a KV cache keep; only with geometry.recurrent_bytes */
    /* The next two: only with geometry.sampling_options. A slot's row is valid only while its sampler has the option. */
    STATE_ADJUSTMENTS, /* u32[slots, PLAN_BIAS_WORDS + vocab]: logit biases and counts of the answer's tokens (SAMPLER_ADJUSTS) */
    STATE_ALLOWED, /* u32[slots, ceil(vocab / 32)]: bit t set = token t may be drawn (SAMPLER_ALLOWS) */
    STATE_FIELD_COUNT,
    STATE_ALWAYS_COUNT = STATE_ROPE_SET /* those before it are in every engine */
};
struct plan_field {
    uint64_t offset, bytes;
};

/* A plan in memory. The arrays are borrowed (engine file) or owned (plan_free). */
struct plan {
    struct plan_header header;
    const struct plan_launch *launches;
    const struct plan_operand *operands;
    const struct plan_param *params;
    const struct plan_tensor_map *tensor_maps;
    const uint32_t *dependencies;
    struct plan_field step[STEP_FIELD_COUNT]; /* from the file, or plan_place_step */
};
void plan_free(struct plan *plan); /* number of elements of owned arrays */

/* Rows of a plan that get logits: DECODE, VERIFY: all; PREFILL: the last one; MIXED: one of each sequence, of which there are at most
 * `slots`. */
static inline uint64_t plan_out_rows(uint32_t kind, uint64_t rows, uint64_t slots)
{
    if (kind == PLAN_PREFILL) return 1;
    return kind == PLAN_MIXED && slots < rows ? slots : rows;
}

/* Most tokens that a step appends to one sequence: rows of the largest prefill plan, and no more in a mixed or a verification plan; 1
 * without prefill plans. */
uint64_t plan_longest_chunk(const struct plan *plans, size_t count);
/* Most rows of a step that get logits. */
uint64_t plan_most_out_rows(const struct plan *plans, size_t count);

/* Facts that all plans of an engine share; kernels check their parameters against them. All values are positive. */
struct plan_geometry {
    uint64_t slots;          /* sequences resident at once = largest decode batch */
    uint64_t max_context;    /* tokens per sequence */
    uint64_t page_tokens;    /* tokens per KV page */
    uint64_t pages_per_slot; /* ceil(max_context / page_tokens) */
    uint64_t page_bytes;     /* one page: K and V over all layers of a page group */
    uint64_t vocab_size;
    uint64_t ranks; /* 1, or up to PLAN_MAX_RANKS that share every plan (0 counts as 1) */
    /* A sequence of more tokens than this has rotary frequencies of set 1 from its first token on; 0: there is one set. */
    uint64_t rope_original;
    /* Layers with a KV cache are divided into page groups. A page holds tokens of the layers of one group, and each group has a
     * page table of its own. page_window: no layer of the group reads more than so many tokens back, the reading token included;
     * 0: some layer reads all tokens. page_groups 0 counts as 1. */
    uint64_t page_groups;
    uint64_t page_window[PLAN_MAX_PAGE_GROUPS];
    /* Each slot's block of STATE_RECURRENT, in which layers have places of their own, on GPUs in two copies (kernels/op/recurrent.h);
     * 0: no layer has any. */
    uint64_t recurrent_bytes;
    /* 1: kernels of the sample op know sampler_state.options, and STATE_ADJUSTMENTS and STATE_ALLOWED exist. 0: engines built before
     * there were options. Not in the manifest: a reader takes it from the list of state fields. */
    uint64_t sampling_options;
    /* Elements of a row of STEP_HIDDEN; 0: the plans have none. Not in the manifest: a reader takes it from the lists of step fields. */
    uint64_t hidden_size;
    /* 1: each plan ends with a layer that predicts the token after the drawn one, and has STEP_FOLLOWING and STEP_DRAFTED. Not in the
     * manifest, either. */
    uint64_t drafts;
    struct plan_field state[STATE_FIELD_COUNT]; /* from the file, or geometry_place_state */
};
#define PLAN_MAX_RECURRENT_BYTES (INT64_C(1) << 40)

static inline unsigned plan_page_groups(const struct plan_geometry *geometry)
{
    return geometry->page_groups ? (unsigned)geometry->page_groups : 1;
}

/* Bytes from one group's page table to the next one's. Requires: state_layout has succeeded for the geometry. */
uint64_t plan_page_table_stride(const struct plan_geometry *geometry);
/* Index into STATE_PAGE_TABLE of the first entry of a slot in the table of a group. Requires: as above. */
uint64_t plan_page_row(const struct plan_geometry *geometry, unsigned group, uint64_t slot);

/* Pages of a group that a sequence of `tokens` tokens holds at most, if a step appends at most `chunk` tokens to it. In a group
 * with a window that is as many as one step reads and writes; page i of the sequence is page i % plan_ring_pages of these. */
uint64_t plan_group_pages(const struct plan_geometry *geometry, unsigned group, uint64_t tokens, uint64_t chunk);
/* Pages that a group needs however long a sequence is; UINT64_MAX: it has no window. */
uint64_t plan_ring_pages(const struct plan_geometry *geometry, unsigned group, uint64_t chunk);
/* Sum over the groups of plan_group_pages; UINT64_MAX on overflow. */
uint64_t plan_sequence_pages(const struct plan_geometry *geometry, uint64_t tokens, uint64_t chunk);

/* Start of the COMM space on every rank; the loader fills it. Buffers follow, each the operand of a collective. Two
 * successive collectives (also the last of a plan and the first of any next plan) use buffers that do not overlap: a
 * rank may be one collective ahead of another, never two. A collective without valid rows waits for no rank, so after a
 * plan that has one, all ranks must have ended before any begins the next plan. */
enum { PLAN_MAX_RANKS = 16 };
struct comm_header {
    uint32_t rank, ranks;
    uint32_t stop;       /* not 0: a rank has failed; ranks that wait give up */
    uint32_t timed_out;  /* 0, or 1 + the rank whose data did not arrive within timeout_ns */
    uint64_t timeout_ns; /* longest wait for another rank */
    uint32_t arrived;    /* CPU: number of collectives for which this rank's data are in its buffer, modulo 2^32 */
    uint32_t sleepers;   /* CPU: number of ranks that sleep until `arrived` changes */
    uint64_t fault;      /* CUDA: address of a u32 on the host to which `timed_out` is also written */
    /* CUDA: the part of rank r's buffers that this rank fills: its own number. (If a rank exchanges with itself only,
     * for tests and timing, all peers are itself and this is r, so that it receives everything it waits for.) */
    uint8_t slots[PLAN_MAX_RANKS];
    uint64_t reserved;
    uint64_t peers[PLAN_MAX_RANKS]; /* address of each rank's COMM space */
};
_Static_assert(sizeof(struct comm_header) == 192, "layout");

static inline uint64_t plan_ranks(const struct plan_geometry *geometry)
{
    return geometry->ranks ? geometry->ranks : 1;
}

/* Rows of the vocabulary on each rank. Rank r has the tokens from r times this number on; the last ranks may have
 * fewer, or none. */
static inline uint64_t plan_rank_vocab(const struct plan_geometry *geometry)
{
    uint64_t ranks = plan_ranks(geometry);
    return geometry->vocab_size / ranks + (geometry->vocab_size % ranks != 0);
}

/* In STEP_NEXT_TOKENS: the row's logits are not finite, so no token was drawn. A step that takes its tokens from the
 * previous step (device targets) may then find it in STEP_TOKENS. */
enum { PLAN_NO_TOKEN = -1 };

/* Layout of a STEP space by a writer: inputs, then outputs, each aligned to PLAN_ALIGNMENT; hidden_size and drafts as in struct
 * plan_geometry: fields that the plans do not have are all 0. False on overflow. A reader takes the offsets from the file. */
bool step_layout(uint64_t rows, uint64_t out_rows, uint64_t vocab_size, uint64_t hidden_size, uint64_t drafts,
                 struct plan_field fields[STEP_FIELD_COUNT], uint64_t *total_bytes);
/* Number of fields that plans of this layout list. */
uint32_t step_field_count(uint64_t hidden_size, uint64_t drafts);
/* Sets plan->step, step_bytes and field_count to that layout. */
bool plan_place_step(struct plan *plan, uint64_t vocab_size, uint64_t hidden_size, uint64_t drafts);
/* End of the last input field: the bytes of the STEP space that a host writes before a step. */
uint64_t plan_input_bytes(const struct plan *plan);

/* One slot's sampler; 64 bytes. temperature 0 is greedy. The n-th draw of a slot uses the random number (seed, draw =
 * n), so a sequence's tokens depend only on its own seed and logits. */
struct sampler_state {
    float temperature;        /* >= 0 */
    float top_p;              /* (0, 1]; 1 = off */
    float repetition_penalty; /* > 0; 1 = off */
    int32_t top_k;            /* 0 = off */
    uint64_t seed;
    uint64_t draw;
    uint32_t options;        /* bits of enum sampler_option; 0 without geometry.sampling_options */
    float min_p_log;         /* SAMPLER_MIN_P: natural logarithm of min_p, at most 0 */
    float presence_penalty;  /* SAMPLER_ADJUSTS: subtracted from logits of tokens of the answer */
    float frequency_penalty; /* SAMPLER_ADJUSTS: likewise, once for each occurrence in the answer */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct sampler_state) == 64, "layout");

enum sampler_option {
    SAMPLER_MIN_P = 1,   /* min_p_log applies */
    SAMPLER_ADJUSTS = 2, /* the slot's row of STATE_ADJUSTMENTS and the two penalties apply */
    SAMPLER_ALLOWS = 4,  /* the slot's row of STATE_ALLOWED applies */
};

/* A row of STATE_ADJUSTMENTS: f32[PLAN_BIAS_WORDS] logit biases, of which the first is 0; then a word for each token: its count in
 * the answer in the lower PLAN_COUNT_BITS bits, at most PLAN_COUNT_MOST, and above them the index of its logit bias (0: none). So a
 * row without biases and counts is all 0. */
enum {
    PLAN_MAX_LOGIT_BIASES = 1024,
    PLAN_BIAS_WORDS = 1028, /* one more, rounded up to 16 bytes */
    PLAN_COUNT_BITS = 20,
    PLAN_COUNT_MOST = (1 << PLAN_COUNT_BITS) - 1,
};
static inline void plan_count_token(uint32_t *row, int32_t token)
{
    uint32_t *word = &row[PLAN_BIAS_WORDS + token];
    if ((*word & PLAN_COUNT_MOST) < PLAN_COUNT_MOST) ++*word;
}
static inline uint64_t plan_adjustment_words(uint64_t vocab_size) { return PLAN_BIAS_WORDS + vocab_size; }
static inline uint64_t plan_allowed_words(uint64_t vocab_size) { return vocab_size / 32 + (vocab_size % 32 != 0); }

/* Layout of the STATE space by a writer; see step_layout. A field that the engine does not have is all 0. */
bool state_layout(const struct plan_geometry *geometry, struct plan_field fields[STATE_FIELD_COUNT],
                  uint64_t *total_bytes);
bool geometry_place_state(struct plan_geometry *geometry, uint64_t *total_bytes);
/* Where the last field of the STATE space that the host writes ends: all but STATE_RECURRENT, which may be large. */
uint64_t plan_host_state_bytes(const struct plan_geometry *geometry);

/* Reads the list of a space's fields. Checks ids, flags, bounds, alignment and overlap, and that each of the `count`
 * fields of `fields` that has bytes on entry is listed with at least those; then sets their offsets and bytes. */
bool plan_read_fields(const struct plan_field_entry *entries, uint32_t entry_count, enum plan_space space,
                      uint64_t space_bytes, struct plan_field *fields, unsigned count, struct status *status);
bool plan_lists_field(const struct plan_field_entry *entries, uint32_t entry_count, unsigned field);
/* Writes the list of these fields without those of 0 bytes: entries[count]. Returns how many it has. */
unsigned plan_list_fields(const struct plan_field *fields, unsigned count, struct plan_field_entry *entries);

/* Sizes of the spaces that a plan is checked against; KV counts one page. */
struct plan_space_sizes {
    uint64_t bytes[SPACE_COUNT];
};

/* Structural checks that need no knowledge of ops: counts, indices, spaces, access, bounds, alignment, order of
 * parameters, dependencies on earlier launches only, reserved fields zero. (Requirements of each op: kernels/op/op.h.)
 * `name` is for messages. */
bool plan_verify(const struct plan *plan, const struct plan_space_sizes *sizes, const char *name,
                 struct status *status);

const char *plan_kind_name(uint32_t kind); /* "decode", "prefill", "mixed", "verify" */
const char *plan_space_name(unsigned space);
const char *plan_op_name(unsigned op);
const char *plan_library_name(unsigned library); /* "cuBLASLt" */

#endif
