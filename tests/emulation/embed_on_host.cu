/* SPDX-License-Identifier: Apache-2.0 */
/* embed's kernel on the host, of a table in FRAGMENT16 layout, in every encoding: each element has the bits that panel_read gives.
 * emulation_test.py links it with the C sources that pack panels and read them. Prints each encoding that differs. Exit code 1 if
 * there is one. */
#include <cstdio>

extern "C" { /* before device code, which has macros of the same names */
#include "kernels/matmul/panel.h"
}

#include "tests/emulation/cuda_on_host.h"

#include "kernels/embed/embed.cuh"

constexpr int OUT_ROWS = 2, ROWS = 5, VALID = 4, VOCAB = 37, COLUMNS = 200, PITCH = 224;

template <int ENCODING> struct embed_params {
    static constexpr int ROWS = ::ROWS, COUNT_INDEX = 0, HIDDEN = COLUMNS, PITCH = ::PITCH, VOCAB = ::VOCAB;
    static constexpr int TABLE_DTYPE = ENCODING, SHARDED = 0, OUT_DTYPE = DTYPE_F32, SCALE_BITS = 0x40400000; /* 3 */
    static constexpr int HAS_POSITIONS = 0, POSITION_DTYPE = DTYPE_F32, FOLLOWS = ENCODING % 2, OUT_ROWS = ::OUT_ROWS;
};

static const int counts[2] = {VALID, OUT_ROWS}, tokens[ROWS] = {VOCAB - 1, 8, VOCAB, 15, 0};
static const int following[ROWS] = {~1, 8, ~OUT_ROWS, ~0, 0},
                 drawn[OUT_ROWS + 1] = {15, VOCAB - 1, 1}; /* the same rows */
static float out[ROWS * COLUMNS];
static std::vector<u8> table;
static u64 seed = 7;

static unsigned draw(unsigned below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

/* One that the encoding's scales have. */
static float draw_scale(const encoding &e)
{
    if (draw(9) == 0 && e.scale != SCALE_E8M0) return 0;
    const int exponent = (int)draw(12) - 8;
    if (e.scale == SCALE_E8M0) return ldexpf(1, exponent * 4);
    return ldexpf((float)(8 + draw(8)) / 8, e.scale == SCALE_E4M3 ? exponent / 2 : exponent) *
           (e.scale == SCALE_E4M3 && draw(4) == 0 ? -1.0f : 1.0f);
}

static void make_table(const struct panel_form &form)
{
    const encoding &e = *form.encoding;
    const u64 panel = fragment_bytes(PITCH, e.id);
    std::vector<u8> codes(PITCH), zeros(PITCH);
    std::vector<float> scales(PITCH);
    table.assign(panel_count(VOCAB) * panel, 0);
    for (int row = 0; row < VOCAB; row++) {
        for (u8 &code : codes) {
            code = (u8)draw(1u << e.bits);
            if (e.code == CODE_E4M3 && (code & 0x7f) == 0x7f) code = 0x80;
        }
        for (u8 &zero : zeros) zero = e.zeros ? (u8)draw(1u << e.bits) : 8;
        for (float &scale : scales) scale = draw_scale(e);
        const coded_row values = {codes.data(), scales.data(), zeros.data(), 0.37f + (float)draw(5)};
        panel_pack_coded(&form, &values, (u64)row % PANEL_ROWS, PITCH, table.data() + row / PANEL_ROWS * panel);
    }
}

template <int ENCODING> static void one_thread()
{
    embed_body<embed_params<ENCODING>>::run(counts, tokens, table.data(), out, nullptr, nullptr, nullptr, following,
                                            drawn);
}

/* Whether it differs where no thread should have written, or from what panel_read gives. */
template <int ENCODING> static int check()
{
    typedef embed_body<embed_params<ENCODING>> kernel;
    struct panel_form form;
    int wrong = 0;
    float expected[COLUMNS];
    if (!fragment_form(ENCODING, &form)) return 1;
    make_table(form);
    for (float &value : out) value = -12345;
    for (int block = 0; block < kernel::BLOCKS_PER_ROW * ROWS; block++)
        run_block(block, kernel::THREADS, one_thread<ENCODING>);
    for (int row = 0; row < ROWS; row++) {
        if (tokens[row] < VOCAB) panel_read(&form, table.data(), (u64)tokens[row], PITCH, 0, COLUMNS, expected);
        for (int k = 0; k < COLUMNS; k++) {
            expected[k] = row >= VALID ? -12345 : tokens[row] < VOCAB ? expected[k] * 3 : 0;
            if (memcmp(&expected[k], &out[row * COLUMNS + k], sizeof *out) == 0) continue;
            if (wrong++ == 0)
                printf("%s: row %d, column %d is %g, expected %g\n", form.encoding->name, row, k,
                       (double)out[row * COLUMNS + k], (double)expected[k]);
        }
    }
    return wrong != 0;
}

int main()
{
    return check<16>() | check<17>() | check<18>() | check<19>() | check<20>() | check<21>() | check<22>() |
           check<24>() | check<25>() | check<26>() | check<27>() | check<28>() | check<29>() | check<30>() |
           check<31>() | check<32>() | check<33>() | check<34>() | check<35>() | check<36>();
}
