/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of codes, which goes by whole words, against their places one by one: every code of every row, and nothing beside them. */
#include <string.h>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/test_coded.h"

static struct test_random numbers = {0x5eed};

/* Rows 2, 5, 8, 11 and 14 stay as they were: some share words with a row that is packed. */
static bool is_packed(uint64_t index) { return index % 3 != 2; }

/* Any byte may stand for a code; scales of either sign, and 0. */
static void fill_row(const struct panel_form *form, uint64_t k, struct coded_row *row)
{
    test_coded_row(&numbers, form, k, row, NULL);
    for (uint64_t i = 0; i < k; i++)
        row->codes[i] = (uint8_t)test_random_range(&numbers, 0, form->encoding->bits == 4 ? 15 : 255);
    for (uint64_t g = 0; form->encoding->scale == SCALE_E4M3 && g * form->group < k; g++)
        row->scales[g] *= (float)test_random_range(&numbers, -1, 1);
}

/* What stands at k: the row's code, or the code of 0 after its end. */
static uint8_t expected_code(const struct panel_form *form, const struct coded_row *row, uint64_t k, uint64_t at)
{
    const struct encoding *encoding = form->encoding;
    const uint64_t group = form->group ? at / form->group : 0, last = form->group ? (k - 1) / form->group : 0;
    if (at < k && form->fragments && encoding->scale == SCALE_E4M3 && row->scales[group] <= 0)
        return row->scales[group] < 0 ? row->codes[at] ^ 8 : 0;
    if (at < k) return row->codes[at];
    if (encoding->code == CODE_TABLE) {
        uint8_t code = 0;
        while (encoding->table[code] != 0) code++;
        return code;
    }
    if (!encoding->zeros) return encoding->code == CODE_UINT4 ? 8 : 0;
    if (!form->fragments) return row->zeros[last];
    return group > last ? 0 : row->zeros[group];
}

/* A row read at once, in odd parts and one by one. */
static void check_parts(const struct panel_form *form, const uint8_t *panel, uint64_t index, uint64_t k)
{
    enum { MOST_K = 1100, PART = 37 };
    float whole[MOST_K], parts[MOST_K], one;
    assert_true(k <= MOST_K);
    panel_read(form, panel, index, k, 0, k, whole);
    for (uint64_t first = 0; first < k; first += PART)
        panel_read(form, panel, index, k, first, k - first < PART ? k - first : PART, parts + first);
    assert_memory_equal(whole, parts, k * sizeof *whole);
    for (uint64_t at = 0; at < k; at++) {
        panel_read(form, panel, index, k, at, 1, &one);
        assert_memory_equal(&whole[at], &one, sizeof one);
    }
}

static void check_codes(const struct panel_form *form, uint64_t k, uint64_t bytes)
{
    struct test_memory memory = {0};
    struct test_buffer panel = test_buffer_new(bytes);
    struct coded_row rows[PANEL_ROWS];
    memset(panel.data, 0, bytes);
    for (uint64_t index = 0; index < PANEL_ROWS; index++) {
        test_coded_row_open(&memory, k, &rows[index]);
        fill_row(form, k, &rows[index]);
        if (is_packed(index)) panel_pack_coded(form, &rows[index], index, k, panel.data);
    }
    for (uint64_t index = 0; index < PANEL_ROWS; index++) check_parts(form, panel.data, index, k);
    for (uint64_t index = 0; index < PANEL_ROWS; index++)
        for (uint64_t at = 0; at < k || at % form->line_k; at++) {
            const uint8_t found = panel_code(form, panel.data, index, at),
                          wanted = is_packed(index) ? expected_code(form, &rows[index], k, at) : 0;
            if (found != wanted)
                fail_msg("%s in %s: row %d, element %d of %d has code %d, expected %d",
                         encoding_name(form->encoding->id), form->fragments ? "FRAGMENT16" : "PANEL16", (int)index,
                         (int)at, (int)k, found, wanted);
        }
    test_buffer_assert_intact(&panel, "panel");
    test_buffer_free(&panel);
    test_release(&memory);
}

TEST(codes_lie_at_their_places)
{
    static const uint64_t depths[] = {1, 3, 7, 8, 15, 16, 31, 33, 63, 64, 65, 127, 128, 129, 200, 256, 515, 1100};
    int checked = 0;
    for (size_t e = 0; encoding_at(e); e++)
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            const enum encoding_id encoding = encoding_at(e)->id;
            struct panel_form form;
            if (encoding_is_plain(encoding)) continue;
            if (panel_form(encoding, &form)) {
                check_codes(&form, depths[d], panel_bytes(depths[d], encoding));
                checked++;
            }
            if (fragment_form(encoding, &form)) {
                check_codes(&form, depths[d], fragment_bytes(depths[d], encoding));
                checked++;
            }
        }
    assert_true(checked > 500);
}

/* Which bit of a panel each bit of each code is: bit i of panel p is bit p of i, so that the panels read together spell i. */
static void check_places(const struct panel_form *form, uint64_t bytes)
{
    enum { K = 128, PANELS = 16, MOST_BYTES = (1 << PANELS) / 8 };
    static uint8_t panels[PANELS][MOST_BYTES], taken[8 * MOST_BYTES];
    const uint32_t code_bits = form->encoding->bits;
    assert_true(bytes <= MOST_BYTES);
    memset(panels, 0, sizeof panels);
    memset(taken, 0, sizeof taken);
    for (uint64_t i = 0; i < 8 * bytes; i++)
        for (int p = 0; p < PANELS; p++) panels[p][i / 8] |= (uint8_t)((i >> p & 1) << i % 8);
    for (uint64_t index = 0; index < PANEL_ROWS; index++)
        for (uint64_t k = 0; k < K; k++) {
            uint8_t codes[PANELS];
            for (int p = 0; p < PANELS; p++) codes[p] = panel_code(form, panels[p], index, k);
            for (uint32_t bit = 0; bit < code_bits; bit++) {
                uint64_t i = 0;
                for (int p = 0; p < PANELS; p++) i |= (uint64_t)(codes[p] >> bit & 1) << p;
                if (i < 8ull * form->factor_bytes || i >= 8 * bytes || taken[i]++)
                    fail_msg("%s in %s: row %d, element %d has bit %d, which is another's",
                             encoding_name(form->encoding->id), form->fragments ? "FRAGMENT16" : "PANEL16", (int)index,
                             (int)k, (int)i);
            }
        }
}

TEST(places_do_not_overlap)
{
    for (size_t e = 0; encoding_at(e); e++) {
        const enum encoding_id encoding = encoding_at(e)->id;
        struct panel_form form;
        if (encoding_is_plain(encoding)) continue;
        if (panel_form(encoding, &form)) check_places(&form, panel_bytes(128, encoding));
        if (fragment_form(encoding, &form)) check_places(&form, fragment_bytes(128, encoding));
    }
}

int main(void) { return test_run(); }
