/* SPDX-License-Identifier: Apache-2.0 */
/* The body of attention over the vectors of one instruction set: one task, block by block.
 *
 * For a block of tokens and the lines of a task: keys are transposed into a small buffer, so that a vector holds the
 * same component of many tokens, and each score is one chain of fused multiply-adds over the components; then the
 * softmax of each line relative to the block's own maximum; then each component of the result is one chain over the
 * tokens. Neither chain depends on how lines are grouped, which is why a row gets the same bits in a batch, in a prompt
 * chunk and alone. */
#ifndef KERNELS_ATTENTION_ATTENTION_VECTOR_H
#define KERNELS_ATTENTION_ATTENTION_VECTOR_H

#include <math.h>

#include "kernels/attention/attention_plan.h"
#include "kernels/cpu/share.h"

op_run attention_run_avx2, attention_run_avx512;

enum {
    ATTENTION_REGISTER_LINES = 4,                             /* register tile: lines ... */
    ATTENTION_REGISTER_VECTORS = VEC_REGISTERS == 32 ? 4 : 2, /* ... by vectors of tokens or components */
    ATTENTION_PACKED_FLOATS = 10240,
    ATTENTION_CHUNK_TOKENS = 64, /* tokens in the buffer at a time, fewer for a large head_dim */
};

_Static_assert(OP_MAX_LATENT_DIM *VEC_WIDTH <= ATTENTION_PACKED_FLOATS, "one vector of tokens fits");

/* Buffers of a task: about 170 KiB, in the member's scratch. */
struct attention_scratch {
    _Alignas(64) float packed[ATTENTION_PACKED_FLOATS]; /* keys [head_dim, chunk], later values [chunk, stride] */
    float scores[ATTENTION_TILE_LINES][ATTENTION_BLOCK_TOKENS]; /* later probabilities */
    float block_values[ATTENTION_TILE_FLOATS];                  /* [lines, stride], of this block */
    float values[ATTENTION_TILE_FLOATS];                        /* merged */
    float block_max[ATTENTION_TILE_LINES], block_sum[ATTENTION_TILE_LINES];
    float max[ATTENTION_TILE_LINES], sum[ATTENTION_TILE_LINES];
    bool started[ATTENTION_TILE_LINES]; /* at least one block has been merged */
    const float *q[ATTENTION_TILE_LINES];
    int32_t first[ATTENTION_TILE_LINES], last[ATTENTION_TILE_LINES]; /* tokens [first, last) of this block */
    const uint8_t *keys[ATTENTION_BLOCK_TOKENS];
    const void *value_rows[ATTENTION_BLOCK_TOKENS]; /* of floats, or as they are stored */
    /* Encodings with scales: factors of the codes as vec_load_codes gives them. */
    float key_scales[ATTENTION_BLOCK_TOKENS], value_scales[ATTENTION_BLOCK_TOKENS];
};
_Static_assert(sizeof(struct attention_scratch) <= TEAM_SCRATCH_BYTES, "fits the scratch of a team's member");

static inline int64_t attention_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t attention_most(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t attention_line_row(const struct attention_problem *problem, const struct attention_task *task,
                                         int64_t line)
{
    return task->row + (task->first_line + line) / problem->group;
}

static inline int64_t attention_line_head(const struct attention_problem *problem, const struct attention_task *task,
                                          int64_t line)
{
    return task->kv_head * problem->group + (task->first_line + line) % problem->group;
}

/* Pages lie anywhere, so the processor's own prefetching sees streams of a few cache lines only. While the keys of one
 * vector of tokens are rearranged, those of the vector after the next are fetched into the second-level cache (into the
 * first, too many misses would be outstanding), and the values of this one, needed once its probabilities are known. */
VEC_INLINE void attention_prefetch(const struct attention_scratch *scratch, int64_t token, int64_t high,
                                   int64_t token_bytes, int64_t values)
{
    enum { CACHE_LINE = 64, SECOND_LEVEL = 2, VECTORS_AHEAD = 2 };
    const int64_t ahead = token + VECTORS_AHEAD * VEC_WIDTH;
    for (int64_t i = token; i < attention_least(token + VEC_WIDTH, high); i++)
        for (int64_t byte = 0; byte < token_bytes; byte += CACHE_LINE)
            __builtin_prefetch(scratch->keys[i] + values + byte, 0, SECOND_LEVEL);
    for (int64_t i = ahead; i < attention_least(ahead + VEC_WIDTH, high); i++)
        for (int64_t byte = 0; byte < token_bytes; byte += CACHE_LINE)
            __builtin_prefetch(scratch->keys[i] + byte, 0, SECOND_LEVEL);
}

/* Codes [d, d + 4 * VEC_WIDTH) of VEC_WIDTH keys to packed[component][token]: four at a time change places. */
VEC_INLINE void attention_pack_quads(const uint8_t *const *keys, int64_t d, float *packed, int64_t chunk,
                                     enum encoding_id encoding)
{
    vec rows[VEC_WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < VEC_WIDTH; i++) rows[i] = vec_load((const float *)(const void *)(keys[i] + d));
    vec_transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < VEC_WIDTH; i++) {
        float *to = packed + 4 * i * chunk;
#pragma GCC unroll 4
        for (int code = 0; code < 4; code++)
            vec_store(to + code * chunk, vec_of_code((vec_int)rows[i], code, encoding));
    }
}

/* Keys [first, first + chunk) of the block, of which [low, high) exist, as packed[component][token]. */
VEC_INLINE void attention_pack_keys(struct attention_scratch *scratch, int64_t head_dim, int64_t first, int64_t chunk,
                                    int64_t low, int64_t high, int64_t values, enum encoding_id encoding)
{
    const size_t element_bytes = encoding == ENCODING_F32                                ? sizeof(float)
                                 : encoding == ENCODING_F16 || encoding == ENCODING_BF16 ? sizeof(uint16_t)
                                                                                         : sizeof(uint8_t);
    const int64_t token_bytes = head_dim * (int64_t)element_bytes;
    const bool is_coded = encoding == ENCODING_INT8_CHANNEL || encoding == ENCODING_E4M3_CHANNEL;
    for (int64_t token = first; token < first + chunk; token += VEC_WIDTH) {
        if (token + VEC_WIDTH <= low || token >= high) continue;
        attention_prefetch(scratch, attention_most(token, low), high, token_bytes, values);
        int64_t d = 0;
        if (is_coded && token >= low && token + VEC_WIDTH <= high)
            for (; d + 4 * VEC_WIDTH <= head_dim; d += 4 * VEC_WIDTH)
                attention_pack_quads(scratch->keys + token, d, scratch->packed + d * chunk + token - first, chunk,
                                     encoding);
        for (; d < head_dim; d += VEC_WIDTH) {
            vec rows[VEC_WIDTH];
            if (token >= low && token + VEC_WIDTH <= high && d + VEC_WIDTH <= head_dim) {
#pragma GCC unroll 16
                for (int i = 0; i < VEC_WIDTH; i++)
                    rows[i] = vec_load_codes(scratch->keys[token + i], d, VEC_WIDTH, encoding);
            } else {
                /* An array of its own and a loop that stays one: unrolled, its branches were half of this function. */
                vec edge[VEC_WIDTH];
#pragma GCC unroll 1
                for (int i = 0; i < VEC_WIDTH; i++) {
                    bool exists = token + i >= low && token + i < high;
                    edge[i] = exists ? vec_load_codes(scratch->keys[token + i], d, head_dim - d, encoding) : vec_set(0);
                }
#pragma GCC unroll 16
                for (int i = 0; i < VEC_WIDTH; i++) rows[i] = edge[i];
            }
            vec_transpose(rows);
            float *to = scratch->packed + d * chunk + token - first;
            if (d + VEC_WIDTH <= head_dim) {
#pragma GCC unroll 16
                for (int i = 0; i < VEC_WIDTH; i++) vec_store(to + i * chunk, rows[i]);
            } else {
#pragma GCC unroll 16
                for (int i = 0; i < VEC_WIDTH; i++)
                    if (i < head_dim - d) vec_store(to + i * chunk, rows[i]);
            }
        }
    }
}

/* scores[line][0 .. vectors * VEC_WIDTH) = q[line] . keys */
VEC_INLINE void attention_score_tile(const float *const *q, const float *packed, int64_t chunk, int64_t head_dim,
                                     float (*scores)[ATTENTION_BLOCK_TOKENS], int64_t first, int lines, int vectors)
{
    vec sums[ATTENTION_REGISTER_LINES][ATTENTION_REGISTER_VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = vec_set(0);
    }
    for (int64_t d = 0; d < head_dim; d++) {
        vec keys[ATTENTION_REGISTER_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) keys[j] = vec_load(packed + d * chunk + j * VEC_WIDTH);
#pragma GCC unroll 4
        for (int i = 0; i < lines; i++) {
            vec component = vec_set(q[i][d]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] = vec_fma(component, keys[j], sums[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) vec_store(scores[i] + first + j * VEC_WIDTH, sums[i][j]);
    }
}

/* As above for up to `count` tokens (a multiple of VEC_WIDTH) in the widest register tiles that fit. */
VEC_INLINE void attention_score_lines(const float *const *q, const float *packed, int64_t chunk, int64_t head_dim,
                                      float (*scores)[ATTENTION_BLOCK_TOKENS], int64_t first, int64_t count, int lines)
{
    int64_t token = 0;
    for (; token + ATTENTION_REGISTER_VECTORS * VEC_WIDTH <= count; token += ATTENTION_REGISTER_VECTORS * VEC_WIDTH)
        attention_score_tile(q, packed + token, chunk, head_dim, scores, first + token, lines,
                             ATTENTION_REGISTER_VECTORS);
    for (; token < count; token += VEC_WIDTH)
        attention_score_tile(q, packed + token, chunk, head_dim, scores, first + token, lines, 1);
}

/* Tokens [*low, *high) that any of the lines [line, line + count) needs. */
static inline void attention_union(const struct attention_scratch *scratch, int64_t line, int64_t count, int64_t *low,
                                   int64_t *high)
{
    *low = ATTENTION_BLOCK_TOKENS;
    *high = 0;
    for (int64_t i = line; i < line + count; i++) {
        if (scratch->first[i] >= scratch->last[i]) continue;
        *low = attention_least(*low, scratch->first[i]);
        *high = attention_most(*high, scratch->last[i]);
    }
}

/* Scores of one chunk for all lines; what lies outside a line's own tokens is computed too and ignored later. */
__attribute__((noinline)) static void attention_score_chunk(struct attention_scratch *scratch, int64_t lines,
                                                            int64_t head_dim, int64_t chunk, int64_t first)
{
    for (int64_t line = 0; line < lines; line += ATTENTION_REGISTER_LINES) {
        int64_t count = attention_least(lines - line, ATTENTION_REGISTER_LINES), low, high;
        attention_union(scratch, line, count, &low, &high);
        low = attention_most(low, first) / VEC_WIDTH * VEC_WIDTH;
        high = attention_least((high + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH, first + chunk);
        if (low >= high) continue;
        const float *const *q = scratch->q + line;
        const float *packed = scratch->packed + low - first;
        float(*scores)[ATTENTION_BLOCK_TOKENS] = scratch->scores + line;
        switch (count) {
        case 1: attention_score_lines(q, packed, chunk, head_dim, scores, low, high - low, 1); break;
        case 2: attention_score_lines(q, packed, chunk, head_dim, scores, low, high - low, 2); break;
        case 3: attention_score_lines(q, packed, chunk, head_dim, scores, low, high - low, 3); break;
        default: attention_score_lines(q, packed, chunk, head_dim, scores, low, high - low, 4); break;
        }
    }
}

/* scores[t] *= scales[t] for t in [first, last). */
static inline void attention_scale(float *scores, const float *scales, int64_t first, int64_t last)
{
    int64_t t = first;
    for (; t + VEC_WIDTH <= last; t += VEC_WIDTH) vec_store(scores + t, vec_load(scores + t) * vec_load(scales + t));
    if (t < last)
        vec_store_part(scores + t, last - t, vec_load_part(scores + t, last - t) * vec_load_part(scales + t, last - t));
}

/* Scales of `count` tokens, which follow each other in a page, for the codes as vec_load_codes gives them. */
static inline void attention_load_scales(const uint8_t *from, int64_t count, enum encoding_id encoding, float *scales)
{
    const vec factor = vec_set(encoding == ENCODING_E4M3_CHANNEL ? 256.0f : 1.0f);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        const int64_t rest = count - i;
        vec_store_dtype(scales, i, rest, DTYPE_F32, vec_load_dtype(from, i, rest, DTYPE_F32) * factor);
    }
}

/* scores[begin .. end), whole vectors, become cap * tanh(scale * score / cap) / scale. */
static inline void attention_cap(float *scores, int64_t begin, int64_t end, float scale, float cap)
{
    const vec factor = vec_set(2 * scale / cap), one = vec_set(1), two = vec_set(2), back = vec_set(cap / scale);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        const vec tangent = one - two / (vec_exp(vec_load(scores + i) * factor) + one);
        vec_store(scores + i, tangent * back);
    }
}

/* scores[first .. last) becomes e^(scale * score - maximum). Vectors are aligned to the block, so that the order of the
 * sum depends on the line's own tokens alone. */
static inline void attention_softmax(float *scores, int64_t first, int64_t last, float scale, float *max, float *sum)
{
    int64_t begin = first / VEC_WIDTH * VEC_WIDTH, end = (last + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH;
    for (int64_t i = begin; i < first; i++) scores[i] = -INFINITY;
    for (int64_t i = last; i < end; i++) scores[i] = -INFINITY;
    vec factor = vec_set(scale), largest = vec_set(-INFINITY);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        vec score = vec_load(scores + i) * factor;
        vec_store(scores + i, score);
        largest = vec_max(largest, score);
    }
    *max = vec_largest(largest);
    vec offset = vec_set(*max), total = vec_set(0);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        vec probability = vec_exp(vec_load(scores + i) - offset);
        vec_store(scores + i, probability);
        total = total + probability;
    }
    *sum = vec_sum(total);
}

/* out[line][0 .. vectors * VEC_WIDTH) += sum over tokens [first, last) of probability * value. With `part`, one vector
 * of which that many components exist. */
VEC_INLINE void attention_value_tile(float *out, int64_t stride, const float (*scores)[ATTENTION_BLOCK_TOKENS],
                                     const void *const *values, int64_t component, int64_t first, int64_t last,
                                     int lines, int vectors, int64_t part, enum encoding_id encoding)
{
    vec sums[ATTENTION_REGISTER_LINES][ATTENTION_REGISTER_VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = vec_load(out + i * stride + component + j * VEC_WIDTH);
    }
    for (int64_t t = first; t < last; t++) {
        vec row[ATTENTION_REGISTER_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            row[j] = vec_load_codes(values[t], component + j * VEC_WIDTH, part ? part : VEC_WIDTH, encoding);
#pragma GCC unroll 4
        for (int i = 0; i < lines; i++) {
            vec probability = vec_set(scores[i][t]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] = vec_fma(probability, row[j], sums[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) vec_store(out + i * stride + component + j * VEC_WIDTH, sums[i][j]);
    }
}

VEC_INLINE void attention_value_lines(float *out, int64_t stride, const float (*scores)[ATTENTION_BLOCK_TOKENS],
                                      const void *const *values, int64_t head_dim, int64_t first, int64_t last,
                                      int lines, enum encoding_id encoding)
{
    int64_t d = 0;
    for (; d + ATTENTION_REGISTER_VECTORS * VEC_WIDTH <= head_dim; d += ATTENTION_REGISTER_VECTORS * VEC_WIDTH)
        attention_value_tile(out, stride, scores, values, d, first, last, lines, ATTENTION_REGISTER_VECTORS, 0,
                             encoding);
    for (; d + VEC_WIDTH <= head_dim; d += VEC_WIDTH)
        attention_value_tile(out, stride, scores, values, d, first, last, lines, 1, 0, encoding);
    if (d < head_dim)
        attention_value_tile(out, stride, scores, values, d, first, last, lines, 1, head_dim - d, encoding);
}

/* Adds the tokens [first, last) of one chunk to the lines [line, line + count). Tokens that all lines see are taken
 * together; before and after them, each line takes its own, so that no line touches a value it must not see. */
VEC_INLINE void attention_value_group(struct attention_scratch *scratch, int64_t line, int64_t count, int64_t head_dim,
                                      int64_t stride, int64_t first, int64_t last, enum encoding_id encoding)
{
    int64_t low = first, high = last;
    for (int64_t i = line; i < line + count; i++) {
        low = attention_most(low, scratch->first[i]);
        high = attention_least(high, scratch->last[i]);
    }
    if (low >= high) low = high = last; /* no tokens in common: all of them are "before" */
    for (int64_t i = line; i < line + count; i++) {
        int64_t begin = attention_most(first, scratch->first[i]);
        int64_t end = attention_least(low, scratch->last[i]);
        if (begin < end)
            attention_value_lines(scratch->block_values + i * stride, stride, scratch->scores + i, scratch->value_rows,
                                  head_dim, begin, end, 1, encoding);
    }
    if (low < high) {
        float *out = scratch->block_values + line * stride;
        const float(*scores)[ATTENTION_BLOCK_TOKENS] = scratch->scores + line;
        const void *const *rows = scratch->value_rows;
        switch (count) {
        case 1: attention_value_lines(out, stride, scores, rows, head_dim, low, high, 1, encoding); break;
        case 2: attention_value_lines(out, stride, scores, rows, head_dim, low, high, 2, encoding); break;
        case 3: attention_value_lines(out, stride, scores, rows, head_dim, low, high, 3, encoding); break;
        default: attention_value_lines(out, stride, scores, rows, head_dim, low, high, 4, encoding); break;
        }
    }
    for (int64_t i = line; i < line + count; i++) {
        int64_t begin = attention_most(high, scratch->first[i]);
        int64_t end = attention_least(last, scratch->last[i]);
        if (begin < end)
            attention_value_lines(scratch->block_values + i * stride, stride, scratch->scores + i, scratch->value_rows,
                                  head_dim, begin, end, 1, encoding);
    }
}

/* Values [first, last) of the block as rows of floats in `packed`. */
VEC_INLINE void attention_unpack_values(struct attention_scratch *scratch, int64_t offset, int64_t head_dim,
                                        int64_t stride, int64_t first, int64_t last, enum encoding_id encoding)
{
    for (int64_t t = first; t < last; t++) {
        float *to = scratch->packed + (t - first) * stride;
        const uint8_t *from = scratch->keys[t] + offset;
        for (int64_t d = 0; d < head_dim; d += VEC_WIDTH)
            vec_store(to + d, vec_load_codes(from, d, head_dim - d, encoding));
        scratch->value_rows[t] = to;
    }
}

/* The two for each encoding. */
static inline void attention_pack_chunk(struct attention_scratch *scratch, int64_t head_dim, int64_t first,
                                        int64_t chunk, int64_t low, int64_t high, int64_t values,
                                        enum encoding_id encoding)
{
#define PACK(id) attention_pack_keys(scratch, head_dim, first, chunk, low, high, values, id)
    switch (encoding) {
    case ENCODING_F32: PACK(ENCODING_F32); break;
    case ENCODING_F16: PACK(ENCODING_F16); break;
    case ENCODING_BF16: PACK(ENCODING_BF16); break;
    case ENCODING_INT8_CHANNEL: PACK(ENCODING_INT8_CHANNEL); break;
    default: PACK(ENCODING_E4M3_CHANNEL); break;
    }
#undef PACK
}

static inline void attention_unpack_chunk(struct attention_scratch *scratch, int64_t offset, int64_t head_dim,
                                          int64_t stride, int64_t first, int64_t last, enum encoding_id encoding)
{
#define UNPACK(id) attention_unpack_values(scratch, offset, head_dim, stride, first, last, id)
    switch (encoding) {
    case ENCODING_F16: UNPACK(ENCODING_F16); break;
    case ENCODING_BF16: UNPACK(ENCODING_BF16); break;
    case ENCODING_INT8_CHANNEL: UNPACK(ENCODING_INT8_CHANNEL); break;
    default: UNPACK(ENCODING_E4M3_CHANNEL); break;
    }
#undef UNPACK
}

/* Functions of their own, so that no frame has the registers of all encodings. */
#define ATTENTION_VALUES(name, encoding)                                                                           \
    __attribute__((noinline)) static void attention_values_##name(struct attention_scratch *scratch, int64_t line, \
                                                                  int64_t count, int64_t head_dim, int64_t stride, \
                                                                  int64_t first, int64_t last)                     \
    {                                                                                                              \
        attention_value_group(scratch, line, count, head_dim, stride, first, last, encoding);                      \
    }
ATTENTION_VALUES(f32, ENCODING_F32)
ATTENTION_VALUES(f16, ENCODING_F16)
ATTENTION_VALUES(bf16, ENCODING_BF16)
ATTENTION_VALUES(int8, ENCODING_INT8_CHANNEL)
ATTENTION_VALUES(e4m3, ENCODING_E4M3_CHANNEL)
#undef ATTENTION_VALUES

static inline void attention_value_chunk(struct attention_scratch *scratch, int64_t line, int64_t count,
                                         int64_t head_dim, int64_t stride, int64_t first, int64_t last,
                                         enum encoding_id encoding)
{
    switch (encoding) {
    case ENCODING_F32: attention_values_f32(scratch, line, count, head_dim, stride, first, last); break;
    case ENCODING_F16: attention_values_f16(scratch, line, count, head_dim, stride, first, last); break;
    case ENCODING_BF16: attention_values_bf16(scratch, line, count, head_dim, stride, first, last); break;
    case ENCODING_INT8_CHANNEL: attention_values_int8(scratch, line, count, head_dim, stride, first, last); break;
    default: attention_values_e4m3(scratch, line, count, head_dim, stride, first, last); break;
    }
}

/* The partial result of one block for all lines of the task: block_max, block_sum, block_values of lines with
 * first < last. */
static inline void attention_block(const struct attention_problem *problem, const struct attention_task *task,
                                   int64_t block, struct attention_scratch *scratch)
{
    const int64_t head_dim = problem->head_dim, value_dim = problem->value_dim, stride = problem->stride;
    const int64_t lines = task->lines;
    const int64_t start = block * ATTENTION_BLOCK_TOKENS;
    for (int64_t line = 0; line < lines; line++) {
        int64_t row = attention_line_row(problem, task, line);
        int64_t first = attention_first_token(problem, row) - start, last = problem->positions[row] + 1 - start;
        scratch->first[line] = (int32_t)attention_most(first, 0);
        scratch->last[line] = (int32_t)attention_most(attention_least(last, ATTENTION_BLOCK_TOKENS), 0);
        if (scratch->first[line] > scratch->last[line]) scratch->first[line] = scratch->last[line];
    }
    int64_t low, high;
    attention_union(scratch, 0, lines, &low, &high);
    if (low >= high) return;

    const int64_t slot = problem->slots[task->row], values = problem->pages.values;
    for (int64_t t = low; t < high;) { /* page by page: a division per token would cost more than its arithmetic */
        const uint8_t *key = pages_key(&problem->pages, slot, start + t, task->kv_head);
        int64_t rest = problem->pages.tokens - (start + t) % problem->pages.tokens;
        const int64_t end = attention_least(t + rest, high);
        if (problem->pages.scales) {
            const uint8_t *scales = pages_key_scale(&problem->pages, slot, start + t, task->kv_head);
            attention_load_scales(scales, end - t, problem->encoding, scratch->key_scales + t);
            attention_load_scales(scales + values, end - t, problem->encoding, scratch->value_scales + t);
            if (block + 1 < task->last_block) { /* all tokens of the next block exist */
                scales = pages_key_scale(&problem->pages, slot, start + t + ATTENTION_BLOCK_TOKENS, task->kv_head);
                __builtin_prefetch(scales);
                __builtin_prefetch(scales + values);
            }
        }
        for (; t < end; t++, key += problem->pages.token_bytes) scratch->keys[t] = key;
    }

    int64_t chunk = ATTENTION_CHUNK_TOKENS;
    while (chunk > VEC_WIDTH && chunk * attention_stride(head_dim) > ATTENTION_PACKED_FLOATS) chunk /= 2;
    for (int64_t first = low / chunk * chunk; first < high; first += chunk) {
        attention_pack_chunk(scratch, head_dim, first, chunk, low, high, values, problem->encoding);
        attention_score_chunk(scratch, lines, head_dim, chunk, first);
    }
    for (int64_t line = 0; line < lines; line++)
        if (scratch->first[line] < scratch->last[line]) {
            float *scores = scratch->scores[line];
            const int64_t first = scratch->first[line], last = scratch->last[line];
            if (problem->pages.scales) attention_scale(scores, scratch->key_scales, first, last);
            if (problem->cap > 0)
                attention_cap(scores, first / VEC_WIDTH * VEC_WIDTH, (last + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH,
                              problem->scale, problem->cap);
            attention_softmax(scores, first, last, problem->scale, &scratch->block_max[line],
                              &scratch->block_sum[line]);
            if (problem->pages.scales) attention_scale(scores, scratch->value_scales, first, last);
        }

    memset(scratch->block_values, 0, (size_t)(lines * stride) * sizeof(float));
    /* Values of few lines are converted as they are used, those of many once for all lines. */
    const bool in_place = problem->encoding == ENCODING_F32 || lines <= ATTENTION_REGISTER_LINES;
    const int64_t step = in_place ? ATTENTION_BLOCK_TOKENS : chunk;
    for (int64_t first = low / step * step; first < high; first += step) {
        int64_t begin = attention_most(first, low), end = attention_least(first + step, high);
        if (in_place)
            for (int64_t t = begin; t < end; t++) scratch->value_rows[t] = scratch->keys[t] + values;
        else
            attention_unpack_chunk(scratch, values, value_dim, stride, begin, end, problem->encoding);
        for (int64_t line = 0; line < lines; line += ATTENTION_REGISTER_LINES)
            attention_value_chunk(scratch, line, attention_least(lines - line, ATTENTION_REGISTER_LINES), value_dim,
                                  stride, begin, end, in_place ? problem->encoding : ENCODING_F32);
    }
}

/* (max, sum, values) takes in a later block's partial result. */
static inline void attention_merge(float *max, float *sum, float *values, float block_max, float block_sum,
                                   const float *block_values, int64_t stride)
{
    float larger = *max > block_max ? *max : block_max;
    vec old_factor = vec_exp(vec_set(*max - larger)), new_factor = vec_exp(vec_set(block_max - larger));
    for (int64_t i = 0; i < stride; i += VEC_WIDTH)
        vec_store(values + i, vec_fma(vec_load(values + i), old_factor, vec_load(block_values + i) * new_factor));
    float both[VEC_WIDTH];
    vec_store(both, vec_fma(vec_set(*sum), old_factor, vec_set(block_sum) * new_factor));
    *sum = both[0];
    *max = larger;
}

static inline void attention_finish(const struct attention_problem *problem, int64_t row, int64_t head,
                                    const float *values, float max, float sum)
{
    const int64_t value_dim = problem->value_dim;
    float *out = problem->out + (row * problem->heads + head) * value_dim;
    if (problem->sinks) {
        float terms[VEC_WIDTH];
        vec_store(terms, vec_exp(vec_set(op_element(problem->sinks, head, problem->sinks_dtype) - max)));
        sum += terms[0];
    }
    vec divisor = vec_set(sum);
    for (int64_t i = 0; i < value_dim; i += VEC_WIDTH)
        vec_store_dtype(out, i, value_dim - i, DTYPE_F32, vec_load(values + i) / divisor);
}

static inline void attention_task_run(const struct attention_problem *problem, const struct attention_task *task,
                                      bool split, struct attention_scratch *scratch)
{
    const int64_t stride = problem->stride;
    const size_t values_bytes = (size_t)stride * sizeof(float);
    for (int64_t line = 0; line < task->lines; line++) {
        int64_t row = attention_line_row(problem, task, line), head = attention_line_head(problem, task, line);
        scratch->q[line] = problem->q + (row * problem->heads + head) * problem->head_dim;
        scratch->started[line] = false;
    }
    for (int64_t block = task->first_block; block <= task->last_block; block++) {
        attention_block(problem, task, block, scratch);
        for (int64_t line = 0; line < task->lines; line++) {
            if (scratch->first[line] >= scratch->last[line]) continue;
            const float *block_values = scratch->block_values + line * stride;
            if (split) {
                float *partial = attention_partial(problem, attention_line_row(problem, task, line),
                                                   attention_line_head(problem, task, line), block);
                partial[ATTENTION_PARTIAL_MAX] = scratch->block_max[line];
                partial[ATTENTION_PARTIAL_SUM] = scratch->block_sum[line];
                memcpy(partial + ATTENTION_PARTIAL_VALUES, block_values, values_bytes);
            } else if (scratch->started[line]) {
                attention_merge(&scratch->max[line], &scratch->sum[line], scratch->values + line * stride,
                                scratch->block_max[line], scratch->block_sum[line], block_values, stride);
            } else {
                scratch->started[line] = true;
                scratch->max[line] = scratch->block_max[line];
                scratch->sum[line] = scratch->block_sum[line];
                memcpy(scratch->values + line * stride, block_values, values_bytes);
            }
        }
    }
    if (split) return;
    for (int64_t line = 0; line < task->lines; line++) {
        int64_t row = attention_line_row(problem, task, line), head = attention_line_head(problem, task, line);
        attention_finish(problem, row, head, scratch->values + line * stride, scratch->max[line], scratch->sum[line]);
    }
}

/* Merges the partial results of one line in rising order, exactly as a task over all blocks does. */
static inline void attention_merge_line(const struct attention_problem *problem, int64_t row, int64_t head,
                                        struct attention_scratch *scratch)
{
    int64_t first = attention_first_block(problem, row), last = attention_last_block(problem, row);
    const float *partial = attention_partial(problem, row, head, first);
    float max = partial[ATTENTION_PARTIAL_MAX], sum = partial[ATTENTION_PARTIAL_SUM];
    memcpy(scratch->values, partial + ATTENTION_PARTIAL_VALUES, (size_t)problem->stride * sizeof(float));
    for (int64_t block = first + 1; block <= last; block++) {
        partial = attention_partial(problem, row, head, block);
        attention_merge(&max, &sum, scratch->values, partial[ATTENTION_PARTIAL_MAX], partial[ATTENTION_PARTIAL_SUM],
                        partial + ATTENTION_PARTIAL_VALUES, problem->stride);
    }
    attention_finish(problem, row, head, scratch->values, max, sum);
}

static inline void attention_vector_run(const struct op_call *call, struct team_member *member)
{
    struct attention_scratch *scratch = member->scratch;
    const struct attention_problem problem = attention_problem_of(call);
    const bool split = attention_is_split(&problem, member->count);
    struct attention_cursor cursor = {0, 0};
    struct attention_task task;
    while (attention_task_at(&problem, split, &cursor, team_ticket(member), &task))
        attention_task_run(&problem, &task, split, scratch);
    if (!split) return;
    team_barrier(member);
    struct share share = team_share(member, problem.rows * problem.heads, 1);
    for (int64_t line = share.first; line < share.last; line++)
        attention_merge_line(&problem, line / problem.heads, line % problem.heads, scratch);
}

#endif
