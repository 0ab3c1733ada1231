/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a matmul on the host, packed by the functions that engines are built with. Included in the namespace of each case, after
 * `params` and N, K and PANELS; SPOIL: 1 a code, 2 a scale or a factor is changed after the expectation. No include guard. */

static std::vector<unsigned char> panels; /* as the kernel reads them */
static std::vector<float> w;              /* [N, K] */

static float draw(float low, float high)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (float)(state >> 8) / 16777216.0f;
}

static void draw_plain_weights()
{
    panels.resize((size_t)N * K * 2);
    w.resize((size_t)N * K);
    for (int i = 0; i < N * K; i++) {
        const unsigned short half = half_of_float<3>(draw(-1, 1));
        w[i] = float_of_half<3>(half);
        memcpy(&panels[(size_t)i * 2], &half, sizeof half);
    }
}

/* Codes and scales that every encoding has. */
static void draw_coded_weights()
{
    struct panel_form form;
    if (!fragment_form(params::DTYPE, &form)) abort();
    const unsigned long bytes = fragment_bytes(K, params::DTYPE);
    const struct fragment_layout layout = fragment_lay_out(params::DTYPE);
    const int group = layout.group ? layout.group : K;
    std::vector<unsigned char> codes(K), zeros(K);
    std::vector<float> scales(K);
    panels.assign(PANELS * bytes, 0);
    w.resize((size_t)N * K);
    for (int n = 0; n < N; n++) {
        coded_row row = {codes.data(), scales.data(), zeros.data(), 1};
        if (layout.factors) row.factor = (float)(int)draw(1, 9) / 256;
        for (int g = 0; g * group < K; g++) {
            zeros[g] = layout.zeros ? (unsigned char)draw(0, 15.9f) : 8;
            scales[g] = ldexpf(layout.scale == FRAGMENT_E8M0 ? 1 : (float)(int)draw(1, 7.9f), -(int)draw(4, 8));
        }
        for (int k = 0; k < K; k++) {
            codes[k] = (unsigned char)draw(0, layout.bits == 4 ? 15.9f : 255.9f);
            if (layout.code == FRAGMENT_E4M3 && (codes[k] & 127) == 127) codes[k] = 0;
        }
        panel_pack_coded(&form, &row, (unsigned long)n % 16, K, panels.data() + n / 16 * bytes);
    }
    for (int n = 0; n < N; n++) panel_read(&form, panels.data(), (unsigned long)n, K, 0, K, &w[(size_t)n * K]);
    if (SPOIL == 1) panels[fragment_factor_bytes(layout) + layout.codes_at + 5] ^= 0x10;
    if (SPOIL == 2) panels[3] ^= 0x04;
}

static void draw_weights()
{
    if (params::DTYPE == DTYPE_BF16)
        draw_plain_weights();
    else
        draw_coded_weights();
}
