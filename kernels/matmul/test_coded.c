/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/test_coded.h"

#include <math.h>
#include <string.h>

void test_coded_row_open(struct test_memory *memory, uint64_t k, struct coded_row *row)
{
    row->codes = test_take(memory, k);
    row->zeros = test_take(memory, k);
    row->scales = test_take(memory, k * sizeof(float));
}

void test_coded_row(struct test_random *random, const struct panel_form *form, uint64_t k, struct coded_row *row,
                    float *values)
{
    const struct encoding *encoding = form->encoding;
    const uint64_t group = form->group ? form->group : k;
    row->factor =
        form->factor_bytes ? test_random_float(random, 0.5f, 1.5f) / (encoding->bits == 8 ? 200.0f : 1.0f) : 1;
    for (uint64_t g = 0; g * group < k; g++) {
        row->zeros[g] = encoding->zeros ? (uint8_t)test_random_range(random, 0, encoding->bits == 8 ? 255 : 15) : 8;
        const float scale = test_random_float(random, 0.05f, 0.2f);
        row->scales[g] = encoding->scale == SCALE_F16    ? f16_to_float(f16_from_float(scale))
                         : encoding->scale == SCALE_E4M3 ? e4m3_to_float(e4m3_from_float(scale))
                         : encoding->scale == SCALE_E8M0 ? ldexpf(1, (int)test_random_range(random, -4, -1))
                                                         : scale / 100;
    }
    for (uint64_t i = 0; i < k; i++) {
        do row->codes[i] = (uint8_t)test_random_range(random, 0, encoding->bits == 4 ? 15 : 255);
        while (encoding->code == CODE_E4M3 && (row->codes[i] & 0x7f) == 0x7f);
        float number = 0;
        switch (encoding->code) {
        case CODE_FLOAT: break;
        case CODE_INT8:
            number = (float)((int8_t)row->codes[i] - (encoding->zeros ? (int8_t)row->zeros[i / group] : 0));
            break;
        case CODE_UINT4: number = (float)(row->codes[i] - row->zeros[i / group]); break;
        case CODE_E4M3: number = e4m3_to_float(row->codes[i]); break;
        case CODE_E2M1: number = e2m1_to_float(row->codes[i]); break;
        case CODE_TABLE:
            number = encoding->table[row->codes[i]];
            if (form->fragments) number = bf16_to_float(bf16_from_float(number));
            break;
        }
        if (values) values[i] = number * (form->group ? row->scales[i / group] : 1) * row->factor;
    }
}

void test_coded_matrix(struct test_random *random, const struct panel_form *form, uint64_t panel_size, uint64_t n,
                       uint64_t k, uint8_t *panels, float *values)
{
    struct test_memory memory = {0};
    struct coded_row row;
    test_coded_row_open(&memory, k, &row);
    memset(panels, 0, panel_count(n) * panel_size);
    for (uint64_t i = 0; i < n; i++) {
        test_coded_row(random, form, k, &row, values + i * k);
        panel_pack_coded(form, &row, i % PANEL_ROWS, k, panels + i / PANEL_ROWS * panel_size);
    }
    test_release(&memory);
}
