/* SPDX-License-Identifier: Apache-2.0 */
/* routed_mlp: routed_matmul and the matmul over the same experts that sums over the choices of a row, in one launch (contract:
 * routed_mlp.h). Made of the parts of both.
 *
 * The producer asks for the second matmul's weights, into a ring of its own, as soon as the last ones of the first are asked for: the
 * memory stays busy while the last tiles of the first are multiplied and activations pass from block to block. That happens through the
 * workspace, whose halves are zero until they are written, as with the logits; a warp looks for those that it multiplies itself. The
 * last block that has all it needs leaves zeros. All blocks must be resident at the same time. */
#ifndef KERNELS_ROUTED_MLP_ROUTED_MLP_CUH
#define KERNELS_ROUTED_MLP_ROUTED_MLP_CUH

#include "kernels/routed_matmul/routed_matmul.cuh"
#include "kernels/routed_mlp/routed_mlp_layout.cuh"

template <class P> struct routed_mlp_body {
    typedef routed_matmul_body<P> routed;
    typedef typename routed::matmul up;
    struct down_params : P {
        static constexpr int N = P::DOWN_N, K = up::OUT_COLUMNS, DTYPE = P::DOWN_DTYPE, OUT_DTYPE = P::DOWN_OUT_DTYPE;
        static constexpr int EPILOGUE = 0, SCALE_BITS = P::DOWN_SCALE_BITS, HAS_NORM = 0, PARTS = 0, EARLY_ROUTES = 0;
        static constexpr int HAS_BIAS = P::HAS_DOWN_BIAS, BIAS_DTYPE = P::DOWN_BIAS_DTYPE;
        static constexpr int STAGES = P::DOWN_STAGES, CHUNK = P::DOWN_CHUNK, GROUPS = P::DOWN_GROUPS;
        static constexpr int SPLIT_K = 1, X_SHARED = 1;
    };
    typedef matmul_gemv_sums_body<down_params, matmul_gemv_body<down_params>> down;
    static_assert(P::OUT_DTYPE != DTYPE_F32, "halves are their own flags");

    static constexpr int WARPS = P::WARPS, THREADS = routed::THREADS, TOP_K = routed::TOP_K, CHOICES = P::ROWS * TOP_K;
    static constexpr int BLOCKS = up::BLOCKS < down::BLOCKS ? up::BLOCKS : down::BLOCKS;
    static constexpr routed_mlp_layout LAYOUT =
        routed_mlp_lay_out(routed::LAYOUT.bytes, down::matmul::LAYOUT.bytes, CHOICES);
    static constexpr int ACTIVATIONS_AT = (int)routed_mlp_activations_at(P::ROWS, P::ROUTED) / 4; /* words */
    static constexpr int WORKSPACE_WORDS =
        (int)routed_mlp_workspace_bytes(P::ROWS, P::ROUTED, CHOICES, down_params::K) / 4;

    typedef typename routed::weights_operand up_weights;
    typedef typename down::weights_operand down_weights;
    typedef typename routed::router_operands router_operands;
    typedef typename down::choices choices;
    typedef typename down::vector vector;

    static __device__ __forceinline__ bool both_written(u32 pair) { return (pair & 0xffffu) && pair >> 16; }

    /* Activations that a consumer warp multiplies, as soon as they are there. */
    static __device__ __forceinline__ void stage_activations(const u16 *activations, const choices &held,
                                                             const typename down::block_work work,
                                                             const typename down::shared_layout shared)
    {
        u32 named[choices::PER_LANE];
        held.find_named(named);
        down::stage_x_by(
            [&](auto &values, const auto &x_row, const auto &k) {
                constexpr int COUNT = sizeof x_row / sizeof *x_row;
                bool there;
                do {
                    there = true;
#pragma unroll
                    for (int i = 0; i < COUNT; i++) {
                        values[i] = {};
                        /* No block writes those of a choice of no expert. */
                        if (x_row[i] >= down::matmul::X_ROWS || k[i] >= work.part_k ||
                            !choices::is_named(named, x_row[i]))
                            continue;
                        const float4 four =
                            load_relaxed((const float4 *)(activations + x_row[i] * down_params::K + k[i]));
                        values[i] = {{bits_of_float(four.x), bits_of_float(four.y), bits_of_float(four.z),
                                      bits_of_float(four.w)}};
#pragma unroll
                        for (int j = 0; j < 4; j++) there &= both_written(values[i].pair[j]);
                    }
                } while (!__all_sync(0xffffffffu, there));
            },
            work, shared);
    }

    /* `memory`: shared, LAYOUT.bytes, aligned to 1024. Null without HAS_...: `bias`, `norm`, `down_bias`, `residual`. */
    static __device__ __forceinline__ void run(u8 *memory, const int *counts, const void *x, const up_weights &weights,
                                               const down_weights &second, void *out, const void *bias,
                                               const void *norm, const void *down_bias, const float *residual,
                                               const router_operands operands)
    {
        const typename up::shared_layout shared = up::shared_addresses(memory);
        const typename down::shared_layout below = down::matmul::shared_addresses(memory + LAYOUT.down);
        const typename routed::routing_layout own = routed::routing_addresses(memory);
        const u32 weights_at = shared_address(memory + LAYOUT.weights);
        const u32 weighed = shared_address(memory + LAYOUT.barriers), staged = weighed + 8;
        const int warp = (int)threadIdx.x / 32;
        u16 *const activations = (u16 *)(operands.workspace + ACTIVATIONS_AT);
        if (threadIdx.x == 0) {
            barrier_init(weighed, 32 * WARPS);
            barrier_init(staged, 32 * WARPS);
            routed::init_barriers(own);
            down::matmul::init_barriers(below);
            up::init_barriers(shared);
        }
        device_trigger();
        __syncthreads();
        const int rows = min(counts[P::COUNT_INDEX], P::ROWS); /* no launch of the step writes counts */
        const typename up::block_work work = up::find_work(rows);
        const auto down_work = down::matmul::find_work(rows);
        const u32 experts_at = shared_address(memory + routed::LAYOUT.experts);
        choices held = {};
        if (warp == WARPS + 1) {
            routed::copy_matrix(operands.matrix, own);
            routed::produce(weights, bias, work, experts_at, held, shared, own);
            down::produce(second, down_bias, down_work, held, below);
        } else if (warp < WARPS) {
            up::prefetch_norm(norm, work);
            device_wait();
            routed::stage_and_multiply(x, norm, work, shared, own);
            barrier_arrive(own.parts_full);
            typename routed::chosen_rows chosen;
            routed::choose(memory, operands, rows, chosen, own);
            routed::weigh(operands, rows, chosen, (float *)(memory + LAYOUT.weights), TOP_K);
            barrier_arrive(weighed);
            up::consume(x, norm, work, shared);
            barrier_wait(own.routes_full, 0);
            held.load_shared_experts(experts_at);
            barrier_wait(weighed, 0);
            held.load_shared_weights(weights_at);
            if (down_work.count > 0) stage_activations(activations, held, down_work, below);
            barrier_arrive(staged);
            down::consume(down_work, held, below);
        } else {
            device_wait();
            routed::send_logits(operands, rows, shared, own);
            barrier_wait(own.routes_full, 0);
            held.load_shared_experts(experts_at);
            up::finish_by(
                [&](i64 at, float value) {
                    const u16 half = half_of_float<P::OUT_DTYPE>(value);
                    store_relaxed(activations + at, half ? half : (u16)0x8000);
                },
                weights, bias, nullptr, work, held, shared);
            barrier_wait(weighed, 0);
            held.load_shared_weights(weights_at);
            barrier_wait(staged, 0);
            routed::leave(operands.workspace, WORKSPACE_WORDS);
            down::finish(out, down_bias, residual, down_work, held, below);
        }
    }
};

#endif
