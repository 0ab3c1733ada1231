/* SPDX-License-Identifier: Apache-2.0 */
/* sample on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares tokens, samplers, SEEN and counts with plain code
 * that sorts, for steps of samplers with every option; prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a
 * defect could leave, for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these
 * headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/sample/philox.h"
#include "kernels/sample/sample.cuh"

#include <algorithm>

struct params {
    KERNEL_PARAMS
};
typedef sample_body<params> body;

enum {
    VOCAB = params::VOCAB,
    SEEN_BYTES = (VOCAB + 7) / 8,
    WORDS = SAMPLE_BIAS_WORDS + VOCAB,
    ALLOWED_WORDS = (VOCAB + 31) / 32,
    COUNT_MOST = (1 << SAMPLE_COUNT_BITS) - 1,
    STEPS = 8,
};

/* What a launch reads and writes. */
struct memory_of_launch {
    sampler_state samplers[params::SLOT_COUNT];
    u8 seen[params::SLOT_COUNT * SEEN_BYTES];
    alignas(64) u32 adjustments[params::SLOT_COUNT * WORDS];
    int next[params::ROWS], tokens[params::IN_ROWS], positions[params::IN_ROWS];
};
static memory_of_launch found, expected;
static int counts[2] = {1 << 30, VALID}, out_rows[params::ROWS], slots[params::IN_ROWS];
alignas(64) static float logits[params::ROWS * VOCAB];
static u32 allowed[params::SLOT_COUNT * ALLOWED_WORDS];

static int draw_integer(int low, int high) { return low + (int)draw(0, (float)(high - low + 1)); }

static u32 draw_bits()
{
    u32 bits = 0;
    for (int i = 0; i < 32; i += 8) bits |= (u32)draw_integer(0, 255) << i;
    return bits;
}

static void fill_slot(int slot, u32 options)
{
    static const float temperatures[] = {0, 1, 0.7f, 3, 1e-6f}, top_ps[] = {1, 0.9f, 0.3f};
    static const float min_ps[] = {0, -0.7f, -2.3f, -4, -14};
    static const int top_ks[] = {0, 1, 40, 127, 300};
    sampler_state &own = found.samplers[slot];
    own = {};
    own.temperature = temperatures[draw_integer(0, 4)];
    own.top_p = top_ps[draw_integer(0, 2)];
    own.top_k = top_ks[draw_integer(0, 4)];
    own.repetition_penalty = draw_integer(0, 1) ? 1 : 1.3f;
    own.seed = (u64)draw_bits() << 32 | draw_bits();
    own.draw = draw_bits();
    own.options = options;
    own.min_p_log = min_ps[draw_integer(0, 4)];
    own.presence_penalty = draw(-2, 2);
    own.frequency_penalty = draw(-1, 1);
    u32 *row = found.adjustments + slot * WORDS;
    memset(row, 0, WORDS * sizeof *row);
    for (int t = 0; t < VOCAB; t++)
        if (draw_integer(0, 3) == 0) row[SAMPLE_BIAS_WORDS + t] = (u32)draw_integer(1, 4);
    for (int i = 1; i <= 20; i++) {
        const float bias = draw(-4, 4);
        memcpy(&row[i * 51], &bias, sizeof bias); /* up to the last */
        u32 &word = row[SAMPLE_BIAS_WORDS + i * 7919 % VOCAB];
        word = (word & COUNT_MOST) | (u32)(i * 51) << SAMPLE_COUNT_BITS;
    }
    row[SAMPLE_BIAS_WORDS + 1] |= COUNT_MOST; /* stays */
    for (int w = 0; w < ALLOWED_WORDS; w++) allowed[slot * ALLOWED_WORDS + w] = draw_bits() | draw_bits();
    if (slot == 2) memset(allowed + slot * ALLOWED_WORDS, 0, ALLOWED_WORDS * sizeof *allowed);
    if (slot == 3) allowed[slot * ALLOWED_WORDS] |= 2;
    /* Rows that the sampler does not use may have anything. */
    if (!(options & SAMPLE_OPTION_ADJUSTS)) memset(row, 0xff, WORDS * sizeof *row);
    if (!(options & SAMPLE_OPTION_ALLOWS)) memset(allowed + slot * ALLOWED_WORDS, 0, ALLOWED_WORDS * sizeof *allowed);
}

static float changed_logit(const float *row, int slot, int token)
{
    const sampler_state &own = expected.samplers[slot];
    const u32 options = params::HAS_OPTIONS ? own.options : 0;
    float value = row[token];
    if (options & SAMPLE_OPTION_ALLOWS && !(allowed[slot * ALLOWED_WORDS + token / 32] >> token % 32 & 1))
        return -INFINITY;
    if (own.repetition_penalty != 1 && expected.seen[slot * SEEN_BYTES + token / 8] >> token % 8 & 1)
        value = value >= 0 ? value / own.repetition_penalty : value * own.repetition_penalty;
    if (options & SAMPLE_OPTION_ADJUSTS) {
        const u32 *adjustments = expected.adjustments + slot * WORDS, word = adjustments[SAMPLE_BIAS_WORDS + token];
        value += float_of_bits(adjustments[word >> SAMPLE_COUNT_BITS]);
        float penalty = own.frequency_penalty * (float)(word & COUNT_MOST);
        penalty += own.presence_penalty;
        if (word & COUNT_MOST) value -= penalty;
    }
    return value + 0.0f;
}

/* As kernels/cpu/vector_math.h with fused multiply-adds. */
static u64 weight_on_host(float value, float largest, float inverse)
{
    if (value >= largest) return 1u << 30;
    const float x = (value - largest) * inverse, magic = 0x1.8p+23f;
    if (!(x > -104)) return 0;
    const float n = fmaf(x, 0x1.715476p+0f, magic) - magic;
    float r = fmaf(n, -0x1.62e4p-1f, x), p = 0x1.6d117cp-10f;
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    p = fmaf(p, r, 0x1.120be2p-7f);
    p = fmaf(p, r, 0x1.555518p-5f);
    p = fmaf(p, r, 0x1.5554dcp-3f);
    p = fmaf(p, r, 0.5f);
    return (u64)ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n + 30);
}

static int expected_token(const float *row, int slot, u64 draws_before)
{
    struct item {
        float value;
        int token;
    };
    const sampler_state &own = expected.samplers[slot];
    std::vector<item> items;
    for (int t = 0; t < VOCAB; t++) items.push_back({changed_logit(row, slot, t), t});
    for (const item &one : items)
        if (std::isnan(one.value) || one.value == INFINITY) return body::NO_TOKEN;
    std::stable_sort(items.begin(), items.end(), [](const item &a, const item &b) { return a.value > b.value; });
    const float largest = items[0].value, inverse = 1 / own.temperature;
    if (largest == -INFINITY) return body::NO_TOKEN;
    if (!(own.temperature > 0)) return items[0].token;
    size_t kept = items.size();
    if (own.top_k > 0 && own.top_k < VOCAB) {
        kept = (size_t)own.top_k;
        while (kept < items.size() && items[kept].value == items[(size_t)own.top_k - 1].value) kept++;
    }
    if (params::HAS_OPTIONS && own.options & SAMPLE_OPTION_MIN_P) {
        const float depth = own.temperature * own.min_p_log, least = largest + depth;
        while (items[kept - 1].value < least) kept--;
    }
    items.resize(kept);
    u64 total = 0, sum = 0;
    for (const item &one : items) total += weight_on_host(one.value, largest, inverse);
    if (own.top_p < 1) {
        const u64 least = std::max<u64>((u64)std::ceil((double)own.top_p * (double)total), 1);
        for (size_t i = 0; i < items.size() && sum < least; i++)
            sum += weight_on_host(items[i].value, largest, inverse);
        total = sum;
    }
    const u64 uniform = philox_uniform_24(own.seed, own.draw + draws_before);
    const u64 target = (total >> 24) * uniform + ((total & 0xffffff) * uniform >> 24);
    sum = 0;
    for (const item &one : items) {
        sum += weight_on_host(one.value, largest, inverse);
        if (sum > target) return one.token;
    }
    return -7;
}

static void expect_row(int r)
{
    const int in_row = out_rows[r];
    expected.next[r] = 0;
    if (in_row < 0 || in_row >= params::IN_ROWS) return;
    const int slot = slots[in_row];
    u64 draws_before = 0;
    for (int i = 0; params::VERIFIES && i < r; i++)
        draws_before += out_rows[i] < params::IN_ROWS && slots[out_rows[i]] == slot;
    const int token = expected_token(logits + r * VOCAB, slot, draws_before);
    expected.next[r] = token;
    if (token >= 0 && !params::VERIFIES) {
        expected.samplers[slot].draw++;
        expected.seen[slot * SEEN_BYTES + token / 8] |= (u8)(1 << token % 8);
        u32 &word = expected.adjustments[slot * WORDS + SAMPLE_BIAS_WORDS + token];
        const bool counts_tokens = params::HAS_OPTIONS && expected.samplers[slot].options & SAMPLE_OPTION_ADJUSTS;
        if (counts_tokens && (word & COUNT_MOST) < COUNT_MOST) word++;
    }
    if (!params::FEEDBACK) return;
    expected.tokens[in_row] = token;
    expected.positions[in_row]++;
}

static void run_thread_of_kernel()
{
    body::run(counts, logits, out_rows, slots, found.samplers, found.seen, found.next, found.tokens, found.positions,
              found.adjustments, allowed);
}

static void fill_step(int step)
{
    memset(logits, 0xff, sizeof logits); /* NaN beyond the valid rows */
    for (int r = 0; r < VALID; r++) {
        const bool coarse = (step + r) % 4 == 3;
        for (int t = 0; t < VOCAB; t++) {
            float sum = 0;
            for (int j = 0; j < 3; j++) sum += draw(-3, 3);
            logits[r * VOCAB + t] = coarse ? rintf(sum) : sum;
        }
        /* In a row where it matters, and where the token may not be allowed. */
        if ((step + r) % 5 == 4) logits[r * VOCAB + draw_integer(0, VOCAB - 1)] = step % 2 ? NAN : INFINITY;
    }
    for (int s = 0; s < params::SLOT_COUNT; s++) fill_slot(s, (u32)(s + step) % 8);
    for (u8 &byte : found.seen) byte = (u8)draw_integer(0, 255);
    for (int i = 0; i < params::IN_ROWS; i++)
        slots[i] = ((params::VERIFIES ? i / 3 : i * 3) + step) % params::SLOT_COUNT, found.tokens[i] = -9,
        found.positions[i] = 100 + i;
    for (int r = 0; r < params::ROWS; r++)
        out_rows[r] = r < VALID ? (r + step) % params::IN_ROWS : -1 - r * 1000, found.next[r] = -9;
    if (step == STEPS - 1) out_rows[0] = params::IN_ROWS; /* does not exist */
}

template <class T> static void compare(const char *what, const T &own, const T &want)
{
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (memcmp(&own[i], &want[i], sizeof *want)) problem("%s[%zu] differs", what, i);
}

int main()
{
    for (int step = 0; step < STEPS; step++) {
        fill_step(step);
        memcpy(&expected, &found, sizeof expected);
        for (int r = 0; r < VALID; r++) expect_row(r);
        for (int r = 0; r < params::ROWS; r++) {
            gridDim.x = params::ROWS * body::CTAS;
            if (body::CTAS > 1)
                run_cluster(r * body::CTAS, body::CTAS, params::ROWS * body::CTAS, params::THREADS,
                            run_thread_of_kernel);
            else
                run_block(r, params::THREADS, run_thread_of_kernel);
        }
        if (SPOIL == 1) found.next[0] ^= 1;
        if (SPOIL == 2) found.adjustments[WORDS - 1]++;
        if (SPOIL == 3) found.samplers[1].draw++;
        for (int r = 0; r < params::ROWS; r++)
            if (found.next[r] != expected.next[r])
                problem("step %d row %d: token %d, expected %d", step, r, found.next[r], expected.next[r]);
        compare("tokens", found.tokens, expected.tokens);
        compare("positions", found.positions, expected.positions);
        compare("samplers", found.samplers, expected.samplers);
        compare("seen", found.seen, expected.seen);
        compare("adjustments", found.adjustments, expected.adjustments);
    }
    return problems != 0;
}
