/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce's kernels on the host, every rank with blocks of its own: some rounds in a row, each with the last one's out as input,
 * without a barrier between ranks. emulation_test.py includes it in a namespace for each case, after the headers that are named
 * here, and gives the kernel's parameters (KERNEL_PARAMS of kernels/cuda/include/device.cuh) and
 *
 *   TWO_SHOT   1: all_reduce_two_shot, else all_reduce_one_shot
 *   VALID      rows that are valid
 *   MISSING    a rank that does not come, in one round; -1: all do
 *   SPOIL      1 to 4: what a kernel with a defect could leave, for the checks to see; 0: nothing
 *
 * Prints each defect. Exit code 1 if there is one. */
#include <pthread.h>

#include <cstdio>

#include "tests/emulation/cuda_on_host.h"

#if TWO_SHOT
#include "kernels/all_reduce/all_reduce_two_shot.cuh"
#else
#include "kernels/all_reduce/all_reduce_one_shot.cuh"
#endif

struct params {
    KERNEL_PARAMS
};
constexpr int ROWS = params::ROWS, WIDTH = params::WIDTH, RANKS = params::RANKS, THREADS = params::THREADS;
constexpr int HAS_RESIDUAL = params::HAS_RESIDUAL, HAS_NORM = params::HAS_NORM;
constexpr int X_DTYPE = params::X_DTYPE, NORM_DTYPE = params::NORM_DTYPE, OUT_DTYPE = params::OUT_DTYPE;
#if TWO_SHOT
typedef all_reduce_two_shot_body<params> kernel;
constexpr int GRID = params::HALVES * params::BLOCKS;
#else
typedef all_reduce_one_shot_body<params> kernel;
constexpr int GRID = ROWS;
#endif

constexpr int ROUNDS = 4, HEADER_BYTES = 256, MOST_SHOWN = 5;
constexpr size_t CELLS = (size_t)ROWS * WIDTH;
/* As all_reduce_device_buffer_bytes, or more. */
constexpr size_t BUFFER_BYTES = TWO_SHOT ? (ROWS + 2 * RANKS) * (size_t)WIDTH * 8 : RANKS * CELLS * 4;
constexpr bool OWNED = HAS_NORM == 2 || HAS_RESIDUAL == 2; /* the sum is not rounded */

struct rank_memory {
    u8 *comm;
    std::vector<float> x[ROUNDS]; /* [ROWS, WIDTH] */
    std::vector<u8> x_bytes[ROUNDS], normed;
    std::vector<float> out, residual;
    u32 fault;
};
static rank_memory memories[RANKS];
static std::vector<u8> weight_bytes;
static int defects;

struct job {
    int rank, round, block;
};
static thread_local job at;

static void one_thread()
{
    static const int counts[2] = {VALID, VALID};
    rank_memory &own = memories[at.rank];
    u8 *buffer = own.comm + HEADER_BYTES + at.round % 2 * BUFFER_BYTES;
    kernel::run(counts, (const uint4 *)own.x_bytes[at.round].data(), (comm_header *)own.comm, buffer, own.out.data(),
                own.residual.data(), weight_bytes.data(), own.normed.data());
}

static void *run_one_block(void *argument)
{
    at = *(const job *)argument;
    run_block(at.block, THREADS, one_thread);
    return nullptr;
}

static void *run_rank(void *argument)
{
    const int rank = (int)(size_t)argument;
    for (int round = 0; round < (MISSING >= 0 ? 1 : ROUNDS); round++) {
        pthread_t threads[GRID];
        job jobs[GRID];
        for (int b = 0; b < GRID; b++) {
            jobs[b] = {rank, round, b};
            if (pthread_create(&threads[b], nullptr, run_one_block, &jobs[b])) abort();
        }
        for (int b = 0; b < GRID; b++) pthread_join(threads[b], nullptr);
        memories[rank].residual = memories[rank].out;
    }
    return nullptr;
}

/* ---- data ---- */

static float random_number(u64 &state)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return ((float)(state >> 40) / (1 << 23) - 1) * 2;
}

static float rounded(float value, int dtype)
{
    return dtype == DTYPE_F32 ? value : float_of_half<DTYPE_BF16>(half_of_float<DTYPE_BF16>(value));
}

static void put(std::vector<u8> &bytes, size_t i, float value, int dtype)
{
    const u16 half = half_of_float<DTYPE_BF16>(value);
    if (dtype == DTYPE_F32)
        memcpy(&bytes[i * 4], &value, 4);
    else
        memcpy(&bytes[i * 2], &half, 2);
}

static float get(const std::vector<u8> &bytes, size_t i, int dtype)
{
    float value;
    u16 half;
    if (dtype == DTYPE_F32) {
        memcpy(&value, &bytes[i * 4], 4);
        return value;
    }
    memcpy(&half, &bytes[i * 2], 2);
    return float_of_half<DTYPE_BF16>(half);
}

/* What must not be read is NaN. */
static void make_rank(int r, const std::vector<float> &residual, u64 &state)
{
    rank_memory &own = memories[r];
    own.comm = (u8 *)aligned_alloc(HEADER_BYTES, HEADER_BYTES + 2 * BUFFER_BYTES);
    memset(own.comm, 0xff, HEADER_BYTES + 2 * BUFFER_BYTES);
    own.out.assign(CELLS, NAN);
    own.normed.assign(CELLS * 4, 0xff);
    own.residual = residual;
    for (size_t i = 0; OWNED && i < CELLS; i++)
        if ((int)(i / WIDTH) % RANKS != r) own.residual[i] = NAN;
    for (int round = 0; round < ROUNDS; round++) {
        own.x[round].resize(CELLS);
        own.x_bytes[round].assign(CELLS * 4, 0xff);
        for (size_t i = 0; i < CELLS; i++) {
            own.x[round][i] = rounded(random_number(state), X_DTYPE);
            put(own.x_bytes[round], i, own.x[round][i], X_DTYPE);
        }
    }
}

static void write_headers()
{
    for (int r = 0; r < RANKS; r++) {
        comm_header header = {};
        header.rank = r;
        header.ranks = RANKS;
        /* A quarter of it is between the first who gives up and those with more patience: longer than a busy machine lets a
         * thread wait. */
        header.timeout_ns = MISSING >= 0 ? 12000000000 : 60000000000;
        header.fault = (u64)&memories[r].fault;
        for (int k = 0; k < RANKS; k++) {
            header.slots[k] = (u8)r;
            header.peers[k] = (u64)memories[k].comm;
        }
        memcpy(memories[r].comm, &header, sizeof header);
    }
}

/* ---- checks ---- */

static void defect(const char *what, int rank, size_t at_cell, double found, double expected)
{
    if (defects++ < MOST_SHOWN)
        printf("rank %d: %s %zu, %zu: %g, expected %g\n", rank, what, at_cell / WIDTH, at_cell % WIDTH, found,
               expected);
}

/* Checks the last round, and that the buffers are as they were. */
static void check_all(std::vector<float> sum, const std::vector<float> &weight)
{
    std::vector<double> factor(ROWS, 0);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < CELLS; i++) {
            float all = 0;
            for (int r = 0; r < RANKS; r++) all += memories[r].x[round][i];
            if (TWO_SHOT && !OWNED) all = rounded(all, X_DTYPE);
            sum[i] = HAS_RESIDUAL ? all + sum[i] : all;
        }
    for (size_t i = 0; i < CELLS; i++) factor[i / WIDTH] += (double)sum[i] * sum[i] / WIDTH;
    for (int r = 0; r < RANKS; r++) {
        const rank_memory &own = memories[r];
        for (size_t i = 0; i < CELLS; i++) {
            const int row = (int)(i / WIDTH);
            const bool has = row < VALID && (HAS_NORM != 2 || row % RANKS == r);
            const double normed = sum[i] / sqrt(factor[row] + 1e-5) * weight[i % WIDTH];
            if (has ? own.out[i] != sum[i] : !std::isnan(own.out[i]))
                defect("out", r, i, own.out[i], has ? sum[i] : NAN);
            if (!HAS_NORM) continue;
            const double found = get(own.normed, i, OUT_DTYPE);
            if (row < VALID ? !(fabs(found - normed) <= 1e-6 + 6e-3 * fabs(normed)) : !std::isnan(found))
                defect("normed", r, i, found, row < VALID ? normed : NAN);
        }
        for (size_t b = HEADER_BYTES; b < HEADER_BYTES + 2 * BUFFER_BYTES; b++)
            if (own.comm[b] != 0xff) defect("a word of the buffers is left", r, b, own.comm[b], 0xff);
        if (own.normed != memories[0].normed) defect("norms of other bits than rank 0's", r, 0, 0, 0);
    }
}

static void check_blame()
{
    int blamed = 0;
    for (int r = 0; r < RANKS; r++) {
        if (memories[r].fault && (memories[r].fault != MISSING + 1 || r == MISSING))
            defect("blames another rank", r, 0, memories[r].fault, MISSING + 1);
        blamed += memories[r].fault != 0;
    }
    if (!blamed) defect("no rank is reported", 0, 0, 0, 1);
}

static void spoil(rank_memory &own, int how)
{
    if (how == 1) own.comm[HEADER_BYTES + 2 * BUFFER_BYTES - 1] = 0;
    if (how == 2) own.out[1] += 1;
    if (how == 3) own.normed[3] ^= 2;
    if (how == 4) own.fault = RANKS;
}

int main()
{
    u64 state = 12345;
    std::vector<float> residual(CELLS), weight(WIDTH);
    weight_bytes.assign(WIDTH * 4, 0);
    for (float &value : residual) value = random_number(state);
    for (int c = 0; c < WIDTH; c++) {
        weight[c] = rounded(random_number(state), NORM_DTYPE);
        put(weight_bytes, c, weight[c], NORM_DTYPE);
    }
    for (int r = 0; r < RANKS; r++) make_rank(r, residual, state);
    write_headers();
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++)
        if (r != MISSING && pthread_create(&threads[r], nullptr, run_rank, (void *)(size_t)r)) abort();
    for (int r = 0; r < RANKS; r++)
        if (r != MISSING) pthread_join(threads[r], nullptr);
    spoil(memories[0], SPOIL);
    if (MISSING >= 0)
        check_blame();
    else
        check_all(residual, weight);
    for (int r = 0; r < RANKS; r++) free(memories[r].comm);
    if (defects) printf("%d defects\n", defects);
    return defects != 0;
}
