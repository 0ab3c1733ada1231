/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of kernels/cuda/include (ptx.cuh, mma.cuh, tma.cuh, wgmma.cuh) on the host, as far as matmuls and attention
 * use them; included by cuda_on_host.h. Copies are complete at once or late (copies_are_late), products of a warpgroup when they
 * are asked for. */
#ifndef TESTS_EMULATION_INSTRUCTIONS_ON_HOST_H
#define TESTS_EMULATION_INSTRUCTIONS_ON_HOST_H

#include "kernels/cuda/include/device.cuh"

/* Called where a thread waits for the launches before, by a test that has hidden what they write. */
static void (*at_device_wait)();
static void wait_for_launches()
{
    if (at_device_wait) at_device_wait();
}
#define device_wait() wait_for_launches()

/* Static shared memory may lie before the dynamic part: addresses are signed distances from that. */
static char *shared_at(u32 address) { return shared_memory + (int)address; }
static float *shared_float(u32 address) { return (float *)shared_at(address); }
static u32 *shared_words(u32 address) { return (u32 *)shared_at(address); }

static void __syncwarp() { meet_in_warp(0xffffffffu); }

/* ---- mbarriers ---- */

static mbarrier &mbarrier_at(u32 address) { return running->mbarriers[address]; }
static void end_phase(mbarrier &b)
{
    if (b.pending != 0 || b.bytes != 0) return;
    b.pending = b.count;
    b.phases++;
    running->waits = false;
}
static void barrier_init(u32 address, int count)
{
    if (address % 8) abort();
    mbarrier_at(address) = {count, count, 0, 0, {}};
    *shared_words(address) = 0; /* cluster_store_async */
}
static void barrier_init_done() {}
static void fence_async_shared() {}
static void barrier_arrive(u32 address)
{
    mbarrier &b = mbarrier_at(address);
    if (b.pending <= 0) abort(); /* more arrivals than the barrier counts */
    b.pending--;
    end_phase(b);
}
static void barrier_expect(u32 address, u32 bytes) { mbarrier_at(address).bytes += (int)bytes; }
static void barrier_arrive_expect(u32 address, u32 bytes)
{
    barrier_expect(address, bytes);
    barrier_arrive(address);
}
static void barrier_complete(u32 address, u32 bytes)
{
    mbarrier &b = mbarrier_at(address);
    b.bytes -= (int)bytes;
    end_phase(b);
}
/* `copy` of `bytes`, counted by the barrier. */
static void copy_at_barrier(u32 address, u32 bytes, const std::function<void()> &copy)
{
    const std::function<void()> whole = [=] {
        copy();
        barrier_complete(address, bytes);
    };
    if (copies_are_late)
        mbarrier_at(address).copies.push_back(whole);
    else
        whole();
}
static void barrier_wait(u32 address, u32 parity)
{
    mbarrier &b = mbarrier_at(address);
    while (b.phases % 2 == parity) {
        if (b.copies.empty()) {
            give_way();
        } else {
            const std::function<void()> first = b.copies.front();
            b.copies.erase(b.copies.begin());
            first();
        }
    }
}
static void barrier_wait_tight(u32 address, u32 parity) { barrier_wait(address, parity); }
static void named_barrier(int id, int threads) { meet(running->named[id], threads); }
static void named_barrier_arrive(int id, int threads) { arrive(running->named[id], threads); }

/* ---- clusters: of one block, except where run_cluster runs several (cluster_sync, its two halves, loads, stores, stores that a barrier
 * counts) ---- */

enum { RANK_SHIFT = 24 }; /* addresses of other blocks: the rank + 1 above, the signed distance below */

static void barrier_arrive_at(u32, u32) { abort(); }
static void barrier_arrive_cluster(u32) { abort(); }
static void cluster_sync()
{
    if (!own_cluster) abort();
    meet(running->all, running->threads);
    if (threadIdx.x == 0) pthread_barrier_wait(&own_cluster->meeting);
    meet(running->all, running->threads);
}
static void cluster_arrive() {} /* the blocks meet where they wait, which each does once after it has arrived */
static void cluster_wait() { cluster_sync(); }
static void cluster_arrive_aligned() { abort(); }
static void cluster_wait_aligned() { abort(); }
static u32 cluster_rank() { return own_cluster ? own_rank : 0; }
static int signed_distance(u32 address) { return (int)(address << (32 - RANK_SHIFT)) >> (32 - RANK_SHIFT); }
static u32 cluster_address(u32 address, u32 rank)
{
    if (!own_cluster) return address;
    if (signed_distance(address) != (int)address || rank >= own_cluster->memories.size()) abort();
    return (address & ((1u << RANK_SHIFT) - 1)) | (rank + 1) << RANK_SHIFT;
}
/* In another block's shared memory, or in this one's if it is alone. */
static void *cluster_words(u32 remote)
{
    const int offset = signed_distance(remote);
    if (!own_cluster) return shared_words(remote);
    if (!(remote >> RANK_SHIFT) || offset % 4) abort();
    return own_cluster->memories[(remote >> RANK_SHIFT) - 1] + offset;
}
template <class T> static T load_from_cluster(u32 remote)
{
    T value;
    memcpy(&value, cluster_words(remote), sizeof value);
    return value;
}
static u32 cluster_load_word(u32 remote) { return load_from_cluster<u32>(remote); }
static float4 cluster_load(u32 remote) { return load_from_cluster<float4>(remote); }
template <class T> static void cluster_store(u32 remote, T value)
{
    memcpy(cluster_words(remote), &value, sizeof value);
}
/* The bytes are counted in the barrier's own word, which a barrier of one block does not use, until its block looks. */
template <class T> static void cluster_store_async(u32 remote, T value, u32 remote_barrier)
{
    if ((remote ^ remote_barrier) >> RANK_SHIFT) abort(); /* of another block */
    cluster_store(remote, value);
    __atomic_fetch_add((u32 *)cluster_words(remote_barrier), (u32)sizeof value, __ATOMIC_RELEASE);
}
static void barrier_wait_cluster(u32 address, u32 parity)
{
    mbarrier &b = mbarrier_at(address);
    while (b.phases % 2 == parity) {
        const u32 bytes = __atomic_exchange_n(shared_words(address), 0, __ATOMIC_ACQUIRE);
        if (bytes)
            barrier_complete(address, bytes);
        else
            give_way();
    }
}
static u32 cluster_add(u32 remote, u32 value)
{
    return __atomic_fetch_add((u32 *)cluster_words(remote), value, __ATOMIC_RELAXED);
}

/* ---- memory ---- */

static void complete_copy(const thread_copy &copy)
{
    if (copy.valid)
        memcpy(shared_at(copy.to), copy.from, (size_t)copy.bytes);
    else
        memset(shared_at(copy.to), 0, (size_t)copy.bytes);
}
template <int BYTES> static void copy_async_if(u32 to, const void *from, bool valid)
{
    if (to % BYTES || (u64)from % BYTES) abort();
    thread_copies &own = running->copies[threadIdx.x];
    const thread_copy copy = {to, from, BYTES, own.groups, valid};
    if (copies_are_late)
        own.pending.push_back(copy);
    else
        complete_copy(copy);
}
template <int BYTES> static void copy_async(u32 to, const void *from) { copy_async_if<BYTES>(to, from, true); }
static void copy_async_hinted(u32 to, const void *from, u64) { copy_async<16>(to, from); }
static void copy_commit() { running->copies[threadIdx.x].groups++; }
/* Those of the groups before `group`. */
static void complete_copies(int group)
{
    std::vector<thread_copy> &pending = running->copies[threadIdx.x].pending;
    size_t done = 0;
    for (; done < pending.size() && pending[done].group < group; done++) complete_copy(pending[done]);
    pending.erase(pending.begin(), pending.begin() + (long)done);
}
template <int PENDING> static void copy_wait() { complete_copies(running->copies[threadIdx.x].groups - PENDING); }
static void copy_wait_all() { complete_copies(running->copies[threadIdx.x].groups + 1); }
static void copy_arrive(u32 barrier)
{
    copy_wait_all();
    barrier_arrive(barrier);
}
static float load_shared_float(u32 address) { return *shared_float(address); }
template <int WORDS> static void load_shared(u32 (&to)[WORDS], u32 address)
{
    if (address % sizeof to) abort();
    memcpy(to, shared_at(address), sizeof to);
}
static u32 load_shared_half(u32 address) { return *(u16 *)shared_at(address); }
static u32 load_shared_word_ordered(u32 address) { return *shared_words(address); }
static uint4 load_shared_ordered(u32 address)
{
    const u32 *words = shared_words(address);
    return {words[0], words[1], words[2], words[3]};
}
template <class T> static void store_shared(u32 address, T value)
{
    if (address % sizeof value) abort();
    memcpy(shared_at(address), &value, sizeof value);
}
static void load_written(u32 (&to)[4], const void *from) { memcpy(to, from, 16); }
static float load_written_float(const float *from) { return *from; }
static int load_written_int(const int *from) { return *from; }
static void prefetch_l2(const void *) {}
static void fence_gpu() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static void nanosleep(u32) { give_way(); }
template <class T> static T load_relaxed(const T *from)
{
    give_way(); /* a thread may wait for what another block writes */
    return *from;
}
template <class T> static void store_relaxed(T *to, T value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
static u32 count_relaxed(u32 *to, u32 most)
{
    u32 old = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (
        !__atomic_compare_exchange_n(to, &old, old >= most ? 0 : old + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
static u64 policy_evict_first() { return 0; }
static void bulk_copy(u32 to, const void *from, u32 bytes, u32 barrier)
{
    if (to % 16 || (u64)from % 16 || bytes % 16) abort();
    copy_at_barrier(barrier, bytes, [=] { memcpy(shared_at(to), from, bytes); });
}
static void bulk_copy_hinted(u32 to, const void *from, u32 bytes, u32 barrier, u64)
{
    bulk_copy(to, from, bytes, barrier);
}

/* A matrix: address, rows, columns, rows of a box, bytes of an element, of a row, and of a row of a box; these are 128 with the 128-byte
 * swizzle, and any other number without one. */
static tensor_map tensor_map_on_host(const void *matrix, int rows, int columns, int box_rows, int element_bytes = 2,
                                     u64 pitch = 0, u64 box_bytes = 128)
{
    if (!pitch) pitch = (u64)columns * (u64)element_bytes;
    tensor_map map = {{(u64)matrix, (u64)rows, (u64)columns, (u64)box_rows, (u64)element_bytes, pitch, box_bytes}};
    return map;
}
static void tile_prefetch_map(const tensor_map *) {}
static u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }
static void tile_load(u32 to, const tensor_map *map, int column, int row, u32 barrier)
{
    const int rows = (int)map->opaque[1], columns = (int)map->opaque[2], box_rows = (int)map->opaque[3];
    const int bytes = (int)map->opaque[4];
    const long pitch = (long)map->opaque[5];
    const int box_bytes = (int)map->opaque[6];
    const bool has_swizzle = box_bytes == 128;
    const u8 *matrix = (const u8 *)map->opaque[0];
    if (to % (has_swizzle ? 1024 : 128) || pitch % 16 || box_bytes % 16 || box_bytes / bytes > 256) abort();
    copy_at_barrier(barrier, (u32)(box_rows * box_bytes), [=] {
        for (int r = 0; r < box_rows; r++)
            for (int c = 0; c < box_bytes; c++) {
                const bool inside = row + r >= 0 && row + r < rows && column + c / bytes < columns;
                const u32 place = to + (u32)(r * box_bytes + c);
                *(u8 *)shared_at(has_swizzle ? swizzled(place) : place) =
                    inside ? matrix[(row + r) * pitch + column * bytes + c] : 0;
            }
    });
}
static void tile_load_hinted(u32 to, const tensor_map *map, int column, int row, u32 barrier, u64)
{
    tile_load(to, map, column, row, barrier);
}
static void tile_load_multicast(u32, const tensor_map *, int, int, u32, u16) { abort(); }
template <int COUNT> static void registers_decrease() {}
template <int COUNT> static void registers_increase() {}

/* ---- arithmetic ---- */

static u32 and_or(u32 a, u32 mask, u32 bits) { return a & mask | bits; }
static u32 and_xor(u32 a, u32 mask, u32 bits) { return a & mask ^ bits; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static double __dmul_rn(double a, double b) { return a * b; }
static int __float2int_rd(float value) { return std::fabs(value) < 0x1p30f ? (int)floorf(value) : 0; }
static float infinity() { return float_of_bits(0x7f800000); }
static float exp2_approximate(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}
static float reciprocal(float x) { return 1 / x; }
static float max_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : fmaxf(a, b); }
static u32 __byte_perm(u32 low, u32 high, u32 selectors)
{
    const u64 both = (u64)high << 32 | low;
    u32 result = 0;
    for (int i = 0; i < 4; i++) result |= (u32)(both >> (selectors >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}
static u32 __funnelshift_r(u32 low, u32 high, u32 shift) { return (u32)(((u64)high << 32 | low) >> (shift & 31)); }
#define __expf expf
static float __fdividef(float x, float y) { return std::isinf(y) ? 0 : x / y; }
template <class T> static T min(T a, T b) { return b < a ? b : a; }
template <class T> static T max(T a, T b) { return a < b ? b : a; }

/* ---- products ---- */

/* What this warp's lanes have given away. */
static u32 &given(int lane, int word) { return running->words[threadIdx.x / 32 * 32 + (unsigned)lane][word]; }
static void give(std::initializer_list<u32> words)
{
    int i = 0;
    for (u32 word : words) given((int)threadIdx.x % 32, i++) = word;
    __syncwarp();
}

static void load_matrices(u32 (&to)[4], u32 address)
{
    const int lane = (int)threadIdx.x % 32;
    if (address % 16) abort();
    give({address});
    for (int m = 0; m < 4; m++) to[m] = *shared_words(given(m * 8 + lane / 4, 0) + (u32)(lane % 4 * 4));
    __syncwarp();
}
static void load_matrices(u32 (&to)[2], u32 address)
{
    const int lane = (int)threadIdx.x % 32;
    if (address % 16) abort();
    give({address});
    for (int m = 0; m < 2; m++) to[m] = *shared_words(given(m * 8 + lane / 4, 0) + (u32)(lane % 4 * 4));
    __syncwarp();
}
static void load_matrices_transposed(u32 (&to)[4], u32 address)
{
    const int lane = (int)threadIdx.x % 32;
    if (address % 16) abort();
    give({address});
    for (int m = 0; m < 4; m++) {
        to[m] = 0;
        for (int i = 0; i < 2; i++)
            to[m] |= load_shared_half(given(m * 8 + lane % 4 * 2 + i, 0) + (u32)(lane / 4 * 2)) << 16 * i;
    }
    __syncwarp();
}
/* Matrix m of registers: row l / 4, columns 2 (l % 4) and the next in lane l; as column l / 4 in memory. */
static void store_transposed(u32 address, std::initializer_list<u32> matrices)
{
    const int lane = (int)threadIdx.x % 32;
    int m = 0;
    give({address});
    for (u32 pair : matrices) {
        for (int i = 0; i < 2; i++)
            *(u16 *)shared_at(given(m * 8 + lane % 4 * 2 + i, 0) + (u32)(lane / 4 * 2)) = (u16)(pair >> 16 * i);
        m++;
    }
    __syncwarp();
}
static void store_matrix_transposed(u32 address, u32 from) { store_transposed(address, {from}); }
static void store_matrices_transposed(u32 address, u32 first, u32 second)
{
    store_transposed(address, {first, second});
}

/* Row l / 4, columns 2 (l % 4) and the next in lane l, before and after. */
static u32 transpose_8x8(u32 pair)
{
    const int lane = (int)threadIdx.x % 32;
    u32 result = 0;
    give({pair});
    for (int i = 0; i < 2; i++) {
        const int row = lane % 4 * 2 + i, column = lane / 4;
        result |= (given(row * 4 + column / 2, 0) >> column % 2 * 16 & 0xffff) << 16 * i;
    }
    __syncwarp();
    return result;
}

/* Element (row, k) of the 16 x 16 operand in words 0 to 3 of this warp's lanes. */
template <int ELEMENT> static float a_element(int row, int k)
{
    const u32 pair = given(row % 8 * 4 + k % 8 / 2, k / 8 * 2 + row / 8);
    return float_of_half<ELEMENT>((u16)(pair >> 16 * (k % 2)));
}

template <int ELEMENT> static void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    const int lane = (int)threadIdx.x % 32;
    give({a0, a1, a2, a3, b0, b1});
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; k++) {
            const u32 pair = given(column * 4 + k % 8 / 2, 4 + k / 8);
            sum += (double)a_element<ELEMENT>(row, k) * float_of_half<ELEMENT>((u16)(pair >> 16 * (k % 2)));
        }
        d[i] = (float)sum;
    }
    __syncwarp();
}

/* m16n8k8: the tensor cores take the upper 19 bits of elements. */
static float tf32_of_bits(u32 bits) { return float_of_bits(bits & 0xffffe000); }
static void mma_tf32(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    const int lane = (int)threadIdx.x % 32;
    give({a0, a1, a2, a3, b0, b1});
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (int k = 0; k < 8; k++)
            sum += (double)tf32_of_bits(given(row % 8 * 4 + k % 4, k / 4 * 2 + row / 8)) *
                   (double)tf32_of_bits(given(column * 4 + k % 4, 4 + k / 4));
        d[i] = (float)sum;
    }
    __syncwarp();
}

static void wgmma_begin() {}
static void wgmma_commit() {}
template <int PENDING> static void wgmma_wait() {}
template <int COUNT> static void wgmma_keep(float (&)[COUNT]) {}
template <int COUNT> static void wgmma_keep(int (&)[COUNT]) {}
static void wgmma_keep(u32 (&)[4]) {}
static u64 wgmma_tile(u32 address, u32 next = 16) { return address / 16 | (u64)(next / 16) << 16; }
/* Element of a tile with rows of 128 bytes in the 128-byte swizzle; tiles of 64 columns follow each other as the descriptor
 * says. */
template <int ELEMENT> static float tile_element(u64 tile, int row, int column)
{
    const u32 start = (u32)(tile & 0xffff) * 16, next = (u32)(tile >> 16 & 0xffff) * 16;
    return float_of_half<ELEMENT>(
        *(u16 *)shared_at(swizzled(start + (u32)(column / 64) * next + (u32)(row * 128 + column % 64 * 2))));
}
template <int N_> struct wgmma_rows {
    static void run(float (&d)[N_ / 2], const u32 (&a)[4], u64 x, int add)
    {
        const int lane = (int)threadIdx.x % 32;
        give({a[0], a[1], a[2], a[3]});
        for (int i = 0; i < N_ / 2; i++) {
            const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = add ? d[i] : 0;
            for (int k = 0; k < 16; k++) sum += (double)a_element<3>(row, k) * (double)tile_element<3>(x, column, k);
            d[i] = (float)sum;
        }
        __syncwarp();
    }
};
static float e4m3_element(u8 code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return (code & 0x7f) == 0x7f ? __builtin_nanf("") : code & 0x80 ? -magnitude : magnitude;
}
static float int8_element(u8 code) { return (signed char)code; }
/* Element (row, k) of the 16 x 32 operand of codes in words 0 to 3 of this warp's lanes. */
static u8 a_code(int row, int k) { return (u8)(given(row % 8 * 4 + k % 16 / 4, k / 16 * 2 + row / 8) >> k % 4 * 8); }
/* Sums in double: exact for int8, of which one that an int32 does not hold ends the program. */
template <int N_, class SUM>
static void multiply_codes(SUM (&d)[N_], const u32 (&a)[4], u64 x, int add, float (*element)(u8))
{
    const int lane = (int)threadIdx.x % 32;
    const u32 start = (u32)(x & 0xffff) * 16;
    give({a[0], a[1], a[2], a[3]});
    for (int i = 0; i < N_; i++) {
        const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        double sum = add ? d[i] : 0;
        for (int k = 0; k < 32; k++)
            sum += (double)element(a_code(row, k)) *
                   (double)element(*(u8 *)shared_at(swizzled(start + (u32)(column * 128 + k))));
        if ((SUM)0.5f == 0 && std::fabs(sum) >= 2147483648.0) abort();
        d[i] = (SUM)sum;
    }
    __syncwarp();
}
template <int N_> struct wgmma_codes {
    static void run(float (&d)[N_ / 2], const u32 (&a)[4], u64 x, int add)
    {
        multiply_codes(d, a, x, add, e4m3_element);
    }
};
template <int N_> struct wgmma_integers {
    static void run(int (&d)[N_ / 2], const u32 (&a)[4], u64 x, int add) { multiply_codes(d, a, x, add, int8_element); }
};
template <int N_, int DTYPE_> struct wgmma {
    static void run(float (&d)[N_ / 2], u64 w, u64 x, int add)
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
        for (int i = 0; i < N_ / 2; i++) {
            const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = add ? d[i] : 0;
            for (int k = 0; k < 16; k++)
                sum += (double)tile_element<DTYPE_>(w, row, k) * (double)tile_element<DTYPE_>(x, column, k);
            d[i] = (float)sum;
        }
    }
};

template <int N_, int DTYPE_> struct wgmma_registers {
    static void run(float *d, const u32 *a, u64 b)
    {
        const int lane = (int)threadIdx.x % 32;
        give({a[0], a[1], a[2], a[3]});
        for (int i = 0; i < N_ / 2; i++) {
            const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = d[i];
            for (int k = 0; k < 16; k++)
                sum += (double)a_element<DTYPE_>(row, k) * (double)tile_element<DTYPE_>(b, k, column);
            d[i] = (float)sum;
        }
        __syncwarp();
    }
};

#endif
