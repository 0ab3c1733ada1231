/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul on the host: KERNEL_PARAMS is the problem and the tunables, VALID its valid rows, BLOCKS_IN_ALL the thread blocks, which run
 * at the same time. Compares routes, lists and products with plain code in double, and the workspace with zeros; prints
 * what differs and exits with 1. SPOIL: 1 a code of the weights, 3 a number of the router's matrix is another one than expected, 4 the
 * kernel's words of the workspace end before the last one; 0 nothing. emulation_test.py includes it in a namespace for each case, after
 * the headers. */
#include "tests/emulation/cuda_on_host.h"

struct params {
    KERNEL_PARAMS
};
typedef routed_matmul_body<params> body;

#include "tests/emulation/routed_on_host.h"

/* Guarded by others that the kernel must leave alone. */
enum { WORDS = (int)routed_matmul_workspace_bytes(ROWS, LOGITS) / 4, GUARDS = 64, GUARD = 0x7fc12345 };

alignas(64) static float out[ROWS * TOP_K * COLUMNS], routes[ROWS * 2 * TOP_K];
alignas(64) static int lists[params::EXPERTS + 1 + ROWS * TOP_K];
alignas(64) static unsigned workspace[WORDS + GUARDS];

static void check_row(int row)
{
    const float *weights = routes + row * 2 * TOP_K, *ids = weights + TOP_K;
    choice_on_host choices[TOP_K];
    choose_on_host(row, choices);
    for (int c = 0; c < TOP_K; c++) {
        const int expert = choices[c].expert;
        const double weight = choices[c].weight;
        expect(ids[c] == (float)expert, "ids", row * TOP_K + c, (double)ids[c], expert);
        expect(std::fabs((double)weights[c] - weight) <= WEIGHT_ERROR * weight, "weights", row * TOP_K + c,
               (double)weights[c], weight);
        for (int column = 0; column < COLUMNS; column++) {
            double error;
            const double want = activation_on_host(row, expert, column, &error);
            const int at = (row * TOP_K + c) * COLUMNS + column;
            expect(std::fabs((double)out[at] - want) <= error, "out", at, (double)out[at], want);
        }
    }
}

static void check_lists()
{
    const int *choices = lists + params::EXPERTS + 1;
    int next = 0;
    for (int expert = 0; expert < params::EXPERTS; expert++) {
        expect(lists[expert] == next, "lists", expert, lists[expert], next);
        for (int choice = 0; choice < VALID * TOP_K; choice++) {
            if (routes[choice / TOP_K * 2 * TOP_K + TOP_K + choice % TOP_K] != (float)expert) continue;
            expect(choices[next] == choice, "choices", next, choices[next], choice);
            next++;
        }
    }
    expect(lists[params::EXPERTS] == next, "lists", params::EXPERTS, lists[params::EXPERTS], next);
}

static void run_thread_of_kernel()
{
    body::weights_operand weights;
    take_weights(&weights, w, params::TILE_GROUPS);
    body::run((u8 *)shared_memory, counts, params::HAS_NORM ? (const void *)x : x_halves, weights, out, routes, lists,
              params::HAS_BIAS ? bias : nullptr, params::HAS_NORM ? norm_weights : nullptr,
              {matrix, workspace, params::HAS_ROUTER_BIAS ? router_bias : nullptr,
               params::HAS_CLAIM_BIAS ? claim_bias : nullptr, params::HAS_SCALES ? scales : nullptr,
               params::HAS_SEEDS ? seeds : nullptr, nullptr});
}

int main()
{
    draw_operands(SPOIL);
    for (float &value : out) value = -1e30f;
    for (int &value : lists) value = -1;
    for (int i = SPOIL == 4 ? WORDS - 1 : WORDS; i < WORDS + GUARDS; i++) workspace[i] = GUARD;
    const unsigned short own = matrix[3];
    if (SPOIL == 3) matrix[3] = half_of_float<ELEMENT>(9);
    for (int run = 0; run < 2; run++) /* the second finds what the first has left */
        run_blocks(body::THREADS, run_thread_of_kernel, run == 1);
    matrix[3] = own;
    for (int row = 0; row < VALID; row++) check_row(row);
    check_lists();
    for (int i = 0; i < WORDS; i++) expect(workspace[i] == 0, "workspace", i, workspace[i], 0);
    for (int i = SPOIL == 4 ? WORDS - 1 : WORDS; i < WORDS + GUARDS; i++)
        expect(workspace[i] == GUARD, "guards", i, workspace[i], GUARD);
    return wrong != 0;
}
