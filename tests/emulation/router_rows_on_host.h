/* SPDX-License-Identifier: Apache-2.0 */
/* What a router makes of logits, by plain code in double. Included in the namespace of a case, after `router_problem`, the parameters of
 * router_body. No include guard. */

enum {
    LOGITS = router_problem::EXPERTS,
    ROUTED = LOGITS - router_problem::SHARED_GATE,
    ALL = ROUTED + router_problem::SHARED,
    CHOICES = router_problem::ROUTE_WIDTH / 2,
    CHOSEN = CHOICES - router_problem::SHARED,
    GROUP = ROUTED / router_problem::GROUPS,
};

static int seeds[router_problem::ROWS];
static float bias[ROUTED], scales[ROUTED];
static guarded<router_problem::ROWS * 2 * CHOICES * 4> out;
static guarded<router_problem::ROWS *(ALL + 1 + CHOICES) * 4> lists;

static void draw_router()
{
    for (int i = 0; i < ROUTED; i++) bias[i] = draw(-0.5f, 0.5f), scales[i] = draw(0.5f, 2);
    for (int r = 0; r < router_problem::ROWS; r++) seeds[r] = r % 2 ? r + 1 : 0;
    out.poison();
    lists.poison();
}

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
    double of_group[router_problem::GROUPS];
    bool chosen[router_problem::GROUPS] = {};
    for (int g = 0; g < router_problem::GROUPS; g++) {
        bool best[ROUTED] = {};
        of_group[g] = 0;
        mark(claims, g * GROUP, (g + 1) * GROUP, router_problem::GROUP_SCORE == ROUTER_GROUP_BEST ? 1 : 2, best);
        for (int i = 0; i < ROUTED; i++)
            if (best[i]) of_group[g] += claims[i];
    }
    mark(of_group, 0, router_problem::GROUPS, router_problem::TOP_GROUPS, chosen);
    for (int i = 0; i < ROUTED; i++)
        if (!chosen[i / GROUP]) claims[i] = -1e30;
}

static double sigmoid_on_host(double x) { return 1 / (1 + std::exp(-x)); }

/* `own`: of a row. `error`: of weights, relative. */
static void expect_row(int row, const float *own, double error)
{
    double scores[ROUTED], claims[ROUTED], all = 0, chosen = 0;
    bool taken[ROUTED] = {};
    const bool chosen_only = router_problem::SCORE == ROUTER_SOFTMAX_CHOSEN;
    for (int i = 0; i < ROUTED; i++) all += std::exp((double)own[i]);
    for (int i = 0; i < ROUTED; i++) {
        const double logit = (double)own[i];
        scores[i] = router_problem::SCORE == ROUTER_SIGMOID ? sigmoid_on_host(logit) : std::exp(logit) / all;
        claims[i] = (chosen_only ? logit : scores[i]) + (router_problem::HAS_BIAS ? (double)bias[i] : 0);
        if (router_problem::HAS_SEEDS && seeds[row]) claims[i] = (double)router_seeded_claim(seeds[row], i);
    }
    if (router_problem::GROUPS > 1) take_other_groups_on_host(claims);
    mark(claims, 0, ROUTED, CHOSEN, taken);
    for (int i = 0; i < ROUTED; i++) chosen += taken[i] ? scores[i] : 0;
    const bool divided = chosen_only || router_problem::RENORMALISE != ROUTER_AS_THEY_ARE;
    const float *weights = (const float *)out.bytes + row * 2 * CHOICES, *ids = weights + CHOICES;
    for (int c = 0; c < CHOICES; c++) {
        const int id = c < CHOSEN && ids[c] >= 0 && ids[c] < ROUTED ? (int)ids[c] : -1;
        double expected = router_problem::SHARED_GATE ? sigmoid_on_host((double)own[ROUTED]) : 1;
        if (c >= CHOSEN && ids[c] != (float)(ROUTED + c - CHOSEN)) problem("row %d shared id %g", row, (double)ids[c]);
        if (c < CHOSEN) {
            if (id < 0 || !taken[id]) {
                problem("row %d choice %d: expert %g", row, c, (double)ids[c]);
                continue;
            }
            const int before = c > 0 ? (int)ids[c - 1] : id;
            if (!(claims[id] <= claims[before]) || (claims[id] == claims[before] && id < before))
                problem("row %d choice %d: order", row, c);
            taken[id] = false; /* once */
            expected = scores[id] / (divided ? chosen : 1) * (double)__int_as_float(router_problem::SCALE_BITS) *
                       (router_problem::HAS_SCALES ? (double)scales[id] : 1);
        }
        if (!(std::fabs((double)weights[c] - expected) <= error * expected))
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
