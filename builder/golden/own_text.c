/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/own_text.h"

#include <math.h>
#include <stdlib.h>

bool own_text_pages(struct golden_pages *pages, const struct manifest *manifest, uint32_t rows, uint32_t tokens)
{
    const struct plan_geometry *geometry = &manifest->geometry;
    const uint64_t each = (tokens + geometry->page_tokens - 1) / geometry->page_tokens;
    const unsigned groups = plan_page_groups(geometry);
    *pages = (struct golden_pages){.geometry = geometry, .count = each * rows * groups, .is_new = true};
    pages->table = calloc(1, geometry->state[STATE_PAGE_TABLE].bytes);
    for (unsigned g = 0; pages->table && g < groups; g++)
        for (uint64_t row = 0; row < rows; row++)
            for (uint64_t i = 0; i < each; i++)
                pages->table[plan_page_row(geometry, g, row) + i] = (int32_t)((g * rows + row) * each + i);
    return pages->table != NULL;
}

int32_t own_text_first_token(const struct manifest *manifest, uint32_t row)
{
    if (manifest->bos_token >= 0) return (int32_t)manifest->bos_token;
    return (int32_t)((row + 1) * UINT64_C(7919) % manifest->geometry.vocab_size);
}

double own_text_random(uint64_t *state)
{
    *state ^= *state >> 12; /* xorshift64* */
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * UINT64_C(2685821657736338717)) >> 11) * 0x1p-53;
}

int32_t own_text_draw(const float *logits, uint64_t vocab, double random)
{
    float largest = logits[0];
    double sum = 0;
    for (uint64_t i = 1; i < vocab; i++) largest = fmaxf(largest, logits[i]);
    for (uint64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)largest);
    double left = random * sum;
    for (uint64_t i = 0; i < vocab; i++) {
        left -= exp((double)logits[i] - (double)largest);
        if (left < 0) return (int32_t)i;
    }
    return (int32_t)(vocab - 1);
}
