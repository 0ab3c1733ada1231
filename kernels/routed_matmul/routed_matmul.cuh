/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul: a router with its matrix, and the first matmul over the experts that it chooses, for 1..8 rows (contract:
 * routed_matmul.h). Made of matmul_gemv's ring and tiles and of router's choice of a row's experts.
 *
 * Every thread block multiplies x, which it needs in shared memory anyway, by a few rows of the router's matrix, which were copied
 * before the previous launch had ended. The blocks exchange the logits through a workspace whose words are zero until they are
 * written, in several copies if there are few, and each chooses the experts by itself. Then the ring takes their weights, after
 * those of shared experts, which need no choice. Block 0 also writes the routes for the launches that follow. The last block that
 * has read the logits leaves zeros. All
 * blocks must be resident at the same time. */
#ifndef KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_CUH
#define KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_CUH

#include "kernels/matmul/matmul_gemv.cuh"
#include "kernels/routed_matmul/routed_matmul_layout.cuh"
#include "kernels/router/router.cuh"

template <class P> struct routed_matmul_body {
    struct matmul_params : P {
        static constexpr int SCALE_BITS = 0x3f800000, HAS_RESIDUAL = 0, PARTS = 0, EARLY_ROUTES = 0;
        static constexpr int SPLIT_K = 1, X_SHARED = 1, GROUPS = P::TILE_GROUPS;
    };
    typedef matmul_gemv_body<matmul_params, true> matmul;
    struct router_params : P {
        static constexpr int EXPERTS = P::ROUTED, GROUPS = P::ROUTER_GROUPS, HAS_BIAS = P::HAS_CLAIM_BIAS;
        static constexpr int BIAS_DTYPE = P::CLAIM_BIAS_DTYPE, EPS_BITS = P::ROUTER_EPS_BITS,
                             SCALE_BITS = P::ROUTER_SCALE_BITS;
    };
    typedef router_body<router_params> router;

    static constexpr int TOP_K = P::ROUTE_WIDTH / 2, WARPS = P::WARPS, THREADS = matmul::THREADS,
                         BLOCKS = matmul::BLOCKS;
    static constexpr routed_matmul_layout LAYOUT =
        routed_matmul_lay_out(matmul::LAYOUT.bytes, P::ROWS, P::K, P::WARPS, P::SHARE, P::ROUTED, P::ROUTER_GROUPS,
                              P::ROUTE_WIDTH / 2);
    static constexpr int SHARE = ROUTED_MATMUL_MOST_SHARE, MATRIX_PITCH = (int)LAYOUT.matrix_pitch;
    static_assert(matmul::SHARES_X && P::COPY != GEMV_COPY_THREADS, "experts with an activation, bulk copies");
    static_assert(P::MATRIX_DTYPE == matmul::ELEMENT, "x is staged for both products");
    static_assert(P::ROWS * TOP_K <= GEMV_MOST_CHOICES, "choices");

    typedef typename matmul::weights_operand weights_operand;
    typedef typename matmul::shared_layout shared_layout;
    typedef typename matmul::block_work block_work;

    /* Operands of the router, null where there is none. */
    struct router_operands {
        const u16 *matrix;
        /* [1]: blocks that have read the logits; from LOGITS_AT on f32[COPIES][ROWS][32][PER_LANE], marked. */
        u32 *workspace;
        const void *bias, *claim_bias, *scales;
        const int *seeds, *index;
    };
    static constexpr int LOGITS_AT = ROUTED_MATMUL_TICKET_BYTES / 4;

    /* Shared memory beside matmul's, as addresses. */
    struct routing_layout {
        u32 matrix, parts;
        u32 matrix_full, parts_full, routes_full; /* mbarriers of one phase */
    };

    static __device__ __forceinline__ routing_layout routing_addresses(const void *memory)
    {
        const u32 start = shared_address(memory), barriers = start + (u32)LAYOUT.barriers;
        return {start + (u32)LAYOUT.matrix, start + (u32)LAYOUT.parts, barriers, barriers + 8, barriers + 16};
    }

    /* By one thread, before matmul's. */
    static __device__ __forceinline__ void init_barriers(const routing_layout own)
    {
        barrier_init(own.matrix_full, 1);
        barrier_init(own.parts_full, 32 * WARPS); /* every lane arrives, as in matmul_gemv */
        barrier_init(own.routes_full, 32 * WARPS);
    }

    /* This block has the rows blockIdx.x, blockIdx.x + gridDim.x, ... of the matrix: so many. */
    static __device__ __forceinline__ int share()
    {
        return (int)blockIdx.x < P::ROUTED ? (P::ROUTED - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x : 0;
    }

    /* By the producer warp. */
    static __device__ __forceinline__ void copy_matrix(const u16 *matrix, const routing_layout own)
    {
        const int lane = (int)threadIdx.x % 32, rows = share();
        if (lane == 0) barrier_arrive_expect(own.matrix_full, (u32)(rows * P::K * 2));
        __syncwarp();
        if (lane < rows)
            bulk_copy(own.matrix + (u32)(lane * MATRIX_PITCH),
                      matrix + (i64)((int)blockIdx.x + lane * (int)gridDim.x) * P::K, P::K * 2, own.matrix_full);
    }

    /* The producer warp: fills matmul's ring. `held`: has the experts afterwards. */
    static __device__ __forceinline__ void produce(const weights_operand &weights, const void *bias,
                                                   const block_work work, u32 experts_at,
                                                   typename matmul::choices &held, const shared_layout shared,
                                                   const routing_layout own)
    {
        bool waits = true;
        const auto await_routes = [&]() {
            if (!waits) return;
            barrier_wait(own.routes_full, 0);
            held.load_shared_experts(experts_at);
            waits = false;
        };
        matmul::produce_by(
            [&](int choice) {
                if (choice % TOP_K >= router::CHOSEN) return router::ROUTED + choice % TOP_K - router::CHOSEN;
                await_routes();
                return held.expert_of(choice);
            },
            weights, bias, work, shared);
        await_routes();
    }

    /* Products of this warp's k, by a consumer warp. Several chains of sums: the launch waits for them. */
    static __device__ __forceinline__ void multiply_matrix(const shared_layout shared, const routing_layout own)
    {
        constexpr int STEP = matmul::STEP, CHAINS = 4, UNROLLED = STEP > 32 ? 2 : WARPS > 8 && !matmul::GATED ? 4 : 8;
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = lane / 4, quarter = lane % 4; /* of the fragments */
        const u32 x_at = shared.x + (u32)((row < P::ROWS ? row : 0) * matmul::X_PITCH + quarter * 16);
        const u32 matrix_at = own.matrix + (u32)(row * MATRIX_PITCH + quarter * 16);
        const bool has_row = row < share();
        float sums[CHAINS][2] = {};
#pragma unroll UNROLLED
        for (int i = 0; i < matmul::STEPS_PER_WARP; i++)
#pragma unroll
            for (int within = 0; within < STEP; within += 32) {
                const int k = (warp + i * WARPS) * STEP + within, chain = (i * (STEP / 32) + within / 32) % 2 * 2;
                const bool valid = k + quarter * 8 < P::K;
                u32 values[4] = {}, weights[4] = {};
                if (valid) load_shared(values, x_at + (u32)k * 2);
                if (valid && has_row) load_shared(weights, matrix_at + (u32)k * 2);
                matmul::multiply(sums[chain], values[0], values[1], weights[0], weights[1]);
                matmul::multiply(sums[chain + 1], values[2], values[3], weights[2], weights[3]);
            }
        if (row >= P::ROWS) return;
#pragma unroll
        for (int c = 0; c < 2; c++)
            store_shared(own.parts + 4 * (u32)((warp * P::ROWS + row) * SHARE + quarter * 2 + c),
                         sums[0][c] + sums[1][c] + (sums[2][c] + sums[3][c]));
    }

    /* Few sums: each lane forms its part of them from what it stages, without tensor cores, whose operands would have to be stored first. */
    static constexpr bool BY_LANES = P::ROWS * P::SHARE <= 4;

    /* x into shared memory, and the products of this warp's k, by a consumer warp. */
    static __device__ __forceinline__ void stage_and_multiply(const void *x, const void *norm, const block_work work,
                                                              const shared_layout shared, const routing_layout own)
    {
        if constexpr (!BY_LANES) {
            matmul::stage_x(x, norm, work, shared);
            barrier_wait(own.matrix_full, 0);
            multiply_matrix(shared, own);
            return;
        }
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        float sums[P::ROWS][P::SHARE] = {};
        bool waits = true;
        matmul::stage_x_by(
            [&](const typename matmul::vector &values, int row, int k) {
                if (waits) barrier_wait(own.matrix_full, 0);
                waits = false;
                if (k >= P::K) return; /* zeros after it */
#pragma unroll
                for (int s = 0; s < P::SHARE; s++) {
                    u32 weights[4];
                    load_shared(weights, own.matrix + (u32)(s * MATRIX_PITCH + k * 2));
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        sums[row][s] =
                            fmaf(float_of_half<matmul::ELEMENT>((u16)(values.pair[i / 2] >> i % 2 * 16)),
                                 float_of_half<matmul::ELEMENT>((u16)(weights[i / 2] >> i % 2 * 16)), sums[row][s]);
                }
            },
            x, norm, work, shared);
#pragma unroll
        for (int row = 0; row < P::ROWS; row++)
#pragma unroll
            for (int s = 0; s < P::SHARE; s++) {
                const float sum = warp_sum(sums[row][s]);
                if (lane == 0) store_shared(own.parts + 4 * (u32)((warp * P::ROWS + row) * SHARE + s), sum);
            }
    }

    /* A logit lies beside those that the same lane of `choose` has. */
    static constexpr int PER_LANE = router::PER_LANE, ROW_LOGITS = 32 * PER_LANE;
    static constexpr int COPIES = (int)routed_matmul_copies(P::ROWS, P::ROUTED);
    static constexpr int LOGITS_END = LOGITS_AT + COPIES * P::ROWS * ROW_LOGITS; /* words */
    static __device__ __forceinline__ int place_of(int copy, int row, int expert)
    {
        return LOGITS_AT + (copy * P::ROWS + row) * ROW_LOGITS + expert % 32 * PER_LANE + expert / 32;
    }

    /* Logits of this block's rows of the matrix to all blocks, by the warp that finishes tiles. */
    static __device__ __forceinline__ void send_logits(const router_operands operands, int rows,
                                                       const shared_layout shared, const routing_layout own)
    {
        constexpr int COUNT = P::ROWS * P::SHARE, LANE_LOGITS = (COUNT + 31) / 32;
        const int lane = (int)threadIdx.x % 32;
        const auto expert_of = [](int at) { return (int)blockIdx.x + at % P::SHARE * (int)gridDim.x; };
        float add[LANE_LOGITS] = {};
        u32 bits[LANE_LOGITS] = {};
#pragma unroll
        for (int i = 0; i < LANE_LOGITS; i++)
            if (P::HAS_ROUTER_BIAS && lane + 32 * i < COUNT && expert_of(lane + 32 * i) < P::ROUTED)
                add[i] = load_element<P::ROUTER_BIAS_DTYPE>(operands.bias, expert_of(lane + 32 * i));
        barrier_wait(own.parts_full, 0);
#pragma unroll
        for (int i = 0; i < LANE_LOGITS; i++) {
            const int at = lane + 32 * i, row = at / P::SHARE;
            if (row >= rows || expert_of(at) >= P::ROUTED) continue;
            float sum = 0;
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++)
                sum += load_shared_float(own.parts + 4 * (u32)((warp * P::ROWS + row) * SHARE + at % P::SHARE));
            if constexpr (P::HAS_NORM) sum *= factor_of(shared, row);
            bits[i] = bits_of_float(marked(sum + add[i]));
        }
        /* The lanes share the copies, of which each one that is written is read: `leave`. */
#pragma unroll
        for (int i = 0; i < LANE_LOGITS; i++) {
            constexpr int LAST = COUNT - 32 * (LANE_LOGITS - 1);
            const int stores = (i == LANE_LOGITS - 1 ? LAST : 32) * COPIES;
            for (int first = 0; first < stores; first += 32) {
                const int source = (first + lane) / COPIES % 32, at = source + 32 * i;
                const u32 logit = __shfl_sync(0xffffffffu, bits[i], source);
                if (first + lane < stores && (first + lane) % COPIES < (int)gridDim.x &&
                    logit) /* others have no logit */
                    store_relaxed(operands.workspace + place_of((first + lane) % COPIES, at / P::SHARE, expert_of(at)),
                                  logit);
            }
        }
        if constexpr (P::HAS_NORM) {
            __syncwarp();
            matmul::template make_factors<WARPS>(shared.squares);
        }
    }

    /* As make_factors makes it. */
    static __device__ __forceinline__ float factor_of(const shared_layout shared, int row)
    {
        return rsqrtf(matmul::template ordered_squares<WARPS>(shared.squares, row) / P::K + float_of_bits(P::EPS_BITS));
    }

    /* Rows warp, warp + WARPS, ... of a consumer warp. */
    static constexpr int TURNS = (P::ROWS + WARPS - 1) / WARPS;
    typedef typename router::chosen_row chosen_rows[TURNS];

    /* The experts of a consumer warp's rows. It arrives at routes_full: no tile waits for the weights of the choices. */
    static __device__ __forceinline__ void choose(u8 *memory, const router_operands operands, int rows,
                                                  chosen_rows &chosen, const routing_layout own)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        float *const claims = (float *)(memory + LAYOUT.claims) + (P::ROUTER_GROUPS > 1 ? warp * P::ROUTED : 0);
        /* Unrolled: after a loop whose variable began as `warp`, ptxas of CUDA 13.0 formed warp + WARPS, which `consume` needs, from the
         * register that the loop had changed. */
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = warp + turn * WARPS;
            if (row >= rows) break;
            const u32 *const logits = operands.workspace + place_of((int)blockIdx.x % COPIES, row, lane);
            typename router::inputs in = {};
            if constexpr (P::HAS_SEEDS) in.seed = operands.seeds[P::COUNT_INDEX ? operands.index[row] : row];
            bool all;
            do {
                all = true;
                u32 bits[PER_LANE];
                if constexpr (PER_LANE % 4 == 0) {
#pragma unroll
                    for (int i = 0; i < PER_LANE; i += 4) {
                        const float4 four = load_relaxed((const float4 *)(logits + i));
                        bits[i] = bits_of_float(four.x), bits[i + 1] = bits_of_float(four.y);
                        bits[i + 2] = bits_of_float(four.z), bits[i + 3] = bits_of_float(four.w);
                    }
                } else {
#pragma unroll
                    for (int i = 0; i < PER_LANE; i++) bits[i] = load_relaxed(logits + i);
                }
#pragma unroll
                for (int i = 0; i < PER_LANE; i++) {
                    in.logits[i] = float_of_bits(bits[i]);
                    all &= bits[i] != 0 || lane + 32 * i >= P::ROUTED;
                }
            } while (!__all_sync(0xffffffffu, all));
            chosen[turn] =
                router::choose_experts(in, operands.claim_bias, (float *)(memory + LAYOUT.experts) + row * TOP_K,
                                       claims, (u16 *)(memory + LAYOUT.kept) + row * TOP_K);
        }
        barrier_arrive(own.routes_full);
    }

    /* The weights of the choices of a consumer warp's rows, `pitch` floats from one row's to the next one's. */
    static __device__ __forceinline__ void weigh(const router_operands operands, int rows, chosen_rows &chosen,
                                                 float *weights, int pitch)
    {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = (int)threadIdx.x / 32 + turn * WARPS;
            if (row < rows) router::weigh(chosen[turn], operands.scales, weights + row * pitch);
        }
    }

    /* This block needs the workspace no more: the last one clears its first `words`, a multiple of 4. By a warp. Zeros come after all that
     * blocks have written there, without a fence, since some block has read each such word before it counts itself. */
    static __device__ __forceinline__ void leave(u32 *workspace, int words)
    {
        const int lane = (int)threadIdx.x % 32;
        u32 ticket = 0;
        if (lane == 0) ticket = count_relaxed(workspace, gridDim.x - 1);
        if (__shfl_sync(0xffffffffu, ticket, 0) != gridDim.x - 1) return;
        for (int i = LOGITS_AT / 4 + lane; i < words / 4; i += 32) ((uint4 *)workspace)[i] = make_uint4(0, 0, 0, 0);
    }

    /* Experts and lists for the launches that follow, by one warp. */
    static __device__ __forceinline__ void publish(const u8 *memory, int rows, float *routes, int *lists)
    {
        const float *const found = (const float *)(memory + LAYOUT.experts);
        const u16 *const experts = (const u16 *)(memory + LAYOUT.kept);
        const int lane = (int)threadIdx.x % 32, count = rows * TOP_K;
        for (int i = lane; i < count; i += 32) /* a launch that follows may look for them */
            store_relaxed((u32 *)routes + i / TOP_K * (2 * TOP_K) + TOP_K + i % TOP_K, bits_of_float(found[i]));
#pragma unroll 1
        for (int expert = lane; expert <= P::EXPERTS; expert += 32) {
            int begin = 0;
            for (int choice = 0; choice < count; choice++) begin += experts[choice] < expert;
            lists[expert] = begin;
        }
#pragma unroll 1
        for (int choice = lane; choice < count; choice += 32) {
            int place = 0;
            for (int other = 0; other < count; other++)
                place += experts[other] < experts[choice] || (experts[other] == experts[choice] && other < choice);
            lists[P::EXPERTS + 1 + place] = choice;
        }
        __syncwarp();
    }

    /* `memory`: shared, LAYOUT.bytes, aligned to 1024. `bias`, `norm`: null without HAS_... */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *x,
                                               const weights_operand &weights, void *out, float *routes, int *lists,
                                               const void *bias, const void *norm, const router_operands operands)
    {
        const shared_layout shared = matmul::shared_addresses(memory);
        const routing_layout own = routing_addresses(memory);
        const int warp = (int)threadIdx.x / 32;
        typename matmul::choices held = {};
        if (threadIdx.x == 0) {
            init_barriers(own);
            matmul::init_barriers(shared);
        }
        __syncthreads();
        /* No launch of the step writes counts. */
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS);
        const block_work work = matmul::find_work(rows);
        const u32 experts_at = shared_address(memory + LAYOUT.experts);
        if (warp == WARPS + 1) {
            copy_matrix(operands.matrix, own);
            produce(weights, bias, work, experts_at, held, shared, own);
            return;
        }
        if (warp < WARPS) {
            matmul::prefetch_norm(norm, work);
            device_wait();
            stage_and_multiply(x, norm, work, shared, own);
            barrier_arrive(own.parts_full);
            chosen_rows chosen;
            choose(memory, operands, rows, chosen, own);
            /* For the launches that follow. */
            if (blockIdx.x == 0) weigh(operands, rows, chosen, routes, 2 * TOP_K);
            matmul::consume(x, norm, work, shared);
        } else {
            device_wait();
            /* The next launch may begin now, and look for the experts: it must not see those that lay there before. */
            if (blockIdx.x == 0) {
                for (int i = (int)threadIdx.x % 32; i < P::ROWS * TOP_K; i += 32)
                    store_relaxed((u32 *)routes + i / TOP_K * (2 * TOP_K) + TOP_K + i % TOP_K, EXPERT_TO_COME);
                fence_gpu();
                __syncwarp();
            }
            device_trigger();
            send_logits(operands, rows, shared, own);
            barrier_wait(own.routes_full, 0);
            held.load_shared_experts(experts_at);
            if (blockIdx.x == 0) publish(memory, rows, routes, lists);
            leave(operands.workspace, LOGITS_END);
            matmul::finish(weights, out, bias, nullptr, work, held, shared);
        }
    }
};

#endif
