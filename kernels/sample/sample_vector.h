/* SPDX-License-Identifier: Apache-2.0 */
/* The body of sample over the vectors of one instruction set.
 *
 * First pass, shared among the members: the maximum of every small set of tokens. Second pass, one member per row.
 * Nothing is sorted: tokens in falling order are found by radix selection on the bits of the logit, most significant
 * first, over histograms of weight. A token's weight is its probability relative to the likeliest token's as an integer
 * of 30 bits (less than 2^-30 of the maximum counts as never), so sums are exact and the result depends on no order of
 * summation. Selection by rank (top-k) is the same search with every weight 1. */
#ifndef KERNELS_SAMPLE_SAMPLE_VECTOR_H
#define KERNELS_SAMPLE_SAMPLE_VECTOR_H

#include <float.h>
#include <math.h>

#include "kernels/cpu/share.h"
#include "kernels/sample/philox.h"
#include "kernels/sample/sample_row.h"

op_run sample_run_avx2, sample_run_avx512;

enum {
    SAMPLE_CHUNK_TOKENS = 8192, /* a task of the first pass, a multiple of SAMPLE_GROUP_TOKENS */
    SAMPLE_LEVELS = 3,
    SAMPLE_BUCKETS = 2048,
    SAMPLE_BANDS = 4,
};
static const int sample_shift[SAMPLE_LEVELS] = {21, 10, 0}; /* 11, 11 and 10 bits of the key */
#define SAMPLE_KEY_LOWEST  0x007fffffu                      /* of -infinity; below and above are NaNs */
#define SAMPLE_KEY_HIGHEST 0xff800000u                      /* of +infinity */
#define SAMPLE_WEIGHT_ONE  0x1p30f

/* Unsigned integer that orders as the float does. */
static inline uint32_t sample_key(float value)
{
    uint32_t bits = float_to_bits(value);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

static inline float sample_key_value(uint32_t key)
{
    return float_from_bits(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

/* An array of values: the row's logits as sample.h changes them, or its maxima. */
struct sample_source {
    const float *values;
    int64_t count;
    const uint8_t *seen; /* NULL: no penalty */
    int64_t seen_bytes;
    float penalty;
    const uint32_t *adjustments; /* NULL: none */
    const struct sampler_state *sampler;
    const uint32_t *allowed; /* NULL: all */
    const float *maxima;     /* of each group of vectors, as the first pass left them; NULL: none */
};

/* Penalised logit, negative zero made positive so that equal values have equal keys. */
static inline float sample_value(const struct sample_source *source, uint32_t token)
{
    float value = source->values[token];
    if (source->seen && source->seen[token / 8] >> (token % 8) & 1)
        value = value > 0 ? value / source->penalty : value * source->penalty;
    if (source->adjustments) value = sample_adjusted(source->adjustments, source->sampler, token, value);
    if (!sample_is_allowed(source->allowed, token)) value = -INFINITY;
    return value + 0.0f;
}

/* Adjustments of the values of the tokens [first, first + count). */
static inline vec sample_adjust(const struct sample_source *source, int64_t first, int64_t count, vec value)
{
    const uint32_t *words = source->adjustments + PLAN_BIAS_WORDS + first;
    const int64_t lanes = count < VEC_WIDTH ? count : VEC_WIDTH;
    uint32_t any = 0;
    float values[VEC_WIDTH];
    for (int64_t j = 0; j < lanes; j++) any |= words[j];
    if (!any) return value; /* as in most vectors */
    vec_store(values, value);
    for (int64_t j = 0; j < lanes; j++)
        values[j] = sample_adjusted(source->adjustments, source->sampler, first + j, values[j]);
    return vec_load(values);
}

/* The same for the tokens [first, first + count), first a multiple of VEC_WIDTH; -infinity beyond. */
static inline vec sample_values(const struct sample_source *source, int64_t first, int64_t count)
{
    vec value;
    if (count >= VEC_WIDTH)
        value = vec_load(source->values + first);
    else
        value = vec_select((1u << count) - 1u, vec_load_part(source->values + first, count), vec_set(-INFINITY));
    if (source->seen) {
        uint32_t bits = source->seen[first / 8];
        if (VEC_WIDTH == 16 && first / 8 + 1 < source->seen_bytes) bits |= (uint32_t)source->seen[first / 8 + 1] << 8;
        bits >>= first % 8;
        bits &= (1u << VEC_WIDTH) - 1u;
        if (bits) {
            vec factor = vec_set(source->penalty);
            vec penalised = vec_select(vec_bits_ge(value, vec_set(0)), value / factor, value * factor);
            value = vec_select(bits, penalised, value);
        }
    }
    if (source->adjustments) value = sample_adjust(source, first, count, value);
    if (source->allowed)
        value =
            vec_select(source->allowed[first / 32] >> first % 32 & ((1u << VEC_WIDTH) - 1u), value, vec_set(-INFINITY));
    return value + vec_set(0);
}

static inline struct sample_source sample_source_of(const struct sample_row *row)
{
    bool penalised = row->sampler->repetition_penalty != 1.0f;
    return (struct sample_source){.values = row->logits,
                                  .count = row->vocab,
                                  .seen = penalised ? row->seen : NULL,
                                  .seen_bytes = row->seen_bytes,
                                  .penalty = row->sampler->repetition_penalty,
                                  .adjustments = row->adjustments,
                                  .sampler = row->sampler,
                                  .allowed = row->allowed,
                                  .maxima = row->maxima};
}

/* First pass over the tokens [first, last): groups of vectors to one vector of maxima each, +infinity in lanes that have
 * a NaN or +infinity. */
static inline void sample_find_maxima(const struct sample_row *row, int64_t first, int64_t last)
{
    const struct sample_source source = sample_source_of(row);
    const vec most = vec_set(FLT_MAX);
    enum { GROUP = SAMPLE_GROUP_VECTORS * VEC_WIDTH };
    for (int64_t group = first; group < last; group += GROUP) {
        vec largest[2] = {vec_set(-INFINITY), vec_set(-INFINITY)};
        vec_int fits = vec_int_set(-1); /* lanes without NaN and +infinity */
        int64_t end = group + GROUP < last ? group + GROUP : last, i = group;
        if (!source.seen && !source.adjustments && !source.allowed)
            for (; i + 2 * VEC_WIDTH <= end; i += 2 * VEC_WIDTH) {
                const vec low = vec_load(source.values + i), high = vec_load(source.values + i + VEC_WIDTH);
                largest[0] = vec_max(low, largest[0]);
                largest[1] = vec_max(high, largest[1]);
                fits &= (vec_int)(low <= most) & (vec_int)(high <= most);
            }
        for (; i < end; i += VEC_WIDTH) {
            const vec value = sample_values(&source, i, end - i);
            largest[0] = vec_max(value, largest[0]);
            fits &= (vec_int)(value <= most);
        }
        const vec_int maxima = (vec_int)(vec_max(largest[0], largest[1]) + vec_set(0));
        vec_store(row->maxima + group / SAMPLE_GROUP_VECTORS,
                  (vec)((maxima & fits) | ((vec_int)vec_set(INFINITY) & ~fits)));
    }
}

/* Maxima that the first pass wrote for these vectors: one per lane of each group. */
static inline int64_t sample_maxima_written(const struct sample_row *row)
{
    int64_t group = SAMPLE_GROUP_VECTORS * VEC_WIDTH;
    return (row->vocab + group - 1) / group * VEC_WIDTH;
}

static inline float sample_largest(const struct sample_row *row)
{
    vec largest = vec_set(-INFINITY);
    int64_t count = sample_maxima_written(row);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) largest = vec_max(largest, vec_load(row->maxima + i));
    return vec_largest(largest);
}

static inline uint32_t sample_lowest_bit(uint32_t bits) { return (uint32_t)__builtin_ctz(bits); }

/* Lowest token whose value is `largest`, which is finite. */
static inline uint32_t sample_argmax(const struct sample_row *row, const struct sample_source *source, float largest)
{
    const vec bound = vec_set(largest);
    int64_t count = sample_maxima_written(row);
    for (int64_t group = 0; group < count; group += VEC_WIDTH) {
        if (!vec_bits_ge(vec_load(row->maxima + group), bound)) continue;
        int64_t first = group * SAMPLE_GROUP_VECTORS, last = first + SAMPLE_GROUP_VECTORS * VEC_WIDTH;
        if (last > row->vocab) last = row->vocab;
        for (int64_t i = first; i < last; i += VEC_WIDTH) {
            uint32_t bits = vec_bits_ge(sample_values(source, i, last - i), bound);
            if (last - i < VEC_WIDTH) bits &= (1u << (last - i)) - 1u;
            if (bits) return (uint32_t)i + sample_lowest_bit(bits);
        }
    }
    return 0;
}

/* Tokens whose key lies in [low, high], among `ids` in rising order or, if NULL, among all. */
struct sample_set {
    const uint32_t *ids;
    int64_t count;
    uint32_t low, high;
};

/* Weights of tokens: equal, or by probability. */
struct sample_weighing {
    bool by_count;
    float largest, inverse_temperature;
};

static inline vec sample_weights(const struct sample_weighing *weighing, vec value)
{
    const vec one = vec_set(SAMPLE_WEIGHT_ONE), largest = vec_set(weighing->largest);
    if (weighing->by_count) return vec_set(1.0f);
    vec weight = vec_exp((value - largest) * vec_set(weighing->inverse_temperature)) * one;
    /* Neither NaN of -infinity * 0 nor of 0 * infinity, where the temperature or its inverse is infinite. */
    weight = vec_select(vec_bits_ge(weight, vec_set(1.0f)), weight, vec_set(0));
    return vec_select(vec_bits_ge(value, largest), one, weight);
}

/* Values of the up to VEC_WIDTH tokens from index i of the set on; how many. */
static inline int64_t sample_fetch(const struct sample_source *source, const struct sample_set *set, int64_t i,
                                   vec *value)
{
    int64_t count = set->count - i < VEC_WIDTH ? set->count - i : VEC_WIDTH;
    if (!set->ids) {
        *value = sample_values(source, i, count);
        return count;
    }
    float lanes[VEC_WIDTH] = {0};
    for (int64_t j = 0; j < count; j++) lanes[j] = sample_value(source, set->ids[i + j]);
    *value = vec_load(lanes);
    return count;
}

/* First index from i on (a multiple of VEC_WIDTH) where members may be: whole groups whose maxima are too low are
 * passed over. */
static inline int64_t sample_next(const struct sample_source *source, const struct sample_set *set, int64_t i)
{
    enum { GROUP = SAMPLE_GROUP_VECTORS * VEC_WIDTH };
    if (set->ids || !source->maxima) return i;
    const vec low = vec_set(sample_key_value(set->low));
    while (i % GROUP == 0 && i < set->count && !vec_bits_ge(vec_load(source->maxima + i / SAMPLE_GROUP_VECTORS), low))
        i += GROUP;
    return i;
}

/* Bit j: the j-th of `count` fetched values is a member of the set. */
static inline uint32_t sample_members(const struct sample_set *set, vec value, int64_t count)
{
    uint32_t bits = vec_bits_ge(value, vec_set(sample_key_value(set->low)));
    bits &= vec_bits_ge(vec_set(sample_key_value(set->high)), value);
    return count < VEC_WIDTH ? bits & ((1u << count) - 1u) : bits;
}

/* Weight per value of the key's bits at this level. */
static inline void sample_histogram(const struct sample_source *source, const struct sample_set *set,
                                    const struct sample_weighing *weighing, int level,
                                    uint64_t histogram[SAMPLE_BUCKETS])
{
    memset(histogram, 0, SAMPLE_BUCKETS * sizeof *histogram);
    const int shift = sample_shift[level];
    for (int64_t i = sample_next(source, set, 0); i < set->count; i = sample_next(source, set, i + VEC_WIDTH)) {
        float values[VEC_WIDTH], weights[VEC_WIDTH];
        vec value;
        int64_t count = sample_fetch(source, set, i, &value);
        uint32_t bits = sample_members(set, value, count);
        if (!bits) continue;
        vec weight = sample_weights(weighing, value);
        bits &= vec_bits_ge(weight, vec_set(1.0f));
        vec_store(values, value);
        vec_store(weights, weight);
        for (; bits; bits &= bits - 1) {
            uint32_t j = sample_lowest_bit(bits);
            histogram[sample_key(values[j]) >> shift & (SAMPLE_BUCKETS - 1)] += (uint64_t)weights[j];
        }
    }
}

/* Members of the set go to `out`, which may be set->ids, in rising order; at most `room`. */
static inline int64_t sample_collect(const struct sample_source *source, const struct sample_set *set, uint32_t *out,
                                     int64_t room)
{
    int64_t found = 0;
    for (int64_t i = sample_next(source, set, 0); i < set->count; i = sample_next(source, set, i + VEC_WIDTH)) {
        vec value;
        int64_t count = sample_fetch(source, set, i, &value);
        for (uint32_t bits = sample_members(set, value, count); bits; bits &= bits - 1) {
            int64_t index = i + sample_lowest_bit(bits);
            if (found < room) out[found++] = set->ids ? set->ids[index] : (uint32_t)index;
        }
    }
    return found;
}

/* A token in the order of falling value, then rising id. */
struct sample_place {
    uint32_t token, key;
    uint64_t before, weight; /* weight of all that come before it, and its own */
};

/* The first token, in that order, at which the running sum of weights exceeds `target`, which must be less than the
 * set's whole weight. `scratch` has room for the set. */
static inline struct sample_place sample_search(const struct sample_source *source, const struct sample_set *set,
                                                const struct sample_weighing *weighing, uint64_t target,
                                                uint32_t *scratch, int64_t room)
{
    uint64_t histogram[SAMPLE_BUCKETS];
    struct sample_set current = *set;
    struct sample_place place = {0};
    for (int level = 0; level < SAMPLE_LEVELS; level++) {
        sample_histogram(source, &current, weighing, level, histogram);
        int bucket = SAMPLE_BUCKETS - 1;
        while (bucket > 0 && histogram[bucket] <= target - place.before) place.before += histogram[bucket--];
        place.key |= (uint32_t)bucket << sample_shift[level];
        uint32_t highest = place.key | ((1u << sample_shift[level]) - 1u);
        current.low = place.key > set->low ? place.key : set->low;
        current.high = highest < set->high ? highest : set->high;
        current.count = sample_collect(source, &current, scratch, room);
        current.ids = scratch;
    }
    /* Equal values have equal weights: the rank among them is a quotient. */
    float values[VEC_WIDTH];
    vec_store(values, sample_weights(weighing, vec_set(sample_value(source, current.count ? scratch[0] : 0))));
    place.weight = (uint64_t)values[0];
    uint64_t rank = place.weight ? (target - place.before) / place.weight : 0;
    if (rank >= (uint64_t)current.count) rank = current.count ? (uint64_t)current.count - 1 : 0;
    place.before += rank * place.weight;
    place.token = current.count ? scratch[rank] : 0;
    return place;
}

/* Writes the members of the set as a list, unless it is too long to leave room for another list of the same length.
 * *scratch receives the rest of the room. */
static inline struct sample_set sample_list(const struct sample_source *source, const struct sample_set *set,
                                            uint32_t *ids, int64_t room, uint32_t **scratch, int64_t *scratch_room)
{
    struct sample_set list = *set;
    int64_t found = sample_collect(source, set, ids, room / 2);
    *scratch = ids;
    *scratch_room = room;
    if (found >= room / 2) return list;
    list.ids = ids;
    list.count = found;
    *scratch = ids + found;
    *scratch_room = room - found;
    return list;
}

/* Narrows the set to the tokens not below the k-th largest, as a list if that is short. A lower bound comes from the
 * maxima: where there are k or more of them, the k-th largest of the maxima is not above the k-th largest value. */
static inline struct sample_set sample_keep_top_k(const struct sample_row *row, const struct sample_source *source,
                                                  struct sample_set set, int64_t k, uint32_t **scratch, int64_t *room)
{
    const struct sample_weighing counting = {.by_count = true};
    int64_t maxima = sample_maxima_written(row);
    if (k <= maxima && maxima <= row->vocab) {
        const struct sample_source largest = {.values = row->maxima, .count = maxima};
        const struct sample_set all = {.count = maxima, .low = SAMPLE_KEY_LOWEST, .high = SAMPLE_KEY_HIGHEST};
        set.low = sample_search(&largest, &all, &counting, (uint64_t)k - 1, row->ids, row->vocab).key;
    }
    set = sample_list(source, &set, row->ids, row->vocab, scratch, room);
    int64_t members = set.count;
    if (!set.ids) {
        members = 0;
        for (int64_t i = 0; i < set.count; i += VEC_WIDTH) {
            int64_t count = set.count - i < VEC_WIDTH ? set.count - i : VEC_WIDTH;
            members += __builtin_popcount(sample_members(&set, sample_values(source, i, count), count));
        }
    }
    if (members > k) set.low = sample_search(source, &set, &counting, (uint64_t)k - 1, *scratch, *room).key;
    return set;
}

/* Weight of all members whose value is not below each of some bounds, the last of which is below everything. */
struct sample_bands {
    float bound[SAMPLE_BANDS];
    uint64_t weight[SAMPLE_BANDS];
};

static inline void sample_weigh_bands(const struct sample_source *source, const struct sample_set *set,
                                      const struct sample_weighing *weighing, struct sample_bands *bands)
{
    /* Sums of 16-bit halves in 32-bit lanes, emptied before they can overflow. */
    enum { STEPS_PER_FLUSH = 1 << 14, LOWEST = SAMPLE_BANDS - 1 };
    const vec next_bound = vec_set(bands->bound[LOWEST - 1]);
    memset(bands->weight, 0, sizeof bands->weight);
    int64_t i = sample_next(source, set, 0);
    while (i < set->count) {
        vec_int low[SAMPLE_BANDS], high[SAMPLE_BANDS];
        for (int b = 0; b < SAMPLE_BANDS; b++) low[b] = high[b] = vec_int_set(0);
        for (int step = 0; step < STEPS_PER_FLUSH && i < set->count; step++) {
            vec value;
            int64_t count = sample_fetch(source, set, i, &value);
            i = sample_next(source, set, i + VEC_WIDTH);
            uint32_t bits = sample_members(set, value, count);
            if (!bits) continue;
            vec weight = vec_select(bits, sample_weights(weighing, value), vec_set(0));
            vec_int whole = __builtin_convertvector(weight, vec_int);
            low[LOWEST] += whole & vec_int_set(0xffff);
            high[LOWEST] += whole >> 16;
            if (!vec_bits_ge(value, next_bound)) continue; /* as in most vectors */
            for (int b = 0; b < LOWEST; b++) {
                vec inside = vec_select(vec_bits_ge(value, vec_set(bands->bound[b])), weight, vec_set(0));
                whole = __builtin_convertvector(inside, vec_int);
                low[b] += whole & vec_int_set(0xffff);
                high[b] += whole >> 16;
            }
        }
        for (int b = 0; b < SAMPLE_BANDS; b++)
            for (int j = 0; j < VEC_WIDTH; j++)
                bands->weight[b] += (uint64_t)(uint32_t)low[b][j] + ((uint64_t)(uint32_t)high[b][j] << 16);
    }
}

/* sample_search among the members of the highest band that reaches the target, mostly few. */
static inline struct sample_place sample_search_bands(const struct sample_source *source, const struct sample_set *set,
                                                      const struct sample_weighing *weighing,
                                                      const struct sample_bands *bands, uint64_t target,
                                                      uint32_t *scratch, int64_t room)
{
    int band = 0;
    while (band < SAMPLE_BANDS - 1 && bands->weight[band] <= target) band++;
    struct sample_set narrow = *set;
    uint32_t low = sample_key(bands->bound[band] + 0.0f);
    if (low > narrow.low) narrow.low = low;
    return sample_search(source, &narrow, weighing, target, scratch, room);
}

static inline uint32_t sample_draw(const struct sample_row *row, const struct sample_source *source, float largest)
{
    const struct sampler_state *sampler = row->sampler;
    const struct sample_weighing weighing = {.largest = largest, .inverse_temperature = 1.0f / sampler->temperature};
    struct sample_set set = {.count = row->vocab, .low = SAMPLE_KEY_LOWEST, .high = SAMPLE_KEY_HIGHEST};
    uint32_t *scratch = row->ids;
    int64_t room = row->vocab;
    if (sampler->top_k > 0 && sampler->top_k < row->vocab)
        set = sample_keep_top_k(row, source, set, sampler->top_k, &scratch, &room);

    /* e^-22 is less than 2^-30: tokens below that weigh nothing and need not be looked at again. */
    float least_value = largest - 22.0f * sampler->temperature;
    if (least_value < largest && sample_key(least_value + 0.0f) > set.low) set.low = sample_key(least_value + 0.0f);

    if (sampler->options & SAMPLER_MIN_P) {
        const float depth = sampler->temperature * sampler->min_p_log;
        least_value = largest + depth;
        if (least_value <= largest && sample_key(least_value + 0.0f) > set.low)
            set.low = sample_key(least_value + 0.0f);
    }

    /* Bounds in units of the temperature below the maximum: probabilities of e^-2, e^-5 and e^-9 relative to it. */
    struct sample_bands bands = {.bound = {-2, -5, -9, -INFINITY}};
    for (int b = 0; b < SAMPLE_BANDS - 1; b++) {
        float bound = largest + bands.bound[b] * sampler->temperature;
        bands.bound[b] = isnan(bound) ? largest : bound;
    }
    sample_weigh_bands(source, &set, &weighing, &bands);
    uint64_t total = bands.weight[SAMPLE_BANDS - 1];
    if (sampler->top_p < 1.0f) {
        /* The least sum that reaches top_p of the whole; at least one token. */
        double wanted = ceil((double)sampler->top_p * (double)total);
        uint64_t least = wanted >= 1.0 ? (uint64_t)wanted : 1;
        if (least > total) least = total;
        struct sample_place last = sample_search_bands(source, &set, &weighing, &bands, least - 1, scratch, room);
        total = last.before + last.weight;
    }
    /* floor(u * total), u = uniform / 2^24, in two halves so that nothing overflows. */
    const uint64_t uniform = philox_uniform_24(sampler->seed, row->draw);
    const uint64_t low_mask = (1u << PHILOX_UNIFORM_BITS) - 1u;
    uint64_t target = (total >> PHILOX_UNIFORM_BITS) * uniform + ((total & low_mask) * uniform >> PHILOX_UNIFORM_BITS);
    return sample_search_bands(source, &set, &weighing, &bands, target, scratch, room).token;
}

static inline int32_t sample_token(const struct sample_row *row)
{
    if (!row->sampler) return 0;
    const struct sample_source source = sample_source_of(row);
    float largest = sample_largest(row);
    if (!isfinite(largest)) return PLAN_NO_TOKEN;
    if (!(row->sampler->temperature > 0)) return (int32_t)sample_argmax(row, &source, largest);
    return (int32_t)sample_draw(row, &source, largest);
}

static inline void sample_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t rows = op_valid_rows(call), vocab = call->params[SAMPLE_VOCAB];
    const int64_t chunks = (vocab + SAMPLE_CHUNK_TOKENS - 1) / SAMPLE_CHUNK_TOKENS;
    int64_t task;
    while ((task = team_ticket(member)) < rows * chunks) {
        struct sample_row row = sample_row_of(call, task / chunks);
        int64_t first = task % chunks * SAMPLE_CHUNK_TOKENS, last = first + SAMPLE_CHUNK_TOKENS;
        if (row.sampler) sample_find_maxima(&row, first, last < vocab ? last : vocab);
    }
    team_barrier(member);
    while ((task = team_ticket(member)) < rows) {
        struct sample_row row = sample_row_of(call, task);
        sample_commit(call, task, &row, sample_token(&row));
    }
}

#endif
