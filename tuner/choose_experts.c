/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/choose_experts.h"

#include <stdlib.h>

enum { MOST_DRAWS = 64 };

static int64_t random_below(uint64_t *state, int64_t limit)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth, MMIX */
    return (int64_t)((*state >> 33) % (uint64_t)limit);
}

/* Returns how many experts have rows. The choices of a row are the start of a shuffle. */
static int64_t draw(const int64_t *params, uint64_t *random, float *routes)
{
    const int64_t experts = params[MATMUL_EXPERTS], top_k = matmul_top_k(params);
    int64_t order[ROUTER_MAX_EXPERTS], read = 0;
    bool has_rows[ROUTER_MAX_EXPERTS] = {false};
    for (int64_t i = 0; i < experts; i++) order[i] = i;
    for (int64_t row = 0; row < params[MATMUL_ROWS]; row++, routes += 2 * top_k)
        for (int64_t choice = 0; choice < top_k; choice++) {
            const int64_t other = choice + random_below(random, experts - choice), expert = order[other];
            order[other] = order[choice];
            order[choice] = expert;
            routes[choice] = 1 / (float)top_k;
            routes[top_k + choice] = (float)expert;
            read += !has_rows[expert];
            has_rows[expert] = true;
        }
    return read;
}

void choose_experts(const int64_t *params, uint64_t *random, float *routes)
{
    const int64_t wanted = matmul_matrices_read(params);
    uint64_t nearest = *random;
    int64_t least = INT64_MAX;
    for (int i = 0; i < MOST_DRAWS; i++) {
        const uint64_t before = *random;
        const int64_t distance = llabs(draw(params, random, routes) - wanted);
        if (distance == 0) return;
        if (distance < least) nearest = before;
        if (distance < least) least = distance;
    }
    draw(params, &nearest, routes);
}
