/* SPDX-License-Identifier: Apache-2.0 */
/* router on the host: KERNEL_PARAMS is the problem, VALID its valid rows. Compares weights, ids and lists with plain code in double;
 * prints what differs and exits with 1. SPOIL: 1 to 3 what a kernel with a defect could leave, for the checks to see; 0 nothing.
 * emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/router/router.cuh"

struct params {
    KERNEL_PARAMS
};
typedef router_body<params> body;

enum {
    LOGITS = params::EXPERTS,
    ROUTED = LOGITS - params::SHARED_GATE,
    ALL = ROUTED + params::SHARED,
    CHOICES = params::ROUTE_WIDTH / 2,
    CHOSEN = CHOICES - params::SHARED,
    GROUP = ROUTED / params::GROUPS,
    LIST_INTS = params::ROWS * (ALL + 1 + CHOICES),
};

static int counts[2] = {VALID, 1 << 30}, seeds[params::ROWS];
static float logits[params::ROWS * LOGITS], bias[ROUTED], scales[ROUTED];
static guarded<params::ROWS * 2 * CHOICES * 4> out;
static guarded<LIST_INTS * 4> lists;

/* The `count` largest claims of [first, last) are marked; of equal ones the first. */
static void mark(const double *claims, int first, int last, int count, bool *marked)
{
    for (int n = 0; n < count; n++) {
        int best = -1;
        for (int i = first; i < last; i++)
            if (!marked[i] && (best < 0 || claims[i] > claims[best])) best = i;
        marked[best] = true;
    }
}

static void take_other_groups_on_host(double *claims)
{
    double of_group[params::GROUPS];
    bool chosen[params::GROUPS] = {};
    for (int g = 0; g < params::GROUPS; g++) {
        bool best[ROUTED] = {};
        of_group[g] = 0;
        mark(claims, g * GROUP, (g + 1) * GROUP, params::GROUP_SCORE == ROUTER_GROUP_BEST ? 1 : 2, best);
        for (int i = 0; i < ROUTED; i++)
            if (best[i]) of_group[g] += claims[i];
    }
    mark(of_group, 0, params::GROUPS, params::TOP_GROUPS, chosen);
    for (int i = 0; i < ROUTED; i++)
        if (!chosen[i / GROUP]) claims[i] = -1e30;
}

static double sigmoid_on_host(double x) { return 1 / (1 + std::exp(-x)); }

static void expect_row(int row)
{
    const float *own = logits + row * LOGITS;
    double scores[ROUTED], claims[ROUTED], all = 0, chosen = 0;
    bool taken[ROUTED] = {};
    const bool chosen_only = params::SCORE == ROUTER_SOFTMAX_CHOSEN;
    for (int i = 0; i < ROUTED; i++) all += std::exp((double)own[i]);
    for (int i = 0; i < ROUTED; i++) {
        const double logit = (double)own[i];
        scores[i] = params::SCORE == ROUTER_SIGMOID ? sigmoid_on_host(logit) : std::exp(logit) / all;
        claims[i] = (chosen_only ? logit : scores[i]) + (params::HAS_BIAS ? (double)bias[i] : 0);
        if (params::HAS_SEEDS && seeds[row]) claims[i] = (double)router_seeded_claim(seeds[row], i);
    }
    if (params::GROUPS > 1) take_other_groups_on_host(claims);
    mark(claims, 0, ROUTED, CHOSEN, taken);
    for (int i = 0; i < ROUTED; i++) chosen += taken[i] ? scores[i] : 0;
    const bool divided = chosen_only || params::RENORMALISE != ROUTER_AS_THEY_ARE;
    const float *weights = (const float *)out.bytes + row * 2 * CHOICES, *ids = weights + CHOICES;
    for (int c = 0; c < CHOICES; c++) {
        const int id = c < CHOSEN && ids[c] >= 0 && ids[c] < ROUTED ? (int)ids[c] : -1;
        double expected = params::SHARED_GATE ? sigmoid_on_host((double)own[ROUTED]) : 1;
        if (c >= CHOSEN && ids[c] != (float)(ROUTED + c - CHOSEN)) problem("row %d shared id %g", row, (double)ids[c]);
        if (c < CHOSEN) {
            if (id < 0 || !taken[id]) {
                problem("row %d choice %d: expert %g", row, c, (double)ids[c]);
                continue;
            }
            if (c > 0 && !(claims[id] <= claims[(int)ids[c - 1]])) problem("row %d choice %d: order", row, c);
            taken[id] = false; /* once */
            expected = scores[id] / (divided ? chosen : 1) * (double)__int_as_float(params::SCALE_BITS) *
                       (params::HAS_SCALES ? (double)scales[id] : 1);
        }
        if (!(std::fabs((double)weights[c] - expected) <= 1e-5 * expected))
            problem("row %d weight %d: %g, expected %g", row, c, (double)weights[c], expected);
    }
}

static void expect_lists()
{
    const int *begins = (const int *)lists.bytes, *choices = begins + ALL + 1;
    int next = 0;
    for (int expert = 0; expert < ALL; expert++) {
        if (begins[expert] != next) problem("list of expert %d begins at %d", expert, begins[expert]);
        for (int row = 0; row < VALID; row++)
            for (int c = 0; c < CHOICES; c++)
                if (((const float *)out.bytes)[row * 2 * CHOICES + CHOICES + c] == (float)expert &&
                    choices[next++] != row * CHOICES + c)
                    problem("list of expert %d: %d", expert, choices[next - 1]);
    }
    if (begins[ALL] != next || next != VALID * CHOICES) problem("lists end at %d", begins[ALL]);
}

static void run_thread_of_kernel()
{
    body::run((u8 *)shared_memory, counts, logits, (float *)out.bytes, bias, (int *)lists.bytes, seeds, nullptr,
              scales);
}

int main()
{
    memset(logits, 0xff, sizeof logits); /* NaN beyond the valid rows */
    for (int i = 0; i < VALID * LOGITS; i++) logits[i] = draw(-3, 3);
    for (int i = 0; i < ROUTED; i++) bias[i] = draw(-0.5f, 0.5f), scales[i] = draw(0.5f, 2);
    for (int r = 0; r < params::ROWS; r++) seeds[r] = r % 2 ? r + 1 : 0;
    out.poison();
    lists.poison();
    gridDim.x = 1;
    run_block(0, body::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) ((float *)out.bytes)[CHOICES - 1] *= 1.001f;
    if (SPOIL == 2) ((int *)lists.bytes)[ALL + 1] = VALID * CHOICES;
    if (SPOIL == 3) out.after[0] = 0;
    for (int r = 0; r < VALID; r++) expect_row(r);
    expect_lists();
    out.expect_poison("out", VALID * 2 * CHOICES * 4);
    lists.expect_poison("lists", (ALL + 1 + VALID * CHOICES) * 4);
    return problems != 0;
}
