/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by emulated ops on the paged KV cache: pages in every encoding of kernels/op/paged.h with poison where no kernel may
 * look, and plain code in double for the preparation of heads and for attention. P: a kernel's parameters. */
#ifndef TESTS_EMULATION_PAGED_ON_HOST_H
#define TESTS_EMULATION_PAGED_ON_HOST_H

#include "tests/emulation/cuda_on_host.h"

#include "kernels/cuda/include/element.cuh"

#include <cstdarg>
#include <cstdio>

enum { PAGED_INT8 = 16, PAGED_E4M3 = 24 }; /* enum encoding_id: int8_channel, e4m3_channel */
enum { NO_INDEX = 1 << 30, MOST_PRINTED = 5 };

static int problems;

/* Counts a difference, and prints the first ones. */
__attribute__((format(printf, 1, 2))) static void problem(const char *format, ...)
{
    va_list arguments;
    if (problems++ >= MOST_PRINTED) return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

static float draw(float low, float high)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (float)(state >> 8) / 16777216.0f;
}

/* Half of the last place, relative. */
static constexpr double rounding_of(int dtype)
{
    return dtype == DTYPE_F32 ? 0x1p-24 : dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* ---- codes of 8 bits ---- */

static double e4m3_value(u8 code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) return NAN;
    const double magnitude = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return code >> 7 ? -magnitude : magnitude;
}

/* Distance of codes next to `value`; of two binades the smaller. */
static double code_step(int encoding, double value)
{
    if (encoding == PAGED_INT8) return 1;
    return std::ldexp(1, std::max(value == 0 ? -6 : std::ilogb(value), -6) - 3);
}

/* The code that is nearest to a value within its range. */
static u8 nearest_code(int encoding, double value)
{
    if (encoding == PAGED_INT8) return (u8)(int)std::nearbyint(value);
    const double step = code_step(PAGED_E4M3, value);
    const int code = (int)std::nearbyint(std::fabs(value) / step) + (std::ilogb(step) + 9) * 8;
    return (u8)(std::min(code, 0x7e) | (value < 0 ? 0x80 : 0));
}

/* ---- pages ---- */

/* The KV operand of a launch, whatever its element type is. */
struct kv_operand {
    u8 *at;
    operator u8 *() const { return at; }
    operator u16 *() const { return (u16 *)at; }
};

template <class P> struct pages_on_host {
    enum {
        CODED = P::KV_DTYPE == PAGED_INT8 || P::KV_DTYPE == PAGED_E4M3,
        LARGEST_CODE = P::KV_DTYPE == PAGED_INT8 ? 127 : 448,
        PAGES = P::SLOT_COUNT * P::PAGES_PER_SLOT,
        ROW_BYTES = P::HEAD_DIM * (CODED                      ? 1
                                   : P::KV_DTYPE == DTYPE_F32 ? 4
                                                              : 2),
        ROWS = P::KV_HEADS * P::PAGE_TOKENS, /* of K, or of V, in a page */
        SCALES = CODED ? (ROWS * ROW_BYTES + 255) / 256 * 256 : 0,
        KEYS = CODED ? SCALES + ROWS * 4 : ROWS * ROW_BYTES, /* bytes of K */
        LATENT = P::VALUE_DIM > 0,                           /* v is a part of k */
        VALUES = LATENT ? 0 : KEYS,
        BLOCK = P::PAGE_BYTES - KEYS - VALUES, /* where the layer's block begins: it is the page's last */
    };
    static_assert(P::PAGE_BYTES >= KEYS + VALUES && BLOCK % 16 == 0, "a block at the end of the page");

    float static_scales[2 * P::KV_HEADS]; /* with HAS_KV_SCALES, as the operand has them */
    alignas(256) u8 pool[PAGES * (long)P::PAGE_BYTES], expected[PAGES * (long)P::PAGE_BYTES];
    int table[PAGES];

    void poison()
    {
        memset(pool, 0xff, sizeof pool); /* NaN, but for int8, whose scales are NaN */
        memset(expected, 0xff, sizeof expected);
        for (int &page : table) page = NO_INDEX;
        for (float &given : static_scales) /* the largest numbers are beyond 448 times some */
            given = P::HAS_KV_SCALES ? draw(0.001f, 0.005f) : 0;
    }

    kv_operand kv() { return {pool + BLOCK}; }

    /* Gives a slot the pages of tokens `first` to `last`. With RING_PAGES it has as many, which it uses in turn: those of tokens before
     * the window are then those of later ones. */
    void map(int slot, int first, int last)
    {
        for (int i = first / P::PAGE_TOKENS; i <= last / P::PAGE_TOKENS; i++)
            table[slot * P::PAGES_PER_SLOT + i] =
                PAGES - 1 - slot * P::PAGES_PER_SLOT - i % (P::RING_PAGES ? P::RING_PAGES : P::PAGES_PER_SLOT);
    }

    u8 *row(int slot, int position, int head, bool is_value)
    {
        const long page = table[slot * P::PAGES_PER_SLOT + position / P::PAGE_TOKENS];
        return pool + page * P::PAGE_BYTES + BLOCK + (is_value ? VALUES : 0) +
               (head * P::PAGE_TOKENS + position % P::PAGE_TOKENS) * ROW_BYTES;
    }
    float *scale(int slot, int position, int head, bool is_value)
    {
        const long page = table[slot * P::PAGES_PER_SLOT + position / P::PAGE_TOKENS];
        return (float *)(pool + page * P::PAGE_BYTES + BLOCK + (is_value ? VALUES : 0) + SCALES) +
               head * P::PAGE_TOKENS + position % P::PAGE_TOKENS;
    }

    static double element(const u8 *row, int i)
    {
        if constexpr (P::KV_DTYPE == PAGED_INT8)
            return (signed char)row[i];
        else if constexpr (CODED)
            return e4m3_value(row[i]);
        else
            return load_element<P::KV_DTYPE>(row, i);
    }

    /* A stored row as numbers: codes times scale, if it has them. */
    void read(int slot, int position, int head, bool is_value, double *values)
    {
        const u8 *from = row(slot, position, head, is_value);
        const double factor = CODED ? (double)*scale(slot, position, head, is_value) : 1;
        for (int i = 0; i < P::HEAD_DIM; i++) values[i] = element(from, i) * factor;
    }

    /* The row as it is becomes the one that is expected. */
    void accept(int slot, int position, int head, bool is_value)
    {
        const u8 *from = row(slot, position, head, is_value);
        memcpy(expected + (from - pool), from, ROW_BYTES);
        if (!CODED) return;
        from = (const u8 *)scale(slot, position, head, is_value);
        memcpy(expected + (from - pool), from, sizeof(float));
    }

    void write(int slot, int position, int head, bool is_value, const float *values)
    {
        u8 *to = row(slot, position, head, is_value);
        if constexpr (CODED) {
            float largest = 0;
            for (int i = 0; i < P::HEAD_DIM; i++) largest = std::max(largest, fabsf(values[i]));
            const float factor = largest / LARGEST_CODE;
            *scale(slot, position, head, is_value) = factor;
            for (int i = 0; i < P::HEAD_DIM; i++)
                to[i] = factor > 0 ? nearest_code(P::KV_DTYPE, (double)values[i] / (double)factor) : 0;
        } else {
            for (int i = 0; i < P::HEAD_DIM; i++) store_element<P::KV_DTYPE>(to, i, values[i]);
        }
        accept(slot, position, head, is_value);
    }

    /* Random k and v of a token, of another magnitude in each row. */
    void fill(int slot, int position)
    {
        float values[P::HEAD_DIM];
        for (int i = 0; i < 2 * P::KV_HEADS; i += LATENT ? 2 : 1) {
            const float most = draw(0.3f, 2);
            for (float &value : values) value = draw(-most, most);
            write(slot, position, i / 2, i % 2, values);
        }
    }

    void expect_codes(const char *what, int slot, int position, int head, bool is_value, const double *values)
    {
        const u8 *found = row(slot, position, head, is_value);
        const double factor = (double)*scale(slot, position, head, is_value);
        double largest = 0, zeros = 0;
        for (int i = 0; i < P::HEAD_DIM; i++) largest = std::max(largest, std::fabs(values[i])), zeros += values[i] * 0;
        const double given = (double)static_scales[2 * head + is_value];
        const double due = (P::HAS_KV_SCALES ? given : largest / LARGEST_CODE) + zeros;
        if (std::isnan(due) ? !std::isnan(factor) : !(std::fabs(factor - due) <= 1e-6 * due))
            problem("%s of slot %d token %d head %d: scale %g, expected %g", what, slot, position, head, factor, due);
        for (int i = 0; i < P::HEAD_DIM; i++) {
            double value = due > 0 ? values[i] / due : 0; /* an error of 1e-6 of the largest may pass a tie */
            value = std::max(-(double)LARGEST_CODE, std::min((double)LARGEST_CODE, value));
            const double error = due > 0 ? code_step(P::KV_DTYPE, value) / 2 + 1e-6 * LARGEST_CODE : 0;
            if (std::fabs(element(found, i) - value) <= error && (due > 0 || found[i] == 0)) continue;
            problem("%s of slot %d token %d head %d element %d: code %g, expected %g", what, slot, position, head, i,
                    element(found, i), value);
        }
    }

    /* k or v of a token is as `values`, rounded; is_exact: of those that are numbers of the page's type, the bits. */
    void expect_row(const char *what, int slot, int position, int head, bool is_value, const double *values,
                    bool is_exact)
    {
        const u8 *found = row(slot, position, head, is_value);
        if constexpr (CODED) {
            expect_codes(what, slot, position, head, is_value, values);
        } else {
            for (int i = 0; i < P::HEAD_DIM; i++) {
                const double error = rounding_of(P::KV_DTYPE) * 1.01 * std::fabs(values[i]) + 2e-6;
                u8 rounded[4];
                store_element<P::KV_DTYPE>(rounded, 0, (float)values[i]);
                if (is_exact ? element(found, i) == element(rounded, 0)
                             : std::fabs(element(found, i) - values[i]) <= error ||
                                   (std::isnan(element(found, i)) && std::isnan(values[i])))
                    continue;
                problem("%s of slot %d token %d head %d element %d: %g, expected %g", what, slot, position, head, i,
                        element(found, i), values[i]);
            }
        }
        accept(slot, position, head, is_value);
    }

    /* No byte differs but those of accepted rows. */
    void expect_untouched()
    {
        for (long i = 0; i < (long)sizeof pool; i++)
            if (pool[i] != expected[i]) problem("byte %ld of the pages was written", i);
    }
};

/* ---- references ---- */

/* v of head `head` at x (X_DTYPE), with NORM_V normalised. */
template <class P> static void prepare_value_on_host(const void *x, int head, double *to)
{
    double squares = 0;
    for (int i = 0; i < P::HEAD_DIM; i++) {
        to[i] = (double)load_element<P::X_DTYPE>(x, head * P::HEAD_DIM + i);
        squares += to[i] * to[i];
    }
    const double scale = 1 / std::sqrt(squares / P::HEAD_DIM + (double)__int_as_float(P::EPS_BITS));
    for (int i = 0; P::NORM_V && i < P::HEAD_DIM; i++) to[i] *= scale;
}

/* Head `head` of the `heads` at x (X_DTYPE), normalised (over the whole width, or else the head) and rotated. `given`: the mean
 * square of the norm; null: x has all that it is of. */
template <class P>
static void prepare_on_host(const void *x, int heads, int head, const void *norm, const float *table, double *to,
                            const float *given = nullptr)
{
    const bool over_width = P::NORM_SCOPE == 1, has_all_weights = P::NORM_SCOPE == 1 || P::NORM_SCOPE == 2;
    const bool after = P::NORM_SCOPE == 3; /* the weights multiply after the rotation */
    const int dim = P::HEAD_DIM, rotated = P::ROTARY_DIM ? P::ROTARY_DIM : dim, half = rotated / 2;
    const int first = over_width ? 0 : head, last = over_width ? heads : head + 1;
    double values[P::HEAD_DIM], weights[P::HEAD_DIM], squares = 0, mean = 0;
    for (int i = first * dim; P::CENTRED && i < last * dim; i++) mean += (double)load_element<P::X_DTYPE>(x, i) / dim;
    for (int i = first * dim; i < last * dim; i++) {
        const double value = (double)load_element<P::X_DTYPE>(x, i) - mean;
        squares += value * value;
    }
    const double mean_square = given ? *given : squares / ((last - first) * dim);
    const double scale = 1 / std::sqrt(mean_square + (double)__int_as_float(P::EPS_BITS));
    for (int i = 0; i < dim; i++) {
        values[i] = (double)load_element<P::X_DTYPE>(x, head * dim + i) - mean;
        weights[i] = P::HAS_NORM ? load_element<P::NORM_DTYPE>(norm, (has_all_weights ? head * dim : 0) + i) : 1;
        if (P::HAS_NORM) values[i] *= after ? scale : scale * weights[i];
    }
    for (int i = 0; i < dim; i++) {
        to[i] = values[i];
        if (i < half) to[i] = values[i] * table[i] - values[i + half] * table[half + i];
        if (i >= half && i < rotated) to[i] = values[i] * table[i - half] + values[i - half] * table[i];
        if (after) to[i] *= weights[i];
    }
}

/* The first token that a row at `position` sees. */
template <class P> static int first_token(int position)
{
    return P::WINDOW > 0 && position >= P::WINDOW ? position - P::WINDOW + 1 : 0;
}

/* Sinks of the heads, from -1 to 3. */
template <class P> struct sinks_on_host {
    float at[P::HEADS];

    sinks_on_host()
    {
        for (int head = 0; head < P::HEADS; head++) at[head] = (float)(head * 7 % 5) - 1;
    }
    const void *operand() const { return P::HAS_SINKS ? at : nullptr; }
};

/* Attention over the tokens of a slot that are in the pages. */
template <class P> struct attention_on_host {
    enum { OUT_DIM = P::VALUE_DIM ? P::VALUE_DIM : P::HEAD_DIM };
    int slot, kv_head, first, last;
    std::vector<double> k, v, weights;

    attention_on_host(pages_on_host<P> &pages, int slot, int kv_head, int first, int last)
        : slot(slot), kv_head(kv_head), first(first), last(last), k((last + 1 - first) * P::HEAD_DIM), v(k.size()),
          weights(last + 1 - first)
    {
        for (int t = first; t <= last; t++) {
            pages.read(slot, t, kv_head, false, &k[(t - first) * P::HEAD_DIM]);
            pages.read(slot, t, kv_head, true, &v[(t - first) * P::HEAD_DIM]);
        }
    }

    /* Compares out (X_DTYPE) of head q at `position`. `rounding`: of weights, relative. */
    void expect_out(int row, int head, int position, const double *q, const void *out, double rounding)
    {
        const int begin = first_token<P>(position), tokens = position + 1 - begin;
        const double scale = (double)__int_as_float(P::SCALE_BITS);
        const double *key = &k[(begin - first) * P::HEAD_DIM], *value = &v[(begin - first) * P::HEAD_DIM];
        double largest = -INFINITY, sum = 0, sums[P::HEAD_DIM] = {0}, magnitudes[P::HEAD_DIM] = {0};
        for (int t = 0; t < tokens; t++) {
            double score = 0;
            for (int i = 0; i < P::HEAD_DIM; i++) score += q[i] * key[t * P::HEAD_DIM + i];
            weights[t] = score * scale;
            const double cap = (double)__int_as_float(P::CAP_BITS);
            if (cap > 0) weights[t] = cap * std::tanh(weights[t] / cap);
            largest = std::max(largest, weights[t]);
        }
        if (P::HAS_SINKS) sum = std::exp((double)sinks_on_host<P>().at[head] - largest);
        for (int t = 0; t < tokens; t++) {
            const double weight = std::exp(weights[t] - largest);
            sum += weight;
            for (int i = 0; i < P::HEAD_DIM; i++) {
                sums[i] += weight * value[t * P::HEAD_DIM + i];
                magnitudes[i] += weight * std::fabs(value[t * P::HEAD_DIM + i]);
            }
        }
        for (int i = 0; i < OUT_DIM; i++) {
            const double expected = sums[i] / sum, found = (double)load_element<P::X_DTYPE>(out, i);
            const double error =
                (rounding + 2e-5) * magnitudes[i] / sum + rounding_of(P::X_DTYPE) * 1.01 * std::fabs(expected) + 1e-6;
            if (std::fabs(found - expected) <= error) continue;
            problem("out row %d head %d element %d: %g, expected %g within %g", row, head, i, found, expected, error);
        }
    }
};

/* Bytes of an array with poison before and after them. */
template <long BYTES> struct guarded {
    enum { GUARD = 128 };
    alignas(128) u8 before[GUARD];
    u8 bytes[BYTES], after[GUARD];

    void poison() { memset((void *)this, 0xff, sizeof *this); }
    /* Those from `used` on, and those around them. */
    void expect_poison(const char *what, long used) const
    {
        for (const u8 *at = before; at < after + GUARD; at++)
            if (*at != 0xff && (at < bytes || at >= bytes + used))
                problem("byte %ld of %s was written", at - bytes, what);
    }
};

static void expect_shared_poison(long used)
{
    for (long i = used; i < SHARED_BYTES; i++)
        if ((u8)shared_memory[i] != 0xff) problem("byte %ld of shared memory was written", i);
}

#endif
