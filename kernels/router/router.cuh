/* SPDX-License-Identifier: Apache-2.0 */
/* router: which experts each row is for (contract: router.h), and for each expert the list of the choices that name it.
 *
 * The launch is one cluster. A warp takes a row: lane l has the experts l, l + 32, ... A claim is compared as a number whose order
 * is that of the contract, so that the best one is a maximum over the warp and of equal ones the lowest index. When all rows are
 * done, each block counts the choices of every expert; then a warp writes the list of an expert, reading all choices in order.
 *
 * Errors: exponentials and quotients of float32 as CUDA has them (2 ulp); sums in any order. */
#ifndef KERNELS_ROUTER_ROUTER_CUH
#define KERNELS_ROUTER_ROUTER_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"
#include "kernels/cuda/include/reduce.cuh"
#include "kernels/router/router_kinds.cuh"
#include "kernels/router/router_layout.cuh"

template <class P> struct router_body {
    static constexpr int THREADS = 32 * ROUTER_WARPS, LOGITS = P::EXPERTS, ROUTED = LOGITS - P::SHARED_GATE;
    static constexpr int EXPERTS = ROUTED + P::SHARED; /* that have a list */
    static constexpr int TOP_K = P::ROUTE_WIDTH / 2, CHOSEN = TOP_K - P::SHARED;
    static constexpr int PER_LANE = (LOGITS + 31) / 32, CHOICES_PER_LANE = (TOP_K + 31) / 32;
    static constexpr int GROUP_SIZE = ROUTED / P::GROUPS, GROUPS_PER_LANE = (P::GROUPS + 31) / 32;
    static constexpr bool KEPT = router_keeps_choices(P::ROWS * TOP_K);
    static constexpr bool CHOSEN_ONLY = P::SCORE == ROUTER_SOFTMAX_CHOSEN;
    static constexpr bool BY_LOGITS = router_claims_are_logits(P::SCORE, P::HAS_BIAS, P::GROUPS);
    static constexpr bool QUICK = PER_LANE <= 8 && P::GROUPS == 1; /* more are kept in too many registers */
    static constexpr bool LATE = CHOSEN_ONLY || BY_LOGITS;         /* exponentials after the choices */
    /* Weights that are divided by their own sum need not be divided by that of all exponentials before; an EPS of 1e-10 at most is far
     * below either sum, in which the largest logit's addend is 1. */
    static constexpr bool SUM_CANCELS =
        P::SCORE == ROUTER_SOFTMAX && P::RENORMALISE != ROUTER_AS_THEY_ARE && (u32)P::EPS_BITS <= 0x2edbe6ff;

    /* Rises with the value, NaN above all; never 0, which taken experts have. */
    static __device__ __forceinline__ u32 rank_of(float value)
    {
        const u32 bits = bits_of_float(value + 0.0f); /* -0 becomes 0 */
        return value != value ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    }

    /* The value of such a number. */
    static __device__ __forceinline__ float value_of(u32 rank)
    {
        return float_of_bits(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
    }

    template <int COUNT> static __device__ __forceinline__ u32 greatest_of(const u32 (&ranks)[COUNT])
    {
        u32 best = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) best = ranks[i] > best ? ranks[i] : best;
        return best;
    }

    /* The greatest of COUNT ranks of each lane, of equal ones the lowest index, which is then taken. */
    template <int COUNT> static __device__ __forceinline__ int take_greatest(u32 (&ranks)[COUNT])
    {
        const int lane = (int)threadIdx.x % 32;
        const u32 best = __reduce_max_sync(0xffffffffu, greatest_of(ranks));
        u32 index = 0xffffffffu;
#pragma unroll
        for (int i = COUNT - 1; i >= 0; i--)
            if (ranks[i] == best) index = (u32)(lane + 32 * i);
        index = __reduce_min_sync(0xffffffffu, index);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (index == (u32)(lane + 32 * i)) ranks[i] = 0;
        return (int)index;
    }

    /* Element `index` of an array that the lanes share as they share experts. */
    static __device__ __forceinline__ float element(const float (&values)[PER_LANE], int index)
    {
        u32 bits = 0; /* by masks: of a choice the compiler makes an array in local memory */
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) bits |= bits_of_float(values[i]) & (0u - (u32)(index / 32 == i));
        return float_of_bits(__shfl_sync(0xffffffffu, bits, index % 32));
    }

    static __device__ __forceinline__ void make_scores(float (&scores)[PER_LANE])
    {
        const int lane = (int)threadIdx.x % 32;
        if constexpr (P::SCORE == ROUTER_SIGMOID) {
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) scores[i] = 1 / (1 + expf(-scores[i]));
        } else {
            float largest = -infinity(), sum = 0;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++)
                if (lane + 32 * i < ROUTED) largest = fmaxf(largest, scores[i]);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                scores[i] = expf(scores[i] - largest);
                if (lane + 32 * i < ROUTED) sum += scores[i];
            }
            sum = warp_sum(sum);
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) scores[i] /= sum;
        }
    }

    /* Takes the experts of all groups but the best ones. `claims`: [ROUTED], of this warp, in shared memory. */
    static __device__ __forceinline__ void take_other_groups(u32 (&ranks)[PER_LANE], const float *claims)
    {
        const int lane = (int)threadIdx.x % 32;
        u32 groups[GROUPS_PER_LANE];
        u32 chosen[GROUPS_PER_LANE] = {}; /* bit l: group l + 32 * i */
#pragma unroll
        for (int i = 0; i < GROUPS_PER_LANE; i++) {
            const int group = lane + 32 * i;
            groups[i] = 0;
            if (group >= P::GROUPS) continue;
            float best = claims[group * GROUP_SIZE], second = 0;
            bool has_second = false;
            for (int j = 1; j < GROUP_SIZE; j++) {
                const float claim = claims[group * GROUP_SIZE + j];
                if (rank_of(claim) > rank_of(best)) {
                    second = best, best = claim, has_second = true;
                } else if (!has_second || rank_of(claim) > rank_of(second)) {
                    second = claim, has_second = true;
                }
            }
            groups[i] = rank_of(P::GROUP_SCORE == ROUTER_GROUP_BEST ? best : best + second);
        }
#pragma unroll 1
        for (int n = 0; n < P::TOP_GROUPS; n++) {
            const int group = take_greatest(groups);
#pragma unroll
            for (int i = 0; i < GROUPS_PER_LANE; i++)
                if (group / 32 == i) chosen[i] |= 1u << group % 32;
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int group = (lane + 32 * i) / GROUP_SIZE;
            bool is_chosen = false;
#pragma unroll
            for (int j = 0; j < GROUPS_PER_LANE; j++) is_chosen |= group / 32 == j && chosen[j] >> group % 32 & 1;
            if (!is_chosen) ranks[i] = 0;
        }
    }

    /* What a row is routed by, of a warp. */
    struct inputs {
        float logits[PER_LANE];
        int seed;
    };

    static __device__ __forceinline__ void load_inputs(inputs &in, const float *logits, const int *seeds,
                                                       const int *index, int row)
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            in.logits[i] = lane + 32 * i < LOGITS ? load_written_float(logits + (i64)row * LOGITS + lane + 32 * i) : 0;
        in.seed = P::HAS_SEEDS ? seeds[P::COUNT_INDEX ? index[row] : row] : 0;
    }

    /* The experts with the CHOSEN greatest ranks: lane l has choices l, l + 32, ... Without CAREFUL a choice
     * waits for little of the one before, but where two of the greatest ranks are equal, the result is false and `experts` is not valid. */
    template <bool CAREFUL>
    static __device__ __forceinline__ bool choose(const u32 (&from)[PER_LANE], int (&experts)[CHOICES_PER_LANE])
    {
        constexpr int UNROLLED = !CAREFUL && CHOSEN <= 16 ? CHOSEN : 4;
        const int lane = (int)threadIdx.x % 32;
        u32 ranks[PER_LANE], ties = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) ranks[i] = from[i];
        u32 greatest = greatest_of(ranks);
#pragma unroll UNROLLED
        for (int choice = 0; choice < CHOSEN; choice++) {
            const u32 best = __reduce_max_sync(0xffffffffu, greatest);
            const u32 owners = __ballot_sync(0xffffffffu, greatest == best);
            int owner = __ffs((int)owners) - 1, own = 0, place = 0;
#pragma unroll
            for (int i = PER_LANE - 1; i >= 0; i--) {
                own += ranks[i] == best;
                if (ranks[i] == best) place = i;
            }
            ties |= (owners & (owners - 1)) | (u32)(own > 1);
            if constexpr (CAREFUL)
                if (owners & (owners - 1)) /* the lowest expert */
                    owner = (int)(__reduce_min_sync(0xffffffffu,
                                                    greatest == best ? (u32)(lane + 32 * place) : 0xffffffffu) %
                                  32);
            const int expert = __shfl_sync(0xffffffffu, lane + 32 * place, owner);
#pragma unroll
            for (int i = 0; i < PER_LANE; i++)
                if (CAREFUL ? lane == owner && i == place : ranks[i] == best) ranks[i] = 0;
            greatest = greatest_of(ranks);
#pragma unroll
            for (int i = 0; i < CHOICES_PER_LANE; i++)
                if (lane + 32 * i == choice) experts[i] = expert;
        }
        return CAREFUL || !__any_sync(0xffffffffu, ties != 0);
    }

    /* The sum of the lanes' choices, zeros beyond the last one. */
    static __device__ __forceinline__ float sum_of_chosen(const float (&values)[CHOICES_PER_LANE])
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++) sum += values[i];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            if (offset < CHOSEN) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        return sum; /* in the lanes that have a choice */
    }

    /* Logits of the choices become their part of the softmax, times any number with SUM_CANCELS. */
    static __device__ __forceinline__ void make_softmax(float (&weights)[CHOICES_PER_LANE],
                                                        const float (&logits)[PER_LANE], bool seeded)
    {
        const int lane = (int)threadIdx.x % 32;
        u32 greatest = 0;
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++) {
            const u32 rank = lane + 32 * i < CHOSEN ? rank_of(weights[i]) : 0;
            greatest = rank > greatest ? rank : greatest;
        }
        if (!CHOSEN_ONLY && seeded) /* the largest logit need not be chosen */
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                const u32 rank = lane + 32 * i < ROUTED ? rank_of(logits[i]) : 0;
                greatest = rank > greatest ? rank : greatest;
            }
        const float largest = value_of(__reduce_max_sync(0xffffffffu, greatest));
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++) weights[i] = lane + 32 * i < CHOSEN ? expf(weights[i] - largest) : 0;
        if (SUM_CANCELS && !seeded) return;
        float all = 0;
        if constexpr (CHOSEN_ONLY) {
            all = sum_of_chosen(weights);
        } else {
#pragma unroll
            for (int i = 0; i < PER_LANE; i++)
                if (lane + 32 * i < ROUTED) all += expf(logits[i] - largest);
            all = warp_sum(all);
        }
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++) weights[i] /= all;
    }

    /* A row between its choices and their weights, by a warp. */
    struct chosen_row {
        float scores[PER_LANE]; /* logits with LATE */
        int experts[CHOICES_PER_LANE];
        float shared; /* weight of the shared experts */
        bool seeded;
    };

    /* The experts of a row, in the order of their claims, then the shared ones: `experts`: f32 [TOP_K]. `claims`: as take_other_groups;
     * `kept`: of this row, with KEPT. */
    static __device__ __forceinline__ chosen_row choose_experts(const inputs &in, const void *bias, float *experts,
                                                                float *claims, u16 *kept)
    {
        const int lane = (int)threadIdx.x % 32;
        chosen_row row = {};
        float(&scores)[PER_LANE] = row.scores;
        float own_claims[PER_LANE];
        u32 ranks[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) scores[i] = in.logits[i];
        row.seeded = P::HAS_SEEDS && in.seed;
        row.shared = 1;
        if constexpr (P::SHARED_GATE) row.shared = 1 / (1 + expf(-element(scores, ROUTED)));
        for (int choice = CHOSEN + lane; choice < TOP_K; choice += 32) {
            experts[choice] = (float)(ROUTED + choice - CHOSEN);
            if constexpr (KEPT) kept[choice] = (u16)(ROUTED + choice - CHOSEN);
        }
        if constexpr (!BY_LOGITS) make_scores(scores);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            own_claims[i] = scores[i];
            if constexpr (P::HAS_BIAS)
                if (lane + 32 * i < ROUTED) own_claims[i] += load_element<P::BIAS_DTYPE>(bias, lane + 32 * i);
        }
        if (row.seeded)
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) own_claims[i] = router_seeded_claim(in.seed, lane + 32 * i);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int expert = lane + 32 * i;
            ranks[i] = expert < ROUTED ? rank_of(own_claims[i]) : 0;
            if constexpr (P::GROUPS > 1)
                if (expert < ROUTED) claims[expert] = own_claims[i];
        }
        if constexpr (P::GROUPS > 1) {
            __syncwarp();
            take_other_groups(ranks, claims);
            __syncwarp();
        }
        if (!QUICK || !choose<false>(ranks, row.experts)) choose<true>(ranks, row.experts);
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++) {
            const int choice = lane + 32 * i;
            if (choice >= CHOSEN) continue;
            experts[choice] = (float)row.experts[i];
            if constexpr (KEPT) kept[choice] = (u16)row.experts[i];
        }
        return row;
    }

    /* The weights of a row's choices, f32 [TOP_K]. */
    static __device__ __forceinline__ void weigh(chosen_row &row, const void *scales, float *out)
    {
        const int lane = (int)threadIdx.x % 32;
        float(&scores)[PER_LANE] = row.scores;
        const int(&experts)[CHOICES_PER_LANE] = row.experts;
        float weights[CHOICES_PER_LANE] = {};
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++)
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) {
                const float score = __shfl_sync(0xffffffffu, scores[j], experts[i] % 32);
                if (lane + 32 * i < CHOSEN && experts[i] / 32 == j) weights[i] = score;
            }
        if constexpr (LATE) make_softmax(weights, scores, row.seeded);
        float divisor = 1;
        if constexpr (P::RENORMALISE != ROUTER_AS_THEY_ARE) {
            const float sum = sum_of_chosen(weights), eps = float_of_bits(P::EPS_BITS);
            divisor = P::RENORMALISE == ROUTER_SUM_PLUS_EPS ? sum + eps : sum < eps ? eps : sum;
        }
        for (int choice = CHOSEN + lane; choice < TOP_K; choice += 32) out[choice] = row.shared;
#pragma unroll
        for (int i = 0; i < CHOICES_PER_LANE; i++) {
            const int choice = lane + 32 * i;
            if (choice >= CHOSEN) continue;
            float weight = weights[i] / divisor * float_of_bits(P::SCALE_BITS);
            if constexpr (P::HAS_SCALES) weight *= load_element<P::SCALES_DTYPE>(scales, experts[i]);
            out[choice] = weight;
        }
    }

    /* A row, by a warp. */
    static __device__ __forceinline__ void route_row(const inputs &in, const void *bias, const void *scales, float *out,
                                                     float *claims, u16 *kept)
    {
        chosen_row row = choose_experts(in, bias, out + TOP_K, claims, kept);
        weigh(row, scales, out);
    }

    /* The choices of all rows: in shared memory with KEPT, else as the rows have written them. */
    struct all_choices {
        const float *routes;
        u16 *kept;
        int count;
    };

    static __device__ __forceinline__ int written_expert(const float *routes, int choice)
    {
        return (int)load_written_float(routes + (i64)(choice / TOP_K) * (2 * TOP_K) + TOP_K + choice % TOP_K);
    }

    /* The expert of a choice, -1 beyond the last one. */
    static __device__ __forceinline__ int expert_of(const all_choices all, int choice)
    {
        if (choice >= all.count) return -1;
        if constexpr (KEPT) return all.kept[choice];
        return written_expert(all.routes, choice);
    }

    /* Those of other blocks, too. */
    static __device__ __forceinline__ void keep_all(const all_choices all)
    {
#pragma unroll 8
        for (int choice = (int)threadIdx.x; choice < all.count; choice += THREADS)
            all.kept[choice] = (u16)written_expert(all.routes, choice);
    }

    /* Where each list begins, in shared memory. `counts`, `begins`: [EXPERTS], [EXPERTS + 1]. */
    static __device__ __forceinline__ void count_choices(const all_choices all, int *counts, int *begins)
    {
        const int thread = (int)threadIdx.x;
        for (int i = thread; i < EXPERTS; i += THREADS) counts[i] = 0;
        __syncthreads();
        for (int choice = thread; choice < all.count; choice += THREADS) atomicAdd(&counts[expert_of(all, choice)], 1);
        __syncthreads();
        if (thread < 32) {
            int before = 0;
            for (int base = 0; base < EXPERTS; base += 32) {
                const int own = base + thread < EXPERTS ? counts[base + thread] : 0;
                int up_to = own;
#pragma unroll
                for (int offset = 1; offset < 32; offset *= 2) {
                    const int more = __shfl_up_sync(0xffffffffu, up_to, offset);
                    if (thread >= offset) up_to += more;
                }
                if (base + thread < EXPERTS) begins[base + thread] = before + up_to - own;
                before += __shfl_sync(0xffffffffu, up_to, 31);
            }
            if (thread == 0) begins[EXPERTS] = before;
        }
        __syncthreads();
    }

    /* By a warp. `expert_of`: of a choice, -1 from `count` on. */
    template <class EXPERT_OF>
    static __device__ __forceinline__ void write_list_of(EXPERT_OF expert_of, int count, int expert, int begin, int end,
                                                         int *choices)
    {
        constexpr int UNROLLED = 4; /* loads under way */
        const int lane = (int)threadIdx.x % 32;
        for (int base = 0; base < count && begin < end; base += 32 * UNROLLED) {
            int experts[UNROLLED];
#pragma unroll
            for (int i = 0; i < UNROLLED; i++) experts[i] = expert_of(base + 32 * i + lane);
#pragma unroll
            for (int i = 0; i < UNROLLED; i++) {
                const u32 named = __ballot_sync(0xffffffffu, experts[i] == expert);
                if (experts[i] == expert) choices[begin + __popc(named & ((1u << lane) - 1))] = base + 32 * i + lane;
                begin += __popc(named);
            }
        }
    }

    static __device__ __forceinline__ void write_list(const all_choices all, int expert, int begin, int end,
                                                      int *choices)
    {
        write_list_of([&](int choice) { return expert_of(all, choice); }, all.count, expert, begin, end, choices);
    }

    /* `memory`: shared, router_shared_bytes. The grid is one cluster. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const float *logits, float *out,
                                               const void *bias, int *lists, const int *seeds, const int *index,
                                               const void *scales)
    {
        const int warp = (int)threadIdx.x / 32, blocks = (int)gridDim.x, block = (int)blockIdx.x;
        int *const counted = (int *)memory, *const begins = counted + EXPERTS;
        float *const claims = (float *)(begins + EXPERTS + 1) + (P::GROUPS > 1 ? warp * EXPERTS : 0);
        device_trigger();
        device_wait();
        /* The first row's logits, valid or not, arrive together with the number of valid rows. */
        int row = block * ROUTER_WARPS + warp;
        inputs in = {};
        constexpr bool EARLY = P::COUNT_INDEX == 0 && PER_LANE <= 16; /* more are held in too many registers */
        if (EARLY && row < P::ROWS) load_inputs(in, logits, seeds, index, row);
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS);
        if (!EARLY && row < rows) load_inputs(in, logits, seeds, index, row);
        const all_choices all = {out,
                                 (u16 *)((float *)(begins + EXPERTS + 1) +
                                         (P::GROUPS > 1 ? ROUTER_WARPS * EXPERTS : 0)),
                                 rows * TOP_K};
        while (row < rows) {
            route_row(in, bias, scales, out + (i64)row * (2 * TOP_K), claims, all.kept + row * TOP_K);
            row += blocks * ROUTER_WARPS;
            if (row < rows) load_inputs(in, logits, seeds, index, row);
        }
#if __CUDA_ARCH__ >= 900
        if (blocks > 1) cluster_sync();
#endif
        __syncthreads();
        if constexpr (KEPT)
            if (blocks > 1) keep_all(all);
        count_choices(all, counted, begins);
        for (int i = block * THREADS + (int)threadIdx.x; i <= EXPERTS; i += blocks * THREADS) lists[i] = begins[i];
        for (int expert = block * ROUTER_WARPS + warp; expert < EXPERTS; expert += blocks * ROUTER_WARPS)
            write_list(all, expert, begins[expert], begins[expert + 1], lists + EXPERTS + 1);
    }
};

#endif
