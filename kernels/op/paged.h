/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and operands that the schemas of all ops on the paged KV cache begin with. */
#ifndef KERNELS_OP_PAGED_H
#define KERNELS_OP_PAGED_H

#include "kernels/op/op.h"

/* Inside a page, a layer's block begins at the KV operand's offset: K, then V, each as the encoding KV_DTYPE stores a matrix
 * [KV_HEADS * PAGE_TOKENS, HEAD_DIM] (encoding_layout). A row is what one KV head has of one token. The encodings are
 *
 *   F32, F16, BF16               numbers
 *   int8_channel, e4m3_channel   codes of 8 bits, and after those of all rows a float32 scale for each row, found when the row
 *                                is appended: its largest magnitude / 127 or / 448. An element is code * scale. A row of
 *                                zeros has scale 0 and codes 0; one with a NaN or an infinity has scale NaN and codes 0.
 *
 * An op that appends may have an operand of static scales, those that a checkpoint was calibrated with (k_scale, v_scale):
 * float32 [KV_HEADS, 2], of K and of V, with e4m3_channel alone. They are then the scales of all rows of that head, and numbers beyond 448 times the scale become the largest code; a row with a NaN or an infinity is as above. A static scale is from
 * OP_LEAST_KV_SCALE to OP_MOST_KV_SCALE.
 *
 * struct op_kv_layout has the offsets.
 *
 * Ops of latent attention have a parameter more, VALUE_DIM: above 0, the block has no V; the first VALUE_DIM elements of a row of K,
 * with its scale, are the token's v. There is one KV head, and HEAD_DIM is at most OP_MAX_LATENT_DIM. */
enum op_paged_param {
    PAGED_HEADS = OP_PARAM_COUNT_INDEX + 1, /* a multiple of KV_HEADS */
    PAGED_KV_HEADS,
    PAGED_HEAD_DIM,
    PAGED_PAGE_TOKENS, /* this and the next three: the engine's geometry */
    PAGED_PAGES_PER_SLOT,
    PAGED_PAGE_BYTES,
    PAGED_SLOT_COUNT,
    PAGED_KV_DTYPE,
    PAGED_X_DTYPE, /* of the values that the op reads and makes */
    PAGED_PARAMS
};

/* Members of an op's enum of parameters: its names for them. Its own follow from PAGED_PARAMS on. */
#define PAGED_NAMES(op)                                                                                   \
    op##_ROWS = OP_PARAM_ROWS, op##_COUNT_INDEX = OP_PARAM_COUNT_INDEX, op##_HEADS = PAGED_HEADS,         \
    op##_KV_HEADS = PAGED_KV_HEADS, op##_HEAD_DIM = PAGED_HEAD_DIM, op##_PAGE_TOKENS = PAGED_PAGE_TOKENS, \
    op##_PAGES_PER_SLOT = PAGED_PAGES_PER_SLOT, op##_PAGE_BYTES = PAGED_PAGE_BYTES,                       \
    op##_SLOT_COUNT = PAGED_SLOT_COUNT, op##_KV_DTYPE = PAGED_KV_DTYPE, op##_X_DTYPE = PAGED_X_DTYPE

#define PAGED_FIELD(member) offsetof(struct plan_geometry, member)
/* `x`: the operand whose dtype is X_DTYPE. */
#define OP_PAGED_PARAMS(x)                                                                                             \
    OP_ROWS_PARAMS,                                                                                                    \
        [PAGED_HEADS] =                                                                                                \
            {"heads", 3, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS, .least = 1, .most = OP_MAX_HEADS},        \
        [PAGED_KV_HEADS] = {"kv_heads",          4, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_KV_HEADS, .least = 1, \
                            .most = OP_MAX_HEADS},                                                                     \
        [PAGED_HEAD_DIM] = {"head_dim", 5, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = OP_MAX_LATENT_DIM},       \
        [PAGED_PAGE_TOKENS] =                                                                                          \
            {"page_tokens",  6, PARAM_INTEGER, PARAM_OF_ENGINE, .field = PAGED_FIELD(page_tokens), .least = 1,         \
             .most = 1 << 20},                                                                                         \
        [PAGED_PAGES_PER_SLOT] =                                                                                       \
            {"pages_per_slot", 7, PARAM_INTEGER, PARAM_OF_ENGINE, .field = PAGED_FIELD(pages_per_slot), .least = 1,    \
             .most = 1 << 30},                                                                                         \
        [PAGED_PAGE_BYTES] = {"page_bytes",                                                                            \
                              8,                                                                                       \
                              PARAM_INTEGER,                                                                           \
                              PARAM_OF_ENGINE,                                                                         \
                              .field = PAGED_FIELD(page_bytes),                                                        \
                              .least = 1,                                                                              \
                              .most = INT64_C(1) << 40},                                                               \
        [PAGED_SLOT_COUNT] =                                                                                           \
            {"slot_count",       9, PARAM_INTEGER, PARAM_OF_ENGINE, .field = PAGED_FIELD(slots), .least = 1,           \
             .most = OP_MAX_ROWS},                                                                                     \
        [PAGED_KV_DTYPE] = {"kv_dtype", 10, PARAM_ENCODING, PARAM_OF_KV}, [PAGED_X_DTYPE] = {"x_dtype",                \
                                                                                             11,                       \
                                                                                             PARAM_DTYPE,              \
                                                                                             PARAM_OF_DTYPE,           \
                                                                                             .operand = (x),           \
                                                                                             .fallback = DTYPE_F32}

/* struct op_descriptor.illegal of them; the second for VALUE_DIM `value_dim`, which may be 0. */
const char *op_paged_illegal(const int64_t *params);
const char *op_latent_illegal(const int64_t *params, int64_t value_dim);

/* Why no kernel for GPUs reads such pages because of the codes in them; NULL if one may, or if there are no codes. */
const char *op_paged_codes_illegal(const int64_t *params);

#define OP_LEAST_KV_SCALE 0x1p-100f
#define OP_MOST_KV_SCALE  0x1p100f

/* Static scales of rows: the parameter `present` that says whether there are any, and the operand's elements. */
const char *op_kv_scales_illegal(const int64_t *params, int present);
uint64_t op_kv_scales_width(const int64_t *params);

/* Elements of a head that are rotated: parameter `index`, or all of the head where that is 0. And why they are illegal,
 * NULL if they are legal. */
static inline int64_t op_rotary_dim(const int64_t *params, int index)
{
    return params[index] ? params[index] : params[PAGED_HEAD_DIM];
}
const char *op_rotary_illegal(const int64_t *params, int index);

/* Bytes in a layer's block; a row is [KV head, token of the page]. */
struct op_kv_layout {
    uint64_t row_bytes; /* codes of a row; rows follow each other */
    uint64_t scales;    /* from K's first code to K's first scale, of 4 bytes for each row; 0: there are no scales */
    uint64_t values;    /* from K to V, in codes and in scales; a multiple of 4; 0: V is a part of K */
    uint64_t bytes;     /* of the block */
};
/* Follows from parameters that every op on the KV cache has. Zero where op_paged_illegal refuses them. */
struct op_kv_layout op_kv_layout(const int64_t *params);
struct op_kv_layout op_latent_layout(const int64_t *params, int64_t value_dim); /* the same with VALUE_DIM */
/* Bytes of a row with its scale. */
uint64_t op_kv_row_bytes(const int64_t *params);

/* Stores a row of keys or values plainly: codes of `row` [width], and at `scale`, if the encoding has one, its scale.
 * `given`: the static scale; NULL: none. Requires: width is at most OP_MAX_LATENT_DIM. */
void op_kv_store_row(const float *row, int64_t width, enum encoding_id encoding, const float *given, void *codes,
                     void *scale);

/* struct op_operand.bytes of ROLE_KV; .width of heads and of the projection of q, k and v. */
bool op_kv_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                 uint64_t *bytes);
uint64_t op_heads_width(const int64_t *params);
uint64_t op_qkv_width(const int64_t *params);

#endif
