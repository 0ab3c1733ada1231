/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a matmul on the host, packed by the functions that engines are built with. Included in the namespace of each case. No
 * include guard. */

struct drawn_weights {
    int dtype, n, k;
    std::vector<unsigned char> panels; /* as the kernel reads them */
    std::vector<float> values;         /* [n, k] */
};

static float draw(float low, float high)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (float)(state >> 8) / 16777216.0f;
}

static void draw_plain_weights(drawn_weights &w)
{
    const int count = w.n * w.k;
    w.panels.resize((size_t)count * 2);
    w.values.resize((size_t)count);
    for (int i = 0; i < count; i++) {
        const float value = draw(-1, 1);
        const unsigned short half = w.dtype == DTYPE_BF16 ? half_of_float<3>(value) : half_of_float<2>(value);
        w.values[i] = w.dtype == DTYPE_BF16 ? float_of_half<3>(half) : float_of_half<2>(half);
        memcpy(&w.panels[(size_t)i * 2], &half, sizeof half);
    }
}

/* Codes and scales that every encoding has. */
static void draw_coded_weights(drawn_weights &w, int spoil)
{
    struct panel_form form;
    if (!fragment_form(w.dtype, &form)) abort();
    const int k_count = w.k;
    const unsigned long bytes = fragment_bytes(k_count, w.dtype);
    const struct fragment_layout layout = fragment_lay_out(w.dtype);
    const int group = layout.group ? layout.group : k_count;
    std::vector<unsigned char> codes(k_count), zeros(k_count);
    std::vector<float> scales(k_count);
    w.panels.assign((w.n + 15) / 16 * bytes, 0);
    w.values.resize((size_t)w.n * k_count);
    for (int n = 0; n < w.n; n++) {
        coded_row row = {codes.data(), scales.data(), zeros.data(), 1};
        if (layout.factors) row.factor = (float)(int)draw(1, 9) / 256;
        for (int g = 0; g * group < k_count; g++) {
            zeros[g] = layout.zeros ? (unsigned char)draw(0, 15.9f) : 8;
            scales[g] = ldexpf(layout.scale == FRAGMENT_E8M0 ? 1 : (float)(int)draw(1, 7.9f), -(int)draw(4, 8));
        }
        for (int k = 0; k < k_count; k++) {
            codes[k] = (unsigned char)draw(0, layout.bits == 4 ? 15.9f : 255.9f);
            if (layout.code == FRAGMENT_E4M3 && (codes[k] & 127) == 127) codes[k] = 0;
        }
        panel_pack_coded(&form, &row, (unsigned long)n % 16, k_count, w.panels.data() + n / 16 * bytes);
    }
    for (int n = 0; n < w.n; n++)
        panel_read(&form, w.panels.data(), (unsigned long)n, k_count, 0, k_count, &w.values[(size_t)n * k_count]);
    if (spoil == 1) w.panels[fragment_factor_bytes(layout) + layout.codes_at + 5] ^= 0x10;
    for (size_t panel = 0; spoil == 3 && panel < w.panels.size(); panel += bytes)
        for (int i = 0; i < 64; i++) w.panels[panel + fragment_factor_bytes(layout) + layout.codes_at + i] ^= 0x88;
    if (spoil == 2) w.panels[3] ^= 0x04;
}

/* `spoil`: 1 a code, 2 a scale or a factor, 3 some codes of each panel are others than `values` has. */
static drawn_weights draw_weights(int dtype, int n, int k, int spoil)
{
    drawn_weights w = {dtype, n, k, {}, {}};
    if (dtype == DTYPE_BF16 || dtype == DTYPE_F16)
        draw_plain_weights(w);
    else
        draw_coded_weights(w, spoil);
    return w;
}
