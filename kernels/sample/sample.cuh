/* SPDX-License-Identifier: Apache-2.0 */
/* sample: draws the next token of every out row (contract: sample.h, semantics: sample.h).
 *
 * A cluster of CLUSTER thread blocks processes a row; each block has a slice of the vocabulary. The first pass turns
 * values into keys (integers that order as the values do), finds the largest, or that one is not finite, and, unless
 * the row is greedy, leaves the keys in shared memory. Where a slice does not fit there, as on GPUs without
 * clusters, every pass reads the logits again.
 *
 * Tokens in falling order of (key, then rising id) are found by radix selection on that pair, 11 bits a pass, over
 * histograms of weight that the blocks of the cluster add up, a share of the buckets each. As soon as few tokens are
 * left in the bucket they are gathered and ranked. Weights are integers, so no result depends on an order of
 * summation; exponential function and divisions are those of the CPU, operation by operation. */
#ifndef KERNELS_SAMPLE_SAMPLE_CUH
#define KERNELS_SAMPLE_SAMPLE_CUH

#include "kernels/sample/sample_logits.cuh"

template <u32 VALUE> struct sample_bits_of {
    static constexpr int value = 1 + sample_bits_of<VALUE / 2>::value;
};
template <> struct sample_bits_of<0> {
    static constexpr int value = 0;
};

template <class P> struct sample_body {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    static constexpr int CTAS = 1; /* no clusters: the host refuses CLUSTER > 1 */
#else
    static constexpr int CTAS = P::CLUSTER;
#endif
    typedef sample_logits<P> rows;
    typedef typename rows::row_slice row_slice;
    static constexpr int VECTOR = rows::VECTOR;
    static constexpr int SLICE = (int)sample_slice(P::VOCAB, CTAS); /* tokens of a block */
    static constexpr int STRIDE = P::THREADS * VECTOR;
    static constexpr int STEPS = (SLICE + STRIDE - 1) / STRIDE;
    static constexpr int BATCH =
        STEPS * VECTOR <= 40 ? STEPS : 32 / VECTOR; /* loads in flight: what the registers hold */
    static constexpr bool STAGED = sample_is_staged(SLICE, CTAS);

    static constexpr int BUCKET_BITS = CTAS <= 2 ? 10 : 11; /* so that static shared memory stays below 48 KiB */
    static constexpr int BUCKETS = 1 << BUCKET_BITS;
    static constexpr int CHUNK = BUCKETS / CTAS; /* buckets that a block adds up for the cluster */
    /* Lanes whose largest key is one of BOUND_GROUPS: their least bounds the k-th largest key from below. */
    static constexpr int BOUND_LANES = CTAS * P::THREADS >= 4096   ? 32
                                       : CTAS * P::THREADS >= 2048 ? 16
                                       : CTAS * P::THREADS >= 1024 ? 8
                                                                   : 4;
    static constexpr int BOUND_GROUPS = CTAS * P::THREADS / BOUND_LANES;
    static constexpr int LIST = 128; /* tokens that are ranked at once: each is compared with each */

    static constexpr int ID_BITS = sample_bits_of<P::VOCAB - 1>::value;
    static constexpr u64 ID_MASK = (1ull << ID_BITS) - 1;

    static constexpr u32 KEY_LOWEST = 0x007fffff;   /* of -infinity */
    static constexpr u32 KEY_INFINITY = 0xff800000; /* of +infinity */
    static constexpr u32 WEIGHT_ONE = 1u << 30;
    static constexpr int NO_TOKEN = -1; /* PLAN_NO_TOKEN of formats/engine/plan.h */

    /* Progress of a search: weight of the tokens before the bucket, weight and number of those in it. */
    struct found_bucket {
        u64 before, weight;
        u32 bucket, members;
    };
    /* A token: its order (see order_of), weight of the tokens up to and with it. */
    struct found_token {
        u64 order, reached;
    };

    struct shared_state {
        u32 members[BUCKETS], weight_low[BUCKETS], weight_high[BUCKETS]; /* this block's histogram */
        /* The cluster's histogram: this block's share of the buckets, and the shares' sums. Set 0 is kept. */
        u64 chunk_weight[2][CHUNK];
        u32 chunk_members[2][CHUNK];
        u64 totals[2][CTAS];
        u64 warp_best[32], best[CTAS]; /* key << 32 | ~id */
        u32 warp_least[32];
        u64 least[CTAS];        /* the least of the groups' largest keys */
        found_bucket bucket[2]; /* by turns, so that a slow reader is never overtaken */
        found_token token;
        u64 list[LIST], list_weight[LIST]; /* of the first block */
        u32 list_length, cut_key;
        u64 kept_weight[2];
    };
    static_assert(sizeof(shared_state) <= SAMPLE_STATIC_BYTES, "as the host counts");

    static __device__ __forceinline__ shared_state &state()
    {
        __shared__ shared_state shared;
        return shared;
    }

    /* u32[SLICE] if STAGED: dynamic shared memory. */
    static __device__ __forceinline__ uint4 *staged_keys()
    {
#ifdef KERNELS_ON_HOST
        return (uint4 *)shared_memory;
#else
        extern __shared__ uint4 sample_staged_keys[];
        return sample_staged_keys;
#endif
    }

    /* The cluster: without one, a block. */
    static __device__ __forceinline__ u32 own_rank()
    {
        if constexpr (CTAS > 1) return cluster_rank();
        return 0;
    }

    static __device__ __forceinline__ void all_arrive()
    {
        if constexpr (CTAS > 1) cluster_arrive();
    }

    static __device__ __forceinline__ void all_wait()
    {
        if constexpr (CTAS > 1)
            cluster_wait();
        else
            __syncthreads();
    }

    static __device__ __forceinline__ void all_meet()
    {
        all_arrive();
        all_wait();
    }

    /* Address, in the window of the cluster, of what lies at `pointer` in the shared memory of block `rank`. */
    static __device__ __forceinline__ u32 peer_address(const void *pointer, int rank)
    {
        if constexpr (CTAS > 1) return cluster_address(shared_address(pointer), (u32)rank);
        return shared_address(pointer);
    }

    static __device__ __forceinline__ void peer_store(u64 *pointer, int rank, u64 value)
    {
        cluster_store(peer_address(pointer, rank), value);
    }

    static __device__ __forceinline__ u32 peer_load(const u32 *pointer, int rank)
    {
        return cluster_load_word(peer_address(pointer, rank));
    }

    static __device__ __forceinline__ u32 peer_add(u32 *pointer, int rank, u32 value)
    {
        return cluster_add(peer_address(pointer, rank), value);
    }

    /* Unsigned integer that orders as the float does; equal values have equal keys. NaN has none. */
    static __device__ __forceinline__ u32 key_of(float value)
    {
        const u32 bits = bits_of_float(__fadd_rn(value, 0.0f)); /* -0 becomes 0 */
        return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    }

    static __device__ __forceinline__ float value_of(u32 key)
    {
        return float_of_bits(key >> 31 ? key ^ 0x80000000u : ~key);
    }

    /* Falling order is: falling key, then rising id. */
    static __device__ __forceinline__ u64 order_of(u32 key, u32 id) { return ((u64)key << ID_BITS) | (ID_MASK - id); }
    static __device__ __forceinline__ u32 id_of(u64 order) { return (u32)(ID_MASK - (order & ID_MASK)); }

    /* visit(keys, id of the first) for every VECTOR tokens of the slice. */
    template <class VISIT> static __device__ __forceinline__ void for_each_vector(const row_slice &row, VISIT visit)
    {
#pragma unroll 1 /* the code is there several times; registers */
        for (int i = threadIdx.x * VECTOR; i < row.count; i += STRIDE) {
            u32 key[VECTOR];
            if constexpr (STAGED && VECTOR == 4) {
                const uint4 vector = staged_keys()[i / 4];
                key[0] = vector.x, key[1] = vector.y, key[2] = vector.z, key[3] = vector.w;
            } else if constexpr (STAGED) {
                key[0] = ((const u32 *)staged_keys())[i];
            } else {
                float value[VECTOR];
                rows::load_values(row, i, value);
                rows::penalise(row, i, value);
                if (row.changes_logits()) rows::adjust(row, i, value);
#pragma unroll
                for (int j = 0; j < VECTOR; j++) key[j] = key_of(value[j]);
            }
            visit(key, row.first + i);
        }
    }

    /* How tokens are weighted: equally, or by probability relative to the likeliest, in units of 2^-30. */
    struct weigh_rule {
        bool by_count;
        float largest, inverse_temperature;
    };

    /* The arithmetic of vec_exp in kernels/cpu/vector_math.h with fused multiply-adds. Without branches, so that the
     * weights of a vector are computed side by side. */
    static __device__ __forceinline__ u32 weight_of(const weigh_rule &weighing, u32 key)
    {
        if (weighing.by_count) return 1;
        const float value = value_of(key);
        const float x = __fmul_rn(__fsub_rn(value, weighing.largest), weighing.inverse_temperature);
        const float magic = 0x1.8p+23f, n = __fsub_rn(__fmaf_rn(x, 0x1.715476p+0f, magic), magic);
        float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
        r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
        float p = 0x1.6d117cp-10f;
        p = __fmaf_rn(p, r, 0x1.120be2p-7f);
        p = __fmaf_rn(p, r, 0x1.555518p-5f);
        p = __fmaf_rn(p, r, 0x1.5554dcp-3f);
        p = __fmaf_rn(p, r, 0.5f);
        const float mantissa = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
        const u32 weight =
            (u32)__fmul_rn(mantissa, float_of_bits((u32)((int)n + 30 + 127) << 23)); /* exact but for this */
        if (value >= weighing.largest) return WEIGHT_ONE; /* 0 * infinity, where 1 / temperature overflows */
        return x > -21.0f ? weight : 0;                   /* e^-21 < 2^-30; NaN: -infinity * 0 */
    }

    /* Tokens whose order lies in [low, high]. */
    struct order_range {
        u64 low, high;

        __device__ __forceinline__ bool holds(u64 order) const { return low <= order && order <= high; }
        /* For most tokens the key alone shows that they lie outside. */
        __device__ __forceinline__ bool may_hold_key(u32 key) const
        {
            const u32 first = (u32)(low >> ID_BITS), last = (u32)(high >> ID_BITS);
            return key - first <= last - first;
        }
    };

    /* How a range is divided into buckets. By value, bucket b holds the values in [first + b, first + b + 1) /
     * scale, scale a power of two: even buckets where keys, which crowd around zero, would give a few full ones. By
     * order, as many orders go to each bucket as needed, down to one. */
    struct bucket_map {
        order_range range;
        int shift, first;
        float scale; /* 0: by order */
    };

    static __device__ __forceinline__ bucket_map map_by_order(const order_range &range)
    {
        const int bits = 64 - __clzll((long long)(range.high - range.low));
        return {range, bits > BUCKET_BITS ? bits - BUCKET_BITS : 0, 0, 0};
    }

    /* `range` spans the keys of [low, high] and all ids. */
    static __device__ __forceinline__ bucket_map map_by_value(const order_range &range, float low, float high)
    {
        bucket_map map = map_by_order(range);
        const float scale = float_of_bits(bits_of_float((BUCKETS - 2) / (high - low)) & 0x7f800000);
        /* Products must be exact and their floors small integers; false for anything infinite. */
        if (!(scale >= 1.0f && fmaxf(fabsf(low), fabsf(high)) * scale < 0x1p22f)) return map;
        map.scale = scale;
        map.first = __float2int_rd(low * scale);
        return map;
    }

    /* Buckets end where keys end, not amid the ids of a key. */
    static __device__ __forceinline__ bool buckets_hold_whole_keys(const bucket_map &map)
    {
        return map.scale > 0 || (map.shift >= ID_BITS && (map.range.low & ID_MASK) == 0);
    }

    static __device__ __forceinline__ order_range range_of_bucket(const bucket_map &map, u32 bucket)
    {
        order_range range = map.range;
        u64 low, high;
        if (map.scale > 0) {
            const float value = (float)(map.first + (int)bucket);
            low = (u64)key_of(value / map.scale) << ID_BITS;
            high = ((u64)key_of((value + 1.0f) / map.scale) << ID_BITS) - 1;
        } else {
            low = range.low + ((u64)bucket << map.shift);
            high = low + ((1ull << map.shift) - 1);
        }
        if (low > range.low) range.low = low;
        if (high < range.high) range.high = high;
        return range;
    }

    static __device__ __forceinline__ u64 warp_sum_u64(u64 value)
    {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
        return value;
    }

    /* The cluster's histogram over the range of the map, into `set`. */
    static __device__ void accumulate(const row_slice &row, const bucket_map &map, const weigh_rule &weighing, int set)
    {
        const u32 rank = own_rank();
        for (int b = threadIdx.x; b < BUCKETS; b += P::THREADS)
            state().members[b] = state().weight_low[b] = state().weight_high[b] = 0;
        __syncthreads();
        const bool by_value = map.scale > 0, whole_keys = buckets_hold_whole_keys(map);
        for_each_vector(row, [&](const u32 key[VECTOR], u32 id) {
            u32 bucket[VECTOR], weight[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                bool inside = map.range.may_hold_key(key[j]);
                if (by_value) {
                    bucket[j] = (u32)(__float2int_rd(value_of(key[j]) * map.scale) - map.first);
                } else {
                    const u64 order = order_of(key[j], id + j);
                    inside = inside && (whole_keys || map.range.holds(order));
                    bucket[j] = (u32)((order - map.range.low) >> map.shift);
                }
                weight[j] = weight_of(weighing, key[j]);
                if (!inside) weight[j] = 0;
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                if (!weight[j]) continue;
                atomicAdd(&state().members[bucket[j]], 1u);
                if (weighing.by_count) continue;
                const u32 old = atomicAdd(&state().weight_low[bucket[j]], weight[j]);
                if (old + weight[j] < old) atomicAdd(&state().weight_high[bucket[j]], 1u);
            }
        });
        all_meet();
#pragma unroll 1
        for (int b = threadIdx.x; b < CHUNK; b += P::THREADS) {
            u32 members = 0;
            u64 weight = 0;
#pragma unroll
            for (int peer = 0; peer < CTAS; peer++) {
                members += peer_load(&state().members[rank * CHUNK + b], peer);
                if (weighing.by_count) continue;
                weight += peer_load(&state().weight_low[rank * CHUNK + b], peer);
                weight += (u64)peer_load(&state().weight_high[rank * CHUNK + b], peer) << 32;
            }
            state().chunk_members[set][b] = members;
            state().chunk_weight[set][b] = weighing.by_count ? members : weight;
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            u64 total = 0;
#pragma unroll 4
            for (int b = threadIdx.x; b < CHUNK; b += 32) total += state().chunk_weight[set][b];
            total = warp_sum_u64(total);
            if (threadIdx.x < CTAS) peer_store(&state().totals[set][rank], threadIdx.x, total);
        }
        all_meet();
    }

    static __device__ __forceinline__ u64 total_of(int set)
    {
        u64 total = 0;
#pragma unroll
        for (int peer = 0; peer < CTAS; peer++) total += state().totals[set][peer];
        return total;
    }

    /* The bucket of set `set` in which the running sum of weights, from the highest bucket down, exceeds `target`,
     * which is less than the total. `turn` alternates from call to call. */
    static __device__ found_bucket find_bucket(int set, u64 target, int turn)
    {
        constexpr int PER_LANE = CHUNK / 32;
        const u32 rank = own_rank();
        u64 before = 0;
        for (int peer = CTAS - 1; peer > (int)rank; peer--) before += state().totals[set][peer];
        if (threadIdx.x < 32 && before <= target && target < before + state().totals[set][rank]) {
            const int top = CHUNK - 1 - threadIdx.x * PER_LANE;
            u64 own = 0;
#pragma unroll 4
            for (int b = 0; b < PER_LANE; b++) own += state().chunk_weight[set][top - b];
            u64 sum = own; /* up to and with this lane */
#pragma unroll
            for (int offset = 1; offset < 32; offset *= 2) {
                const u64 other = __shfl_up_sync(0xffffffffu, sum, offset);
                if ((int)threadIdx.x >= offset) sum += other;
            }
            before += sum - own;
            if (before <= target && target < before + own) {
                int b = top;
                while (before + state().chunk_weight[set][b] <= target) before += state().chunk_weight[set][b--];
                const u64 place = (u64)(rank * CHUNK + b) | (u64)state().chunk_members[set][b] << 32;
#pragma unroll 1
                for (int peer = 0; peer < CTAS; peer++) {
                    peer_store(&state().bucket[turn].before, peer, before);
                    peer_store(&state().bucket[turn].weight, peer, state().chunk_weight[set][b]);
                    peer_store((u64 *)&state().bucket[turn].bucket, peer, place);
                }
            }
        }
        all_meet();
        return state().bucket[turn];
    }

    /* Lists the tokens of the range, at most LIST, in the first block: those that weigh something, or all. */
    static __device__ void gather(const row_slice &row, const order_range &range, const weigh_rule &weighing, bool all)
    {
        for_each_vector(row, [&](const u32 key[VECTOR], u32 id) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                if (!range.may_hold_key(key[j])) continue;
                const u64 order = order_of(key[j], id + j);
                if (!range.holds(order)) continue;
                const u32 weight = weight_of(weighing, key[j]);
                if (!weight && !all) continue;
                const u32 index = peer_add(&state().list_length, 0, 1);
                if (index >= LIST) continue; /* cannot happen: the histogram counted them */
                peer_store(&state().list[index], 0, order);
                peer_store(&state().list_weight[index], 0, weight);
            }
        });
        all_meet();
    }

    /* Among the at most LIST tokens of the range: the one at which the running sum exceeds `target`. */
    static __device__ found_token rank_tokens(const row_slice &row, const order_range &range,
                                              const weigh_rule &weighing, u64 target)
    {
        gather(row, range, weighing, false);
        if (own_rank() == 0) {
            const int length = (int)min(state().list_length, (u32)LIST);
            if ((int)threadIdx.x < length) {
                const u64 order = state().list[threadIdx.x], weight = state().list_weight[threadIdx.x];
                u64 before = 0;
#pragma unroll 4
                for (int i = 0; i < length; i++) before += state().list[i] > order ? state().list_weight[i] : 0;
                if (before <= target && target < before + weight)
#pragma unroll 1
                    for (int peer = 0; peer < CTAS; peer++) {
                        peer_store(&state().token.order, peer, order);
                        peer_store(&state().token.reached, peer, before + weight);
                    }
            }
        }
        all_meet();
        if (threadIdx.x == 0) state().list_length = 0;
        return state().token;
    }

    /* u(seed, draw) * 2^24: Philox 4x32-10, as philox.h. */
    static __device__ u32 philox_uniform_24(u64 seed, u64 draw)
    {
        u32 word[4] = {(u32)draw, (u32)(draw >> 32), 0, 0}, key_0 = (u32)seed, key_1 = (u32)(seed >> 32);
#pragma unroll
        for (int round = 0; round < 10; round++) {
            const u64 product_0 = 0xD2511F53ull * word[0], product_1 = 0xCD9E8D57ull * word[2];
            word[0] = (u32)(product_1 >> 32) ^ word[1] ^ key_0;
            word[1] = (u32)product_1;
            word[2] = (u32)(product_0 >> 32) ^ word[3] ^ key_1;
            word[3] = (u32)product_0;
            key_0 += 0x9E3779B9u;
            key_1 += 0xBB67AE85u;
        }
        return word[0] >> 8;
    }

    /* The weight at which top_p of the whole weight is reached, at least one token's. */
    static __device__ u64 top_p_weight(const sampler_state *sampler, u64 total)
    {
        const double wanted = ceil(__dmul_rn((double)sampler->top_p, (double)total));
        const u64 sum = wanted >= 1.0 ? (u64)wanted : 1;
        return sum < total ? sum : total;
    }

    /* floor(u * total), in two halves so that nothing overflows. */
    static __device__ u64 draw_target(const row_slice &row, const sampler_state *sampler, u64 total)
    {
        const u64 uniform = philox_uniform_24(sampler->seed, sampler->draw + row.draws_before);
        return (total >> 24) * uniform + ((total & 0xffffff) * uniform >> 24);
    }

    /* The draw among the at most LIST tokens of the range, which holds the top_k largest: in the first block, where
     * the result is valid, the rest is done at once by comparing every token with every other. */
    static __device__ u32 draw_from_list(const row_slice &row, const order_range &range, const weigh_rule &weighing,
                                         const sampler_state *sampler)
    {
        gather(row, range, weighing, true);
        if (own_rank() != 0) return 0;
        const int length = (int)min(state().list_length, (u32)LIST), i = threadIdx.x;
        const u64 order = i < length ? state().list[i] : 0, weight = i < length ? state().list_weight[i] : 0;
        const u32 key = (u32)(order >> ID_BITS);
        u64 before = 0;
        int place = 0;
        if (i < LIST) {
#pragma unroll 4
            for (int j = 0; j < length; j++) {
                const bool first = state().list[j] > order;
                before += first ? state().list_weight[j] : 0;
                place += first;
            }
        }
        if (i < length && place == sampler->top_k - 1) state().cut_key = key;
        __syncthreads();
        const bool kept = i < length && key >= state().cut_key;
        const int count = __syncthreads_count(kept);
        if (kept && place == count - 1) state().kept_weight[0] = before + weight;
        __syncthreads();
        u64 total = state().kept_weight[0];
        if (sampler->top_p < 1.0f) {
            const u64 last = top_p_weight(sampler, total) - 1;
            if (kept && before <= last && last < before + weight) state().kept_weight[1] = before + weight;
            __syncthreads();
            total = state().kept_weight[1];
        }
        const u64 target = draw_target(row, sampler, total);
        if (kept && before <= target && target < before + weight) state().token.order = order;
        __syncthreads();
        return id_of(state().token.order);
    }

    /* The drawn token, valid in the first block. `bound`: a key that at least BOUND_GROUPS tokens reach, or
     * KEY_LOWEST. Three searches: for the last token of top-k, for the last of top-p, for the drawn one; written as
     * one loop, so that the code is there once. */
    static __device__ u32 draw_token(const row_slice &row, const sampler_state *sampler, u32 largest_key, u32 bound)
    {
        enum { TOP_K, TOP_P, DRAW };
        const float largest = value_of(largest_key), temperature = sampler->temperature;
        weigh_rule weighing = {false, largest, __fdiv_rn(1.0f, temperature)};
        /* Tokens below this weigh nothing. */
        const float least = __fsub_rn(largest, __fmul_rn(22.0f, temperature));
        u32 low = least < largest ? key_of(least) : KEY_LOWEST;
        if (P::HAS_OPTIONS && (sampler->options & SAMPLE_OPTION_MIN_P)) {
            const float least_of_min_p = __fadd_rn(largest, __fmul_rn(temperature, sampler->min_p_log));
            if (least_of_min_p <= largest) low = max(low, key_of(least_of_min_p));
        }
        const int top_k = sampler->top_k > 0 && sampler->top_k < P::VOCAB ? sampler->top_k : 0;
        if (top_k && top_k <= BOUND_GROUPS && bound > low) low = bound;

        int turn = 0;
        u64 total = 0;
#pragma unroll 1
        for (int stage = top_k ? TOP_K : TOP_P;; stage++) {
            weighing.by_count = stage == TOP_K;
            const order_range all = {(u64)low << ID_BITS, (u64)largest_key << ID_BITS | ID_MASK};
            bucket_map map = map_by_value(all, value_of(low), largest);
            int set = stage == TOP_K ? 1 : 0;
            bool ready = stage == DRAW; /* set 0 is that of TOP_P */
            u64 before = 0, target;
            u64 order = all.low, reached = 0; /* the token found, the weight up to and with it */
#pragma unroll 1
            for (bool begins = true;; begins = false) {
                if (!ready) accumulate(row, map, weighing, set);
                ready = false;
                if (begins && stage == TOP_K) {
                    target = (u64)top_k - 1;
                    if (target >= total_of(1)) break; /* all stay */
                } else if (begins && stage == TOP_P) {
                    reached = total_of(0);
                    if (!(sampler->top_p < 1.0f)) break; /* all stay */
                    target = top_p_weight(sampler, reached) - 1;
                } else if (begins) {
                    target = draw_target(row, sampler, total);
                }
                const found_bucket bucket = find_bucket(set, target - before, turn);
                turn ^= 1;
                before += bucket.before;
                const order_range range = range_of_bucket(map, bucket.bucket);
                if (begins && stage == TOP_K && before + bucket.members <= LIST && buckets_hold_whole_keys(map)) {
                    weighing.by_count = false;
                    return draw_from_list(row, {range.low, all.high}, weighing, sampler);
                }
                order = range.low, reached = before + bucket.weight;
                if (range.low == range.high) break;
                if (bucket.members <= LIST) {
                    const found_token token = rank_tokens(row, range, weighing, target - before);
                    order = token.order, reached = before + token.reached;
                    break;
                }
                map = map_by_order(range);
                set = 1;
            }
            if (stage == TOP_K) low = (u32)(order >> ID_BITS);
            if (stage == TOP_P) total = reached;
            if (stage == DRAW) return id_of(order);
        }
    }

    static __device__ __forceinline__ void count_token(u32 *word)
    {
        constexpr u32 MOST = (1u << SAMPLE_COUNT_BITS) - 1;
        if ((*word & MOST) < MOST) ++*word;
    }

    struct best_token {
        u32 key, id;
        u32 bound; /* the least of the groups' largest keys */
    };

    /* The largest key of the cluster and the lowest token that has it, from each thread's own. A all_arrive() has
     * gone before. */
    static __device__ best_token cluster_best(u32 key, u32 id)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        u32 largest = __reduce_max_sync(0xffffffffu, key);
        id = __reduce_min_sync(0xffffffffu, key == largest ? id : 0xffffffffu);
        u32 group = key;
#pragma unroll
        for (int offset = BOUND_LANES / 2; offset > 0; offset /= 2)
            group = max(group, __shfl_xor_sync(0xffffffffu, group, offset));
        const u32 warp_least = __reduce_min_sync(0xffffffffu, group);
        if (lane == 0) {
            state().warp_best[warp] = (u64)largest << 32 | ~id;
            state().warp_least[warp] = warp_least;
        }
        all_wait(); /* every block has begun */
        if (CTAS > 1) __syncthreads();
        if (warp == 0) {
            const u64 best = lane < P::THREADS / 32 ? state().warp_best[lane] : 0;
            largest = __reduce_max_sync(0xffffffffu, (u32)(best >> 32));
            const u32 inverse = __reduce_max_sync(0xffffffffu, (u32)(best >> 32) == largest ? (u32)best : 0);
            const u32 least =
                __reduce_min_sync(0xffffffffu, lane < P::THREADS / 32 ? state().warp_least[lane] : 0xffffffffu);
            if (lane < CTAS) {
                peer_store(&state().best[own_rank()], lane, (u64)largest << 32 | inverse);
                peer_store(&state().least[own_rank()], lane, least);
            }
        }
        all_meet();
        u64 best = 0;
        u32 bound = 0xffffffff;
#pragma unroll
        for (int peer = 0; peer < CTAS; peer++) {
            best = state().best[peer] > best ? state().best[peer] : best;
            bound = (u32)state().least[peer] < bound ? (u32)state().least[peer] : bound;
        }
        return {(u32)(best >> 32), ~(u32)best, bound};
    }

    /* `tokens`, `positions`: null without FEEDBACK. `adjustments`, `allowed`: null without HAS_OPTIONS. */
    static __device__ __forceinline__ void run(const int *counts, const float *logits, const int *out_rows,
                                               const int *slots, sampler_state *samplers, u8 *seen, int *next_tokens,
                                               int *tokens, int *positions, u32 *adjustments, const u32 *allowed)
    {
        device_trigger();
        if (threadIdx.x == 0) state().list_length = 0;
        all_arrive();
        const u32 rank = own_rank();
        const int out_row = blockIdx.x / CTAS;
        row_slice row;
        row.first = rank * SLICE;
        row.count =
            rank * SLICE < P::VOCAB ? (int)(P::VOCAB - rank * SLICE < SLICE ? P::VOCAB - rank * SLICE : SLICE) : 0;
        row.logits = logits + (i64)out_row * P::VOCAB + row.first;
        device_wait();

        /* The logits are on their way while the sampler is looked up. */
        float value[BATCH][VECTOR];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int i = b * STRIDE + threadIdx.x * VECTOR;
            if (i < row.count) rows::load_values(row, i, value[b]);
        }
        const int valid = counts[P::COUNT_INDEX];
        const u32 in_row = (u32)out_rows[out_row];
        const bool row_exists = in_row < P::IN_ROWS && out_row < valid;
        const u32 slot = row_exists ? (u32)slots[in_row] : 0;
        const bool exists = row_exists && slot < P::SLOT_COUNT;
        const sampler_state *sampler = samplers + slot;
        const float temperature = exists ? sampler->temperature : 0.0f;
        u8 *row_seen = seen + (i64)slot * ((P::VOCAB + 7) / 8);
        const bool greedy = !(temperature > 0);
        row.penalty = exists ? sampler->repetition_penalty : 1.0f;
        row.seen = row.penalty != 1.0f ? row_seen + row.first / 8 : nullptr;
        row.adjustments = row.allowed = nullptr;
        row.sampler = sampler;
        row.draws_before = 0;
        if constexpr (P::VERIFIES)
            for (int r = 0; exists && r < out_row; r++) {
                const u32 earlier = (u32)out_rows[r];
                row.draws_before += earlier < P::IN_ROWS && (u32)slots[earlier] == slot;
            }
        u32 *row_adjustments = adjustments + (i64)slot * (SAMPLE_BIAS_WORDS + P::VOCAB);
        const u32 options = P::HAS_OPTIONS && exists ? sampler->options : 0;
        if (options & SAMPLE_OPTION_ADJUSTS) row.adjustments = row_adjustments;
        if (options & SAMPLE_OPTION_ALLOWS) row.allowed = allowed + (i64)slot * ((P::VOCAB + 31) / 32);

        float best_value = -infinity(), best_vector[VECTOR] = {},
              worst = -infinity(); /* worst: NaN once there was one */
        int best_index = -1;
        auto take = [&](int i, const float(&taken)[VECTOR]) {
            float largest = taken[0];
#pragma unroll
            for (int j = 1; j < VECTOR; j++) largest = max_or_nan(largest, taken[j]);
            worst = max_or_nan(worst, largest);
            const bool better = largest > best_value;
            best_value = better ? largest : best_value;
            best_index = better ? i : best_index;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) best_vector[j] = better ? taken[j] : best_vector[j];
            if (greedy || !STAGED) return;
            if constexpr (VECTOR == 4)
                staged_keys()[i / 4] =
                    make_uint4(key_of(taken[0]), key_of(taken[1]), key_of(taken[2]), key_of(taken[3]));
            else
                ((u32 *)staged_keys())[i] = key_of(taken[0]);
        };
        const bool changes_logits = row.changes_logits();
        if (changes_logits) /* a loop of its own, so that the other one keeps its registers */
#pragma unroll 1
            for (int i = threadIdx.x * VECTOR; i < row.count; i += STRIDE) {
                float changed[VECTOR];
                rows::load_values(row, i, changed);
                rows::penalise(row, i, changed);
                rows::adjust(row, i, changed);
                take(i, changed);
            }
        for (int base = 0; !changes_logits;) {
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int i = (base + b) * STRIDE + threadIdx.x * VECTOR;
                if (i >= row.count) continue;
                rows::penalise(row, i, value[b]);
                take(i, value[b]);
            }
            base += BATCH;
            if (base >= STEPS) break;
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int i = (base + b) * STRIDE + threadIdx.x * VECTOR;
                if (i < row.count) rows::load_values(row, i, value[b]);
            }
        }
        u32 best_id = 0xffffffff;
#pragma unroll
        for (int j = VECTOR - 1; j >= 0; j--)
            if (best_index >= 0 && best_vector[j] == best_value) best_id = row.first + best_index + j;
        const best_token best = cluster_best(worst == worst ? key_of(best_value) : KEY_INFINITY, best_id);
        if (out_row >= valid) return;
        const bool finite = best.key > KEY_LOWEST && best.key < KEY_INFINITY;
        u32 token = 0;
        if (exists && finite) token = greedy ? best.id : draw_token(row, sampler, best.key, best.bound);

        if (rank != 0 || threadIdx.x != 0) return;
        const int next = exists && !finite ? NO_TOKEN : (int)token;
        next_tokens[out_row] = next;
        if (!exists) return;
        if (finite && !P::VERIFIES) {
            samplers[slot].draw++;
            row_seen[token / 8] |= (u8)(1u << token % 8);
            if (options & SAMPLE_OPTION_ADJUSTS) count_token(row_adjustments + SAMPLE_BIAS_WORDS + token);
        }
        if constexpr (P::FEEDBACK) {
            tokens[in_row] = next;
            positions[in_row] += 1;
        }
    }
};

#endif
