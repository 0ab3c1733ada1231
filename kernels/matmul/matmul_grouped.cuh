/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped: matrices of experts times the few rows that chose each of them, at the speed of the memory. The contract is in
 * matmul_device.h, which also lists the tunables; shared memory is laid out in matmul_grouped_layout.cuh.
 *
 * The choices that name an expert, from the router's lists, are divided into groups of up to COLUMNS; a piece of work is a tile of 8 *
 * GROUPS rows of the expert's matrix times the rows of x of a group, and thread blocks take pieces in turn, those of one matrix
 * after the other. In a block a producer warp streams weights and rows of x through a ring of STAGES stages of CHUNK k,
 * WARPS consumer warps share the k of every stage and multiply on tensor cores, and one more warp adds the sums of the
 * warps, always in the same order, and writes the outputs, while the consumers go on: as matmul_gemv, which keeps x of all
 * rows in shared memory instead and reads a matrix again for every choice. */
#ifndef KERNELS_MATMUL_MATMUL_GROUPED_CUH
#define KERNELS_MATMUL_MATMUL_GROUPED_CUH

#include "kernels/cuda/include/epilogue.cuh"
#include "kernels/cuda/include/mma.cuh"
#include "kernels/cuda/include/tma.cuh"
#include "kernels/matmul/matmul_grouped_layout.cuh"
#include "kernels/matmul/strip_product.cuh"

template <class P> struct matmul_grouped_body {
    static constexpr bool GATED = epilogue_is_gated(P::EPILOGUE);
    static constexpr bool SHARES_X = P::EPILOGUE != ACTIVATION_NONE; /* by the choices of a row */
    static constexpr int TOP_K = P::ROUTE_WIDTH / 2, CHOICES = P::ROWS * TOP_K, COLUMNS = P::COLUMNS;
    static constexpr int MATRIX_N = P::N / P::EXPERTS, TILE = 8 * P::GROUPS, TILES = (MATRIX_N + TILE - 1) / TILE;
    static_assert(P::EXPERTS >= 1 && TOP_K >= 1 && CHOICES <= GROUPED_MOST_CHOICES && P::EXPERTS <= 1024, "experts");
    static_assert(P::K % 32 == 0 && P::CHUNK % 128 == 0 && COLUMNS >= 1 && COLUMNS <= GROUPED_MOST_COLUMNS, "shapes");
    static_assert(!P::HAS_RESIDUAL && !P::HAS_NORM && (SHARES_X || P::PARTS), "no sum over choices");

    static constexpr bool EARLY = P::EARLY_ROUTES;
    static constexpr bool CODED = fragment_is_coded(P::DTYPE);
    static constexpr int ELEMENT = CODED ? DTYPE_BF16 : P::DTYPE; /* that is multiplied */
    static constexpr fragment_layout FRAGMENTS = fragment_lay_out(P::DTYPE);
    static constexpr grouped_layout LAYOUT =
        grouped_lay_out(P::DTYPE, CHOICES, P::EXPERTS, P::WARPS, P::STAGES, P::CHUNK, P::GROUPS, COLUMNS);
    static constexpr int PANELS = CODED ? P::GROUPS / 2 : 1; /* of a tile, if coded */
    static constexpr int CHUNKS = (P::K + P::CHUNK - 1) / P::CHUNK;
    static constexpr int STEP = CODED ? FRAGMENT_STRIP_K : 32; /* k that a warp takes at once */
    static constexpr int STEPS_PER_STAGE = P::CHUNK / STEP / P::WARPS;
    static_assert(P::CHUNK % (STEP * P::WARPS) == 0, "every warp takes as many steps of a stage");
    static constexpr int WEIGHT_PITCH = (int)LAYOUT.weight_pitch, X_PITCH = (int)LAYOUT.x_pitch;
    static constexpr int STAGE_BYTES = (int)LAYOUT.stage_bytes, X_AT = (int)LAYOUT.weight_bytes;
    static constexpr int SUM_PITCH = (int)LAYOUT.sum_pitch, SUM_FLOATS = (int)LAYOUT.sum_floats;
    static constexpr int MOST_GROUPS = (int)LAYOUT.most_groups;
    static constexpr int OUT_COLUMNS = GATED ? MATRIX_N / 2 : MATRIX_N, TILE_OUT = GATED ? TILE / 2 : TILE;
    /* The warp that finishes tiles: its lanes have the same columns in every row. */
    static constexpr int LANE_COLUMNS = TILE_OUT > 32 ? TILE_OUT / 32 : 1,
                         ROWS_AT_ONCE = 32 / (TILE_OUT / LANE_COLUMNS);
    static_assert(TILE_OUT % LANE_COLUMNS == 0 && 32 % (TILE_OUT / LANE_COLUMNS) == 0, "whole rows");
    static constexpr int THREADS = 32 * (P::WARPS + 2), BLOCKS = P::CTAS_PER_SM;

    struct shared_layout {
        u32 ring, sums, begins, groups, choices, weights;
        u32 full, empty;           /* [STAGES] */
        u32 sums_full, sums_empty; /* [2] */
    };

    static __device__ __forceinline__ shared_layout shared_addresses(const void *base)
    {
        const u32 start = shared_address(base);
        shared_layout s;
        s.ring = start;
        s.sums = start + (u32)LAYOUT.sums;
        s.begins = start + (u32)LAYOUT.begins;
        s.groups = start + (u32)LAYOUT.groups;
        s.choices = start + (u32)LAYOUT.choices;
        s.weights = start + (u32)LAYOUT.weights;
        s.full = start + (u32)LAYOUT.barriers;
        s.empty = s.full + 8 * P::STAGES;
        s.sums_full = s.empty + 8 * P::STAGES;
        s.sums_empty = s.sums_full + 16;
        return s;
    }

    static __device__ __forceinline__ int load_shared_int(u32 address)
    {
        return (int)bits_of_float(load_shared_float(address));
    }
    static __device__ __forceinline__ void store_shared_int(u32 address, int value)
    {
        store_shared(address, float_of_bits((u32)value));
    }

    /* Where the experts' lists begin, into shared memory; no number of the lists is trusted. */
    static __device__ __forceinline__ void load_begins(const int *lists, const shared_layout shared)
    {
        for (int i = (int)threadIdx.x; i <= P::EXPERTS; i += THREADS)
            store_shared_int(shared.begins + 4 * (u32)i, min(max(load_written_int(lists + i), 0), CHOICES));
    }

    /* The choices of all lists, and their weights. */
    static __device__ __forceinline__ void load_choices(const int *lists, const float *routes,
                                                        const shared_layout shared)
    {
        const int listed = load_shared_int(shared.begins + 4 * P::EXPERTS);
        for (int i = (int)threadIdx.x; i < listed; i += THREADS) {
            const int choice = min(max(load_written_int(lists + P::EXPERTS + 1 + i), 0), CHOICES - 1);
            store_shared_int(shared.choices + 4 * (u32)i, choice);
            if constexpr (!SHARES_X)
                store_shared(shared.weights + 4 * (u32)i,
                             load_written_float(routes + (i64)(choice / TOP_K) * P::ROUTE_WIDTH + choice % TOP_K));
        }
    }

    /* A group, in one number. */
    struct group {
        int expert, begin, count; /* of the choices in the order of the lists */
    };
    static __device__ __forceinline__ int pack(const group g) { return g.expert << 16 | g.begin << 4 | g.count; }
    static __device__ __forceinline__ group unpack(int packed)
    {
        return {packed >> 16, packed >> 4 & 0xfff, packed & 15};
    }

    /* How many groups all experts have; the first warp writes them. By whole warps. */
    static __device__ __forceinline__ int find_groups(const shared_layout shared)
    {
        const int lane = (int)threadIdx.x % 32;
        const int listed = load_shared_int(shared.begins + 4 * P::EXPERTS);
        int before = 0; /* groups of the experts so far */
        for (int base = 0; base < P::EXPERTS; base += 32) {
            const int expert = min(base + lane, P::EXPERTS - 1);
            const int begin = load_shared_int(shared.begins + 4 * (u32)expert);
            const int end = min(max(load_shared_int(shared.begins + 4 * (u32)expert + 4), begin), listed);
            const int count = base + lane < P::EXPERTS ? max(end - begin, 0) : 0,
                      groups = (count + COLUMNS - 1) / COLUMNS;
            int up_to = groups;
#pragma unroll
            for (int offset = 1; offset < 32; offset *= 2) {
                const int more = __shfl_up_sync(0xffffffffu, up_to, offset);
                if (lane >= offset) up_to += more;
            }
            for (int i = 0; threadIdx.x < 32 && i < groups && before + up_to - groups + i < MOST_GROUPS; i++)
                store_shared_int(shared.groups + 4 * (u32)(before + up_to - groups + i),
                                 pack({expert, begin + i * COLUMNS, min(count - i * COLUMNS, COLUMNS)}));
            before += __shfl_sync(0xffffffffu, up_to, 31);
        }
        return min(before, MOST_GROUPS);
    }

    /* Piece `i` of this block's work. */
    struct piece {
        group of;
        int first; /* row of the expert's matrix */
    };

    static __device__ __forceinline__ piece find_piece(int i, const shared_layout shared)
    {
        const int index = (int)blockIdx.x + i * (int)gridDim.x;
        return {unpack(load_shared_int(shared.groups + 4 * (u32)(index / TILES))), index % TILES * TILE};
    }

    static __device__ __forceinline__ int choice_of(const group g, int i, const shared_layout shared)
    {
        return load_shared_int(shared.choices + 4 * (u32)(g.begin + i));
    }

    /* Weights of `length` k from first_k into a stage, whose phase expects them and x. By the whole producer warp. */
    static __device__ __forceinline__ void copy_weights(const u16 *weights, const piece p, int first_k, int length,
                                                        u32 target, u32 full, u64 policy)
    {
        const int weight_bytes = CODED ? panels_of(p) * strip_bytes_of(length) : rows_of(p) * length * 2;
        if (threadIdx.x % 32 == 0) barrier_arrive_expect(full, (u32)(weight_bytes + p.of.count * length * 2));
        __syncwarp();
        const int lane = (int)threadIdx.x % 32, first_row = p.of.expert * MATRIX_N + p.first;
        if constexpr (CODED) {
            constexpr i64 PANEL_BYTES = fragment_panel_bytes(FRAGMENTS, P::K);
            const u8 *source = (const u8 *)weights + (first_row / FRAGMENT_ROWS + lane) * PANEL_BYTES +
                               fragment_factor_bytes(FRAGMENTS) + first_k / FRAGMENT_STRIP_K * FRAGMENTS.strip_bytes;
            if (lane < panels_of(p))
                bulk_copy_hinted(target + (u32)(lane * WEIGHT_PITCH), source, (u32)strip_bytes_of(length), full,
                                 policy);
        } else {
            for (int row = lane; row < rows_of(p); row += 32)
                bulk_copy_hinted(target + (u32)(row * WEIGHT_PITCH), weights + (i64)(first_row + row) * P::K + first_k,
                                 (u32)(length * 2), full, policy);
        }
    }

    static __device__ __forceinline__ int rows_of(const piece p) { return min(TILE, MATRIX_N - p.first); }
    static __device__ __forceinline__ int panels_of(const piece p)
    {
        return (rows_of(p) + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
    }
    static __device__ __forceinline__ int strip_bytes_of(int length)
    {
        return (length + FRAGMENT_STRIP_K - 1) / FRAGMENT_STRIP_K * FRAGMENTS.strip_bytes;
    }

    /* The producer warp: fills the ring. With EARLY_ROUTES weights of the first stages before the launch before has ended. */
    static __device__ __forceinline__ void produce(const u16 *x, const u16 *weights, int count,
                                                   const shared_layout shared)
    {
        const u64 policy = policy_evict_first();
        const int lane = (int)threadIdx.x % 32, early = EARLY ? min(P::STAGES, count * CHUNKS) : 0;
        for (int n = 0; n < early; n++) {
            const int first_k = n % CHUNKS * P::CHUNK;
            copy_weights(weights, find_piece(n / CHUNKS, shared), first_k, min(P::CHUNK, P::K - first_k),
                         shared.ring + (u32)(n * STAGE_BYTES), shared.full + 8 * (u32)n, policy);
        }
        if constexpr (EARLY) device_wait();
        int stage = 0;
        u32 parity = 1; /* of the phase before the first: the ring begins empty */
        for (int i = 0; i < count; i++) {
            const piece p = find_piece(i, shared);
            const int choice = choice_of(p.of, lane < p.of.count ? lane : 0, shared);
            const u16 *row = x + (i64)(SHARES_X ? choice / TOP_K : choice) * P::K;
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                const int first_k = chunk * P::CHUNK, length = min(P::CHUNK, P::K - first_k);
                const u32 target = shared.ring + (u32)(stage * STAGE_BYTES), full = shared.full + 8 * (u32)stage;
                barrier_wait(shared.empty + 8 * (u32)stage, parity);
                if (i * CHUNKS + chunk >= early) copy_weights(weights, p, first_k, length, target, full, policy);
                if (lane < p.of.count)
                    bulk_copy(target + (u32)(X_AT + lane * X_PITCH), row + first_k, (u32)(length * 2), full);
                if (++stage == P::STAGES) stage = 0, parity ^= 1;
            }
        }
    }

    /* 16-bit weights: 8 rows of x times TILE rows of W over 32 k. Fragments are plain 16-byte loads: the order of k does not matter
     * as long as W and x agree (matmul_gemv.cuh). */
    static __device__ __forceinline__ void multiply_step(float (&sums)[P::GROUPS][2], u32 x_at, u32 weights_at)
    {
        u32 x[4], w[P::GROUPS][4];
        load_shared(x, x_at);
#pragma unroll
        for (int group = 0; group < P::GROUPS; group++)
            load_shared(w[group], weights_at + (u32)(group * 8 * WEIGHT_PITCH));
#pragma unroll
        for (int group = 0; group < P::GROUPS; group++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float d[4] = {sums[group][0], sums[group][1], 0,
                              0}; /* the product has 16 rows of x; half of them are zero */
                mma<ELEMENT>(d, x[2 * half], 0, x[2 * half + 1], 0, w[group][2 * half], w[group][2 * half + 1]);
                sums[group][0] = d[0], sums[group][1] = d[1];
            }
    }

    static __device__ __forceinline__ void consume(int count, const shared_layout shared)
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        int stage = 0;
        u32 parity = 0;
        for (int i = 0; i < count; i++) {
            const int columns = find_piece(i, shared).of.count;
            /* Rows of x beyond the group's are its first again, and what comes of them is dropped. */
            const int x_row = CODED ? lane % 8 : lane / 4, safe_row = x_row < columns ? x_row : 0;
            const u32 x_lane = (u32)(X_AT + safe_row * X_PITCH + (CODED ? lane / 8 : lane % 4) * 16);
            float coded[PANELS][4] = {}, plain[P::GROUPS][2] = {};
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                const u32 at = shared.ring + (u32)(stage * STAGE_BYTES);
                barrier_wait(shared.full + 8 * (u32)stage, parity);
#pragma unroll
                for (int j = 0; j < STEPS_PER_STAGE; j++) {
                    const int in_stage = warp + j * P::WARPS, left = P::K - chunk * P::CHUNK - in_stage * STEP;
                    if (left <= 0) break;
                    if constexpr (CODED)
                        multiply_strips<P::DTYPE, WEIGHT_PITCH>(coded, at + (u32)(in_stage * FRAGMENTS.strip_bytes),
                                                                at + x_lane + (u32)(in_stage * STEP * 2),
                                                                P::K % STEP == 0 ? STEP : left, no_x_sums{});
                    else
                        multiply_step(plain, at + x_lane + (u32)(in_stage * STEP * 2),
                                      at + (u32)(lane / 4 * WEIGHT_PITCH + lane % 4 * 16 + in_stage * STEP * 2));
                }
                barrier_arrive(shared.empty + 8 * (u32)stage);
                if (++stage == P::STAGES) stage = 0, parity ^= 1;
            }
            const int buffer = i % 2;
            barrier_wait(shared.sums_empty + 8 * (u32)buffer, (u32)(i / 2 + 1) % 2);
            const u32 target = shared.sums + 4 * (u32)((buffer * P::WARPS + warp) * SUM_FLOATS);
            if constexpr (CODED) {
#pragma unroll
                for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int row = lane % 4 * 2 + j % 2; /* of x */
                        if (row < columns)
                            store_shared(target + 4 * (u32)(row * SUM_PITCH + panel * 16 + j / 2 * 8 + lane / 4),
                                         coded[panel][j]);
                    }
            } else if (lane / 4 < columns) {
#pragma unroll
                for (int group = 0; group < P::GROUPS; group++)
                    store_shared(target + 4 * (u32)(lane / 4 * SUM_PITCH + group * 8 + lane % 4 * 2),
                                 make_float2(plain[group][0], plain[group][1]));
            }
            barrier_arrive(shared.sums_full + 8 * (u32)buffer);
        }
    }

    /* The row of W in the tile that output `column` of it comes from: of the gate with a gate, whose up row is 8 further. */
    static __device__ __forceinline__ int row_of_column(int column)
    {
        return GATED ? column / 8 * 16 + column % 8 : column;
    }

    static __device__ __forceinline__ float ordered_sum(u32 address)
    {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < P::WARPS; warp++) sum += load_shared_float(address + 4 * (u32)(warp * SUM_FLOATS));
        return sum;
    }

    /* What every row of a column of a tile has in common. */
    struct column_terms {
        float factor, up_factor, bias, up_bias;
    };

    static __device__ __forceinline__ column_terms load_terms(const u16 *weights, const void *bias, int row)
    {
        column_terms t = {1, 1, 0, 0};
        if constexpr (FRAGMENTS.factors) {
            t.factor = fragment_factor<P::DTYPE>(weights, row, P::K);
            if constexpr (GATED) t.up_factor = fragment_factor<P::DTYPE>(weights, row + 8, P::K);
        }
        if constexpr (P::HAS_BIAS) {
            t.bias = scaled<P::SCALE_BITS>(load_element<P::BIAS_DTYPE>(bias, row));
            if constexpr (GATED) t.up_bias = load_element<P::BIAS_DTYPE>(bias, row + 8);
        }
        return t;
    }

    /* The last warp writes the outputs of every piece. */
    static __device__ __forceinline__ void finish(const u16 *weights, void *out, const void *bias, int count,
                                                  const shared_layout shared)
    {
        constexpr int SPAN = TILE_OUT / LANE_COLUMNS; /* columns of a row at once */
        const int lane = (int)threadIdx.x % 32;
        for (int i = 0; i < count; i++) {
            const piece p = find_piece(i, shared);
            const int buffer = i % 2;
            column_terms terms[LANE_COLUMNS] = {};
#pragma unroll
            for (int j = 0; j < LANE_COLUMNS; j++) {
                const int row = p.first + row_of_column(lane % SPAN + j * SPAN);
                if (row < MATRIX_N) terms[j] = load_terms(weights, bias, p.of.expert * MATRIX_N + row);
            }
            barrier_wait(shared.sums_full + 8 * (u32)buffer, (u32)(i / 2) % 2);
            const u32 sums = shared.sums + 4 * (u32)(buffer * P::WARPS * SUM_FLOATS);
            for (int x_row = lane / SPAN; x_row < p.of.count; x_row += ROWS_AT_ONCE) {
                const int choice = choice_of(p.of, x_row, shared);
                float weight = 1;
                if constexpr (!SHARES_X) weight = load_shared_float(shared.weights + 4 * (u32)(p.of.begin + x_row));
#pragma unroll
                for (int j = 0; j < LANE_COLUMNS; j++) {
                    const int column = lane % SPAN + j * SPAN, row = row_of_column(column);
                    if (p.first + row >= MATRIX_N) continue;
                    const u32 at = sums + 4 * (u32)(x_row * SUM_PITCH + row);
                    float value = ordered_sum(at) * terms[j].factor * scaled<P::SCALE_BITS>(1.0f) + terms[j].bias;
                    if constexpr (GATED) {
                        const float up = ordered_sum(at + 4 * 8) * terms[j].up_factor * scaled<P::SCALE_BITS>(1.0f) +
                                         terms[j].up_bias;
                        value = gated_product<P, false>(value, up);
                    } else {
                        value = plain_product<P, false>(value) * weight;
                    }
                    store_element<P::OUT_DTYPE>(out,
                                                (i64)choice * OUT_COLUMNS + (GATED ? p.first / 2 : p.first) + column,
                                                value);
                }
            }
            barrier_arrive(shared.sums_empty + 8 * (u32)buffer);
        }
    }

    /* `memory`: shared, as matmul_grouped_layout.cuh says, aligned to 128. `bias`: null without HAS_BIAS. */
    static __device__ __forceinline__ void run(u8 *memory, const u16 *x, const u16 *weights, void *out,
                                               const void *bias, const float *routes, const int *lists)
    {
        const shared_layout shared = shared_addresses(memory);
        const int warp = (int)threadIdx.x / 32;
        if (threadIdx.x == 0) {
            for (int i = 0; i < P::STAGES; i++) {
                barrier_init(shared.full + 8 * i, 1);
                barrier_init(shared.empty + 8 * i, 32 * P::WARPS);
            }
            for (int i = 0; i < 2; i++) {
                barrier_init(shared.sums_full + 8 * i, 32 * P::WARPS);
                barrier_init(shared.sums_empty + 8 * i, 32);
            }
            barrier_init_done();
        }
        if constexpr (!EARLY) device_wait();
        device_trigger(); /* after the wait: EARLY_ROUTES of the launch that follows (matmul.h) */
        load_begins(lists, shared);
        __syncthreads();
        const int pieces = find_groups(shared) * TILES - (int)blockIdx.x;
        load_choices(lists, routes, shared);
        __syncthreads();
        const int count = pieces > 0 ? (pieces + (int)gridDim.x - 1) / (int)gridDim.x : 0;
        if (warp == P::WARPS + 1)
            produce(x, weights, count, shared);
        else if (warp < P::WARPS)
            consume(count, shared);
        else {
            if constexpr (EARLY) device_wait(); /* earlier launches may read what lies where `out` is */
            finish(weights, out, bias, count, shared);
        }
    }
};

#endif
