/* SPDX-License-Identifier: Apache-2.0 */

#include "tuner/choose_experts.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

enum { MOST_ROWS = 300, MOST_CHOICES = 64 };

static void fill_params(int64_t *params, int64_t rows, int64_t experts, int64_t top_k)
{
    memset(params, 0, MATMUL_PARAMS * sizeof *params);
    params[MATMUL_ROWS] = rows;
    params[MATMUL_N] = experts * 32;
    params[MATMUL_K] = 32;
    params[MATMUL_EXPERTS] = experts;
    params[MATMUL_ROUTE_WIDTH] = 2 * top_k;
}

/* Experts that rows chose; a row's differ. */
static int64_t count_read(const int64_t *params, const float *routes)
{
    const int64_t experts = params[MATMUL_EXPERTS], top_k = matmul_top_k(params);
    int64_t last[ROUTER_MAX_EXPERTS], read = 0;
    for (int64_t i = 0; i < experts; i++) last[i] = -1;
    for (int64_t row = 0; row < params[MATMUL_ROWS]; row++, routes += 2 * top_k) {
        float sum = 0;
        for (int64_t choice = 0; choice < top_k; choice++) {
            const int64_t expert = router_expert(routes, top_k, choice, experts);
            assert_in_range(expert, 0, experts - 1);
            assert_true(last[expert] != row);
            read += last[expert] < 0;
            last[expert] = row;
            sum += router_weight(routes, choice);
        }
        assert_true(sum > 0.99f && sum < 1.01f);
    }
    return read;
}

TEST(draws_read_as_many_experts)
{
    static const int64_t cases[][3] = {{1, 128, 8}, {4, 128, 8}, {16, 128, 8},  {300, 128, 8}, {7, 8, 1},
                                       {3, 8, 8},   {1, 1, 1},   {2, 1024, 64}, {20, 512, 10}};
    static float routes[2][MOST_ROWS * 2 * MOST_CHOICES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t params[MATMUL_PARAMS];
        uint64_t random = i;
        fill_params(params, cases[i][0], cases[i][1], cases[i][2]);
        const size_t bytes = (size_t)(params[MATMUL_ROWS] * params[MATMUL_ROUTE_WIDTH]) * sizeof(float);
        for (int draw = 0; draw < 10; draw++) {
            choose_experts(params, &random, routes[draw % 2]);
            assert_int_equal(count_read(params, routes[draw % 2]), matmul_matrices_read(params));
            if (draw > 0 && cases[i][1] > 8) assert_memory_not_equal(routes[0], routes[1], bytes);
        }
    }
}

/* Every expert is chosen about as often as another. */
TEST(experts_are_drawn_evenly)
{
    static float routes[MOST_ROWS * 2 * 2];
    int64_t params[MATMUL_PARAMS], counts[10] = {0};
    uint64_t random = 1;
    fill_params(params, MOST_ROWS, 10, 2);
    for (int draw = 0; draw < 100; draw++) {
        choose_experts(params, &random, routes);
        for (int64_t row = 0; row < MOST_ROWS; row++)
            for (int64_t choice = 0; choice < 2; choice++) counts[router_expert(routes + row * 4, 2, choice, 10)]++;
    }
    for (int i = 0; i < 10; i++) assert_in_range(counts[i], 5600, 6400); /* 6000; deviation 69 */
}

int main(void) { return test_run(); }
