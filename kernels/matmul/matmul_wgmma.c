/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_device.h"

#include <math.h>
#include <string.h>

#include "kernels/matmul/matmul_wgmma_layout.cuh"

enum { MEMORY_BOUND_ROWS = 64 };

static bool one_of(int64_t value, const int64_t *values, int count)
{
    for (int i = 0; i < count; i++)
        if (values[i] == value) return true;
    return false;
}

static bool in_range(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

/* Bytes of an element of x. */
static int64_t x_bytes(const int64_t *params) { return (int64_t)dtype_bytes((enum dtype)params[MATMUL_INPUT_DTYPE]); }

static struct matmul_wgmma_layout layout_of(const int64_t *params)
{
    return matmul_wgmma_lay_out(params[MATMUL_DTYPE], x_bytes(params), params[MATMUL_ROWS], params[MATMUL_WGMMA_TILE_N],
                                params[MATMUL_WGMMA_TILE_M], params[MATMUL_WGMMA_TILE_K],
                                params[MATMUL_WGMMA_WARPGROUPS], params[MATMUL_WGMMA_STAGES],
                                (int64_t)dtype_bytes((enum dtype)params[MATMUL_OUT_DTYPE]), matmul_is_gated(params));
}

static int64_t sums_per_thread(const int64_t *params)
{
    return matmul_wgmma_sums(params[MATMUL_DTYPE], x_bytes(params), params[MATMUL_WGMMA_TILE_N],
                             params[MATMUL_WGMMA_TILE_M], params[MATMUL_WGMMA_TILE_K], params[MATMUL_WGMMA_WARPGROUPS],
                             params[MATMUL_WGMMA_MULTICAST]);
}

/* Blocks on an SM that the registers leave room for. */
static int64_t most_blocks(const int64_t *params)
{
    return matmul_wgmma_blocks(params[MATMUL_DTYPE], sums_per_thread(params), params[MATMUL_WGMMA_WARPGROUPS]);
}

/* Integers need registers once more where they become floats. */
static int64_t most_sums(const int64_t *params)
{
    if (params[MATMUL_INPUT_DTYPE] == DTYPE_I8) return params[MATMUL_WGMMA_WARPGROUPS] == 3 ? 100 : 176;
    if (params[MATMUL_WGMMA_WARPGROUPS] == 3) return matmul_is_coded(params) ? 120 : 96;
    return matmul_is_coded(params) ? 208 : 128;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    static const int64_t tile_m_values[] = {8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256};
    const int64_t tile_n = params[MATMUL_WGMMA_TILE_N], tile_m = params[MATMUL_WGMMA_TILE_M];
    const int64_t tile_k = params[MATMUL_WGMMA_TILE_K], warpgroups = params[MATMUL_WGMMA_WARPGROUPS];
    const int64_t split_k = params[MATMUL_WGMMA_SPLIT_K], multicast = params[MATMUL_WGMMA_MULTICAST];
    const int64_t persistent = params[MATMUL_WGMMA_PERSISTENT];
    const char *illegal = matmul_device_illegal(params);
    if (illegal) return illegal;
    if (gpu->capability != 90) return "matmul_wgmma is for compute capability 9.0";
    if (params[MATMUL_HAS_NORM]) return "matmul_wgmma has no HAS_NORM";
    if (matmul_matrices(params)) return "matmul_wgmma has no experts or blocks";
    if (!in_range(warpgroups, 1, 3)) return "WARPGROUPS is not in 1..3";
    if ((tile_n != 64 * warpgroups && tile_n != 128 * warpgroups) || tile_n > 256)
        return "TILE_N is not 64 or 128 times WARPGROUPS, at most 256";
    if (!one_of(tile_m, tile_m_values, sizeof tile_m_values / sizeof tile_m_values[0]))
        return "TILE_M is not 8, 16, 24, 32, 48, 64, 96, 128, 160, 192 or 256";
    if (sums_per_thread(params) > most_sums(params)) return "a tile does not fit the registers";
    if (tile_k != 128 && tile_k != (matmul_is_coded(params) ? 256 : 64))
        return "TILE_K is not 128 or 64, with coded weights 128 or 256";
    if (matmul_is_coded(params) && layout_divide_up(params[MATMUL_K], FRAGMENT_STRIP_K) % (tile_k / FRAGMENT_STRIP_K))
        return "TILE_K is 256, but K has an odd number of strips of coded weights";
    if (!in_range(params[MATMUL_WGMMA_STAGES], 2, MATMUL_WGMMA_MOST_STAGES)) return "STAGES is not in 2..24";
    if (!in_range(split_k, 1, MATMUL_WGMMA_MOST_SPLIT)) return "SPLIT_K is not in 1..8";
    if (multicast != 1 && multicast != 2) return "MULTICAST is not 1 or 2";
    if (tile_m % (8 * multicast)) return "TILE_M is not a multiple of 8 * MULTICAST";
    if (!in_range(persistent, 0, 4)) return "PERSISTENT is not in 0..4";
    if (!in_range(params[MATMUL_WGMMA_ROW_GROUP], 1, 1024)) return "ROW_GROUP is not in 1..1024";
    if (!in_range(params[MATMUL_WGMMA_PREFETCH], 0, MATMUL_WGMMA_MOST_STAGES)) return "PREFETCH is not in 0..24";
    if (split_k > 1) {
        if (multicast > 1 || persistent) return "SPLIT_K with MULTICAST or PERSISTENT";
        if (split_k > layout_divide_up(params[MATMUL_K], tile_k)) return "SPLIT_K is more than the steps along K";
        if (tile_n * tile_m * 4 > params[MATMUL_WGMMA_STAGES] * layout_of(params).stage_bytes)
            return "the sums of SPLIT_K do not fit the ring";
    }
    const int64_t shared = layout_of(params).bytes, on_sm = persistent ? persistent : 1;
    if (shared > gpu->shared_per_block) return "the ring does not fit the shared memory of a block";
    if (on_sm * (shared + DEVICE_RESERVED_SHARED_BYTES) > gpu->shared_per_sm)
        return "PERSISTENT blocks do not fit an SM";

    const int64_t row_tiles = layout_divide_up(params[MATMUL_ROWS], tile_m);
    const int64_t column_tiles = layout_divide_up(params[MATMUL_N], tile_n * multicast);
    const int64_t cluster = split_k * multicast;
    int64_t clusters = row_tiles * column_tiles;
    if (clusters > INT32_MAX / cluster) return "more blocks than a grid holds";
    if (persistent) {
        const int64_t resident = persistent * gpu->multiprocessors / cluster;
        clusters = layout_smaller(clusters, resident > 0 ? resident : 1);
    }
    *geometry = (struct device_geometry){{(uint32_t)(clusters * cluster), 1, 1},
                                         {(uint32_t)matmul_wgmma_threads(most_blocks(params), warpgroups), 1, 1},
                                         {(uint32_t)cluster, 1, 1},
                                         (uint32_t)shared};
    return NULL;
}

static bool has_tiles(const int64_t *params)
{
    return matmul_wgmma_has_tiles(params[MATMUL_DTYPE], params[MATMUL_ROWS], params[MATMUL_WGMMA_TILE_M]);
}

static bool tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    const bool is_x = operand == MATMUL_X;
    if (operand == MATMUL_W && has_tiles(params)) {
        const struct fragment_layout layout = fragment_lay_out(params[MATMUL_DTYPE]);
        *map = (struct plan_tensor_map){
            .dtype = DTYPE_I64,
            .columns = fragment_strips(params[MATMUL_K]) * layout.strip_bytes / (int)sizeof(int64_t),
            .rows = layout_divide_up(params[MATMUL_N], FRAGMENT_ROWS),
            .pitch = fragment_panel_bytes(layout, params[MATMUL_K]),
            .box_columns = layout.strip_bytes / (int)sizeof(int64_t),
            .box_rows = params[MATMUL_WGMMA_TILE_N] / FRAGMENT_ROWS,
        };
        return true;
    }
    if (!is_x && (operand != MATMUL_W || matmul_is_coded(params))) return false;
    *map = (struct plan_tensor_map){
        .dtype = is_x ? params[MATMUL_INPUT_DTYPE] : matmul_device_element(params),
        .columns = params[MATMUL_K],
        .rows = is_x ? params[MATMUL_ROWS] : params[MATMUL_N],
        .pitch = params[MATMUL_K] * (is_x ? x_bytes(params) : 2),
        .box_columns = 128 / (is_x ? x_bytes(params) : 2),
        .box_rows = is_x ? params[MATMUL_WGMMA_TILE_M] / params[MATMUL_WGMMA_MULTICAST] : params[MATMUL_WGMMA_TILE_N],
        .swizzle = 128,
    };
    return true;
}

/* Candidates: every legal choice from short lists is given an estimate of its time, and the best are kept. */

/* Quantities of both estimates. */
struct load {
    double tile_n, tile_m, split_k, multicast;
    double blocks, on_sm; /* blocks in all; on the SM that has most of them */
    double sms;           /* number of SMs with blocks: clusters of more than 2 leave some of a GPC's SMs unused */
    double bytes;         /* of the operands */
};

static struct load load_of(const int64_t *params, const struct device_facts *gpu)
{
    const int64_t cluster = params[MATMUL_WGMMA_SPLIT_K] * params[MATMUL_WGMMA_MULTICAST];
    const int64_t row_tiles = layout_divide_up(params[MATMUL_ROWS], params[MATMUL_WGMMA_TILE_M]);
    const int64_t column_tiles =
        layout_divide_up(params[MATMUL_N], params[MATMUL_WGMMA_TILE_N] * params[MATMUL_WGMMA_MULTICAST]);
    const int64_t blocks = row_tiles * column_tiles * cluster;
    const int64_t sms = cluster > 2 && gpu->multiprocessors > 8 ? gpu->multiprocessors * 7 / 8 : gpu->multiprocessors;
    uint64_t bytes, flops;
    matmul_device_cost(params, 0, &bytes, &flops);
    return (struct load){
        .tile_n = (double)params[MATMUL_WGMMA_TILE_N],
        .tile_m = (double)params[MATMUL_WGMMA_TILE_M],
        .split_k = (double)params[MATMUL_WGMMA_SPLIT_K],
        .multicast = (double)params[MATMUL_WGMMA_MULTICAST],
        .blocks = (double)blocks,
        .on_sm = (double)layout_divide_up(blocks, sms),
        .sms = (double)sms,
        .bytes = (double)bytes,
    };
}

static const double log2_of[MATMUL_WGMMA_MOST_SPLIT + 1] = {0, 0, 1, 1.585, 2, 2.322, 2.585, 2.807, 3};

/* Few rows: the memory is the limit. The constants rank about 700 timings on an H200 (16 and 64 rows, the matrices of
 * two Llama models) such that the first guess is 1.3 per cent from the best on average and the first 12 include the
 * best; the unit has no meaning. Bytes in flight count most, so one block with a deep ring on each SM beats several; a
 * second wave of blocks and each doubling of SPLIT_K have a cost. */
static double memory_cost(const int64_t *params, const struct device_facts *gpu, int64_t resident)
{
    const struct load load = load_of(params, gpu);
    const double sms = load.sms, ring = (double)(params[MATMUL_WGMMA_STAGES] * layout_of(params).stage_bytes);
    const double slots = sms * (double)resident, running = load.blocks < slots ? load.blocks : slots;
    const double under_way = running * ring, half_speed = 25.6e6;
    const double busy = load.blocks < sms ? load.blocks : sms, most_speed = busy * 0.0045; /* of so many SMs */
    double speed = under_way / (under_way + half_speed);
    if (speed > most_speed) speed = most_speed;
    const double even = load.blocks > sms ? load.blocks / sms : 1, waves = load.blocks / slots;
    double cost = load.bytes * (1 + 0.01 * load.tile_m / load.tile_n) / 4.4e6 / speed;
    cost *= 1 + 0.6 * (load.on_sm - even) / even;
    if (waves > 1) cost += 0.8 * (waves - 1) * (params[MATMUL_WGMMA_PERSISTENT] ? 0.3 : 1);
    return cost + 6.3 * log2_of[params[MATMUL_WGMMA_SPLIT_K]] + 0.024 * load.on_sm;
}

/* Few rows and coded weights, in microseconds: the memory, the latency with so many bytes in flight, the work of the busiest SM,
 * the strips that each warpgroup takes one after the other, and the requests of each stage. None hides the others entirely.
 * The constants rank about 1400 timings on an H200 (int4 and int8, 16 and 64 rows, the matrices of Llama-3.1-8B) such that the
 * first 8 include the best. */
static double coded_cost(const int64_t *params, const struct device_facts *gpu, int64_t resident)
{
    enum { CYCLES = 1750 }; /* in a microsecond */
    const struct load load = load_of(params, gpu);
    const double tile_k = (double)params[MATMUL_WGMMA_TILE_K], slots = load.sms * (double)resident;
    const double running = load.blocks < slots ? load.blocks : slots;
    const double rounds = (double)layout_divide_up((int64_t)load.blocks, (int64_t)slots);
    const double strips = (double)params[MATMUL_K] / FRAGMENT_STRIP_K / load.split_k; /* of a block, for 64 rows of W */
    const double parts = load.tile_n / 64 / (double)params[MATMUL_WGMMA_WARPGROUPS];
    const bool has_codes = params[MATMUL_HAS_X_SCALES];
    const bool scales_sums = fragment_sum_scales(fragment_lay_out(params[MATMUL_DTYPE]));
    const double strip_latency = !has_codes ? 221 : scales_sums ? 180 : 100;
    const double strip_cycles = has_codes ? load.tile_m * 2 : 1.23 * (load.tile_m * 4 > 74 ? load.tile_m * 4 : 74);
    const double terms[] = {
        load.bytes / 5.29e6,
        1.98 * load.bytes / (running * (double)(params[MATMUL_WGMMA_STAGES] * layout_of(params).stage_bytes)),
        load.on_sm * strips * load.tile_n / 64 * strip_cycles / CYCLES,
        rounds * strips * parts * (strip_latency + 1.52 * load.tile_m) / CYCLES,
        load.on_sm * strips * (FRAGMENT_STRIP_K / tile_k) * (47.7 + 41.9 / FRAGMENT_ROWS * load.tile_n) / CYCLES,
    };
    double squares = 0;
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++) squares += terms[i] * terms[i];
    return sqrt(squares) + 0.97 * log2_of[params[MATMUL_WGMMA_SPLIT_K]] + 3.13 * (rounds - 1);
}

/* Many rows: the longest of the clocks of the tensor cores, of the path from the L2 cache to an SM, and of the memory,
 * plus a part of the others, plus the sums of SPLIT_K and the start and end of blocks. Constants as above, for 250 and
 * 2048 rows. */
static double multiply_cost(const int64_t *params, const struct device_facts *gpu, int64_t resident)
{
    enum { MACS_PER_CLOCK = 2048, SM_BYTES_PER_CLOCK = 68, L2_BYTES_PER_CLOCK = 129, DRAM_BYTES_PER_CLOCK = 2600 };
    const struct load load = load_of(params, gpu);
    const double depth = (double)layout_divide_up(params[MATMUL_K], params[MATMUL_WGMMA_SPLIT_K]);
    const double element = (double)x_bytes(params); /* bytes; those of codes are multiplied twice as fast */
    const double multiply = depth * load.tile_n * load.tile_m * element / 2 / MACS_PER_CLOCK;
    const double to_sm = depth * element * (load.tile_n + load.tile_m) / SM_BYTES_PER_CLOCK;
    const double from_l2 = depth * element * (load.tile_n + load.tile_m / load.multicast) / L2_BYTES_PER_CLOCK;
    double block = multiply > to_sm ? multiply : to_sm;
    if (from_l2 > block) block = from_l2;
    block += 0.1 * (multiply < from_l2 ? multiply : from_l2);
    block += (32 + load.tile_n * load.tile_m * 0.002) / (double)resident * (params[MATMUL_WGMMA_PERSISTENT] ? 0.03 : 1);
    if (load.split_k > 1) block += 0.22 * load.tile_n * load.tile_m;
    const double work = load.on_sm * block, memory = load.bytes / DRAM_BYTES_PER_CLOCK;
    return work > memory ? work + 0.1 * memory : memory + 0.1 * work;
}

/* The deepest ring with which `resident` blocks fit an SM. */
static int64_t deepest_ring(int64_t *params, const struct device_facts *gpu, int64_t resident)
{
    int64_t room = gpu->shared_per_sm / resident - DEVICE_RESERVED_SHARED_BYTES;
    if (room > gpu->shared_per_block) room = gpu->shared_per_block;
    for (int64_t stages = MATMUL_WGMMA_MOST_STAGES; stages >= 3; stages--) {
        params[MATMUL_WGMMA_STAGES] = stages;
        if (layout_of(params).bytes <= room) return stages;
    }
    return 0;
}

/* Ranks a choice with the deepest ring that leaves room for `resident` blocks on an SM, and the same with persistent blocks. */
static void rank_choice(struct matmul_ranking *ranking, int64_t *p, const struct device_facts *gpu, int64_t resident)
{
    struct device_geometry geometry, each;
    p[MATMUL_WGMMA_PERSISTENT] = 0;
    if (!deepest_ring(p, gpu, resident)) return;
    for (int persistent = 0; persistent < 2; persistent++) {
        p[MATMUL_WGMMA_PERSISTENT] = persistent ? resident : 0;
        if (launch(p, gpu, persistent ? &geometry : &each)) return;
        if (persistent && geometry.grid[0] == each.grid[0]) return; /* no other launch */
        double (*cost)(const int64_t *, const struct device_facts *, int64_t) = multiply_cost;
        if (p[MATMUL_ROWS] <= MEMORY_BOUND_ROWS) cost = matmul_is_coded(p) ? coded_cost : memory_cost;
        matmul_device_rank(ranking, p, cost(p, gpu, resident));
    }
}

/* Every legal choice for one tile. */
static void rank_choices(struct matmul_ranking *ranking, int64_t *p, const struct device_facts *gpu)
{
    const bool few_rows = p[MATMUL_ROWS] <= MEMORY_BOUND_ROWS, coded = matmul_is_coded(p);
    for (int64_t resident = 1; resident <= 4; resident++) {
        /* Stages of at least 8 KiB and many of them; coded weights make them small. */
        const bool long_stages = p[MATMUL_WGMMA_TILE_M] <= 32 && p[MATMUL_WGMMA_TILE_N] <= 128 && resident < 3;
        const int64_t least_k = coded ? 128 : long_stages ? 128 : 64, most_k = coded && few_rows ? 256 : least_k;
        for (int64_t tile_k = least_k; tile_k <= most_k; tile_k *= 2)
            for (int64_t split = 1; split <= MATMUL_WGMMA_MOST_SPLIT; split = few_rows ? split + 1 : 2 * split)
                for (int64_t multicast = 1; multicast <= (few_rows ? 1 : 2); multicast++) {
                    p[MATMUL_WGMMA_TILE_K] = tile_k;
                    p[MATMUL_WGMMA_SPLIT_K] = split;
                    p[MATMUL_WGMMA_MULTICAST] = multicast;
                    const int64_t most = most_blocks(p);
                    if (resident <= (coded || most == 1 ? most : few_rows ? 3 : 2))
                        rank_choice(ranking, p, gpu, resident);
                }
    }
}

/* The last candidate gives way where there is no room. */
static void insert_candidate(struct matmul_ranking *ranking, int at, const struct matmul_estimate *candidate)
{
    if (ranking->count < ranking->most) ranking->count++;
    memmove(ranking->list + at + 1, ranking->list + at, (size_t)(ranking->count - 1 - at) * sizeof *ranking->list);
    ranking->list[at] = *candidate;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const struct {
        int64_t tile_n, warpgroups;
    } shapes[] = {{128, 2}, {256, 2}, {64, 1}, {128, 1}, {192, 3}};
    static const int64_t tile_m_values[] = {256, 192, 160, 128, 96, 64, 48, 32, 24, 16, 8, 0};
    struct matmul_ranking ranking = {.most = sizeof ranking.list / sizeof *ranking.list};
    int64_t p[PLAN_MAX_PARAMS] = {0};
    const int64_t rows = params[MATMUL_ROWS];
    if (matmul_device_illegal(params) || params[MATMUL_HAS_NORM] || matmul_matrices(params) ||
        rows < MATMUL_WGMMA_LEAST_ROWS)
        return 0;
    memcpy(p, params, MATMUL_FIRST_TUNABLE * sizeof *p);
    p[MATMUL_WGMMA_PREFETCH] = 1;
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++)
        for (const int64_t *tile_m = tile_m_values; *tile_m; tile_m++) {
            if (tile_m[1] >= rows) continue;              /* a smaller tile suffices */
            if (*tile_m < rows && *tile_m < 64) continue; /* weights would be read over and over */
            p[MATMUL_WGMMA_TILE_N] = shapes[shape].tile_n;
            p[MATMUL_WGMMA_WARPGROUPS] = shapes[shape].warpgroups;
            p[MATMUL_WGMMA_TILE_M] = *tile_m;
            p[MATMUL_WGMMA_ROW_GROUP] = 2048 / *tile_m; /* 2048 rows of x in the L2 cache */
            rank_choices(&ranking, p, gpu);
        }
    /* Weights are usually best requested early: one candidate tests whether that holds here, another whether fewer of them, which leave
     * the memory free for the first rows of x, are better. */
    if (ranking.count && ranking.list[0].params[MATMUL_WGMMA_TILE_M] >= rows) {
        enum { FEW_STAGES = 4 };
        struct matmul_estimate variant = ranking.list[0];
        if (variant.params[MATMUL_WGMMA_STAGES] > FEW_STAGES) {
            variant.params[MATMUL_WGMMA_PREFETCH] = FEW_STAGES;
            insert_candidate(&ranking, 1, &variant);
        }
        variant.params[MATMUL_WGMMA_PREFETCH] = 0;
        if (ranking.count == ranking.most) ranking.count--;
        insert_candidate(&ranking, ranking.count, &variant);
    }
    return matmul_device_ranked(&ranking, params_out, capacity);
}

const struct device_kernel device_matmul_wgmma = {
    .name = "matmul_wgmma",
    .op = OP_MATMUL,
    .least_capability = 90,
    .most_capability = 90,
    .problem = &op_matmul,
    DEVICE_OWN_NAMES(MATMUL_WGMMA_PARAMS - MATMUL_FIRST_TUNABLE, "TILE_N", "TILE_M", "TILE_K", "WARPGROUPS", "STAGES",
                     "SPLIT_K", "MULTICAST", "PERSISTENT", "ROW_GROUP", "PREFETCH"),
    .launch = launch,
    .tensor_map = tensor_map,
    .cost = matmul_device_cost,
    .candidates = candidates,
};
