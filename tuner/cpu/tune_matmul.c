/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cpu/tune_matmul.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "tuner/clock.h"
#include "tuner/choose_experts.h"
#include "tuner/race.h"

enum { MAX_CANDIDATES = 96, MEMORY_ALIGNMENT = 64 };

/* A candidate whose predicted time exceeds the best prediction by this factor is not raced. */
static const double model_margin = 1.6;
/* A race stops when the best is within this factor of the roofline. */
static const double good_enough = 1.05;

struct level {
    double budget_us;     /* of one problem */
    uint64_t slice_bytes; /* bytes of the matrix that a measured call reads, at most about ... */
    uint64_t slice_flops; /* ... and operations that it computes, at most about */
    int candidates, repetitions;
};
static const struct level levels[] = {
    [TUNE_OFF] = {0, 0, 0, 1, 0},
    [TUNE_QUICK] = {0.4e6, 64u << 20, UINT64_C(1) << 30, 24, 3},
    [TUNE_FULL] = {4e6, 256u << 20, UINT64_C(8) << 30, MAX_CANDIDATES, 5},
};

void matmul_tuning_key(const int64_t *params, const struct machine *machine, char key[TUNING_KEY_BYTES])
{
    snprintf(key, TUNING_KEY_BYTES,
             "cpu '%s' isa=%s threads=%d revision=%d matmul rows=%" PRId64 " n=%" PRId64 " k=%" PRId64
             " dtype=%s epilogue=%s bias=%" PRId64 " residual=%" PRId64,
             machine->name, cpu_isa_name(machine->isa), machine->threads, MATMUL_REVISION, params[MATMUL_ROWS],
             params[MATMUL_N], params[MATMUL_K], encoding_label(params[MATMUL_DTYPE]),
             epilogue_name(params[MATMUL_EPILOGUE]), params[MATMUL_HAS_BIAS], params[MATMUL_HAS_RESIDUAL]);
    const size_t used = strlen(key);
    if (params[MATMUL_COMPUTE_DTYPE] != DTYPE_F32)
        snprintf(key + used, TUNING_KEY_BYTES - used, " compute=%s", encoding_label(params[MATMUL_COMPUTE_DTYPE]));
    if (params[MATMUL_EXPERTS] > 0) {
        const size_t end = strlen(key);
        snprintf(key + end, TUNING_KEY_BYTES - end, " experts=%" PRId64 " top_k=%" PRId64, params[MATMUL_EXPERTS],
                 matmul_top_k(params));
    }
    if (params[MATMUL_BLOCK_N] > 0) {
        const size_t end = strlen(key);
        snprintf(key + end, TUNING_KEY_BYTES - end, " block_n=%" PRId64, params[MATMUL_BLOCK_N]);
    }
}

double matmul_model_us(const int64_t *params, const struct machine *machine)
{
    uint64_t bytes, flops;
    op_matmul.cost(params, 0, &bytes, &flops);
    /* Rows that each matrix has, on average. */
    int64_t matrices = matmul_matrices_read(params);
    int64_t rows = (matmul_slots(params, params[MATMUL_ROWS]) + matrices - 1) / matrices;
    int64_t panels = (int64_t)panel_count((uint64_t)matmul_expert_n(params));
    int64_t block = params[MATMUL_ROWS_PER_BLOCK] ? params[MATMUL_ROWS_PER_BLOCK] : rows;
    int64_t tile_rows = params[MATMUL_ROWS_PER_TILE] < rows ? params[MATMUL_ROWS_PER_TILE] : rows;
    int64_t tile_panels = params[MATMUL_PANELS_PER_TILE];
    uint64_t weight_bytes =
        (uint64_t)(matrices * panels) * panel_bytes((uint64_t)params[MATMUL_K], params[MATMUL_DTYPE]);

    /* A matrix streams once per block of its rows. */
    int64_t passes = (rows + block - 1) / block;
    bytes += weight_bytes * (uint64_t)(passes - 1);
    /* A tile of p panels and r rows issues p r multiply-adds for p vector loads and r broadcasts. Rows that do not fill
     * the last tile use a smaller tile with a worse ratio, which the second factor models. */
    double ratio = (double)(tile_panels * tile_rows) / (double)(tile_panels * tile_rows + tile_panels + tile_rows);
    int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    double filled = (double)rows / (double)(tiles * tile_rows);
    double compute_flops = (double)flops / (ratio * (0.5 + 0.5 * filled));
    int64_t threads = params[MATMUL_THREADS] ? params[MATMUL_THREADS] : machine->threads;
    if (threads > machine->threads) threads = machine->threads;
    int64_t tasks = (panels + params[MATMUL_PANELS_PER_TASK] - 1) / params[MATMUL_PANELS_PER_TASK];
    if (!matmul_sums_choices(params)) tasks *= matrices;
    /* The last round of tasks may leave members idle. */
    double rounds = (double)((tasks + threads - 1) / threads);
    double imbalance = rounds * (double)threads / (double)tasks;
    double share = (double)threads / machine->threads;
    double us = roofline_us(machine, bytes, (uint64_t)compute_flops);
    return us * imbalance / share;
}

bool matmul_apply_record(const struct tuning_record *record, int64_t *params)
{
    int64_t applied[MATMUL_PARAMS];
    memcpy(applied, params, sizeof applied);
    if (record->value_count != MATMUL_TUNABLES) return false;
    for (int i = 0; i < MATMUL_TUNABLES; i++) {
        const char *name = op_matmul.tunables[i];
        int at = 0;
        while (at < record->value_count && strcmp(record->values[at].name, name) != 0) at++;
        if (at == record->value_count) return false;
        applied[MATMUL_FIRST_TUNABLE + i] = record->values[at].value;
    }
    bool legal = false;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) legal |= !matmul_tunables_illegal(applied, (enum cpu_isa)isa);
    if (legal) memcpy(params, applied, sizeof applied);
    return legal;
}

/* ---- measuring ---- */

enum { CHOICES = 16 }; /* draws of experts that measured calls use in turn */

struct bench {
    const struct matmul_problem *problem;
    struct team *team;
    op_run *run;
    int64_t (*candidates)[MATMUL_TUNABLES];
    const int *raced;              /* index in the race -> candidate */
    int64_t params[MATMUL_PARAMS]; /* parameters of the measured call: those of a slice */
    int32_t counts[2];
    float *x, *out, *workspace;
    float *residual;
    float *routes; /* over experts: [CHOICES, rows, ROUTE_WIDTH] */
    int next_choice;
    double scale;                     /* measured calls that the whole takes */
    uint64_t next_slice, slice_count; /* whole slices of one matrix */
    int next_site;
    struct op_call call;
};

static void run_call(void *argument, struct team_member *member)
{
    struct bench *bench = argument;
    bench->run(&bench->call, member);
}

/* Takes the next slice of the next matrix, over experts other ones of it, so that no call finds data of the previous call in a cache. */
static void choose_weights(struct bench *bench)
{
    const int64_t *params = bench->params;
    uint64_t first_row = bench->next_slice * (uint64_t)params[MATMUL_N];
    const uint8_t *weights = bench->problem->weights[bench->next_site];
    uint64_t row_bytes = panel_bytes((uint64_t)params[MATMUL_K], params[MATMUL_DTYPE]) / PANEL_ROWS;
    bench->call.operands[MATMUL_W] = (void *)(weights + first_row * row_bytes);
    if (params[MATMUL_HAS_BIAS]) {
        const uint8_t *values = bench->problem->biases[bench->next_site];
        uint64_t element_bytes = dtype_bytes((enum dtype)params[MATMUL_BIAS_DTYPE]);
        bench->call.operands[MATMUL_BIAS] = (void *)(values + first_row * element_bytes);
    }
    if (params[MATMUL_EXPERTS] > 0) {
        const int64_t width = params[MATMUL_ROWS] * params[MATMUL_ROUTE_WIDTH];
        bench->call.operands[MATMUL_ROUTES] = bench->routes + bench->next_choice * width;
        bench->next_choice = (bench->next_choice + 1) % CHOICES;
    }
    bench->next_site = (bench->next_site + 1) % bench->problem->site_count;
    if (bench->next_site == 0) bench->next_slice = (bench->next_slice + 1) % bench->slice_count;
}

/* Rows of W that tasks divide: of all matrices where each has tasks of its own. */
static int64_t divided_rows(const int64_t *params)
{
    const bool apart = matmul_matrices(params) > 0 && !matmul_sums_choices(params);
    return matmul_expert_n(params) * (apart ? matmul_matrices_read(params) : 1);
}

/* The candidate scaled to the slice: a thread gets as many tasks as for the whole matrix, each of fewer panels, down to a tile. */
static void set_tunables(struct bench *bench, const int64_t *tunables)
{
    int64_t *params = bench->params, whole = divided_rows(bench->problem->params);
    memcpy(params + MATMUL_FIRST_TUNABLE, tunables, MATMUL_TUNABLES * sizeof *tunables);
    int64_t tile = params[MATMUL_PANELS_PER_TILE];
    int64_t tiles = (params[MATMUL_PANELS_PER_TASK] / tile * divided_rows(params) + whole / 2) / whole;
    params[MATMUL_PANELS_PER_TASK] = tile * (tiles > 0 ? tiles : 1);
}

static double run_candidate(void *context, int index)
{
    struct bench *bench = context;
    set_tunables(bench, bench->candidates[bench->raced[index]]);
    choose_weights(bench);
    double start = clock_us();
    team_run(bench->team, run_call, bench);
    return clock_us() - start;
}

/* How many times as much as a measured call should a launch moves or computes; at least 1. */
static double excess(const int64_t *params, const struct level *level)
{
    uint64_t bytes, flops;
    op_matmul.cost(params, 0, &bytes, &flops);
    const double moved = (double)bytes / (double)level->slice_bytes;
    const double computed = (double)flops / (double)level->slice_flops;
    return moved > computed ? (moved > 1 ? moved : 1) : computed > 1 ? computed : 1;
}

/* Rows of a matrix in a measured call. A multiple of 96 panels divides evenly into every legal tile. */
static int64_t sliced_n(const int64_t *params, const struct level *level)
{
    const int64_t n = matmul_expert_n(params), panels = (int64_t)panel_count((uint64_t)n);
    int64_t keep = (int64_t)((double)panels / excess(params, level)) / 96 * 96;
    if (keep < 96) keep = 96;
    return keep < panels ? keep * PANEL_ROWS : n;
}

/* A measurement takes a part of the problem, so that one call takes milliseconds: time is proportional to panels once they exceed the
 * caches. Over experts it first takes fewer choices of each row from as many fewer experts: each expert has as many rows then, and as
 * unequally, as in the whole. Returns how many times the part the whole is. */
static double take_slice(const int64_t *whole, const struct level *level, int64_t *params)
{
    memcpy(params, whole, MATMUL_PARAMS * sizeof *params);
    if (whole[MATMUL_EXPERTS] > 0) {
        const int64_t top_k = matmul_top_k(whole), fit = (int64_t)((double)top_k / excess(whole, level));
        const int64_t kept = fit > 1 ? fit : 1;
        params[MATMUL_ROUTE_WIDTH] = 2 * kept;
        params[MATMUL_EXPERTS] = whole[MATMUL_EXPERTS] * kept / top_k;
        params[MATMUL_N] = params[MATMUL_EXPERTS] * matmul_expert_n(whole);
    }
    const int64_t n = sliced_n(params, level), rows = params[MATMUL_ROWS], matrices = matmul_matrices(params);
    params[MATMUL_N] = matrices > 0 ? matrices * n : n;
    return (double)(matmul_slots(whole, rows) * matmul_expert_n(whole)) / (double)(matmul_slots(params, rows) * n);
}

static float *random_floats(uint64_t count, uint64_t seed)
{
    uint64_t bytes;
    if (!checked_mul(count, sizeof(float), &bytes) || !checked_align(bytes, MEMORY_ALIGNMENT, &bytes)) return NULL;
    float *values = aligned_alloc(MEMORY_ALIGNMENT, bytes ? bytes : MEMORY_ALIGNMENT);
    for (uint64_t i = 0; values && i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth, MMIX */
        values[i] = (float)((int64_t)seed >> 40) * 0x1p-23f;
    }
    return values;
}

static bool bench_open(struct bench *bench, const struct matmul_problem *problem, struct team *team,
                       const struct machine *machine, const struct level *level, struct status *status)
{
    bench->scale = take_slice(problem->params, level, bench->params);
    const int64_t *params = bench->params;
    const uint64_t rows = (uint64_t)params[MATMUL_ROWS];
    const uint64_t x_floats = rows * (uint64_t)matmul_x_pitch(params);
    const uint64_t out_floats = (uint64_t)(matmul_slots(params, params[MATMUL_ROWS]) * matmul_expert_n(params));
    const uint64_t route_floats = rows * (uint64_t)params[MATMUL_ROUTE_WIDTH];
    bench->slice_count = (uint64_t)(problem->params[MATMUL_N] / params[MATMUL_N]);
    bench->problem = problem;
    bench->team = team;
    bench->run = op_runner(&op_matmul, machine->isa);
    bench->counts[0] = bench->counts[1] = (int32_t)rows;
    bench->x = random_floats(x_floats, 1);
    bench->out = random_floats(out_floats, 2);
    bench->workspace = random_floats(matmul_workspace_bytes(params) / sizeof(float) + 1, 3);
    if (params[MATMUL_HAS_RESIDUAL]) bench->residual = random_floats(out_floats, 4);
    if (route_floats) bench->routes = random_floats(CHOICES * route_floats, 5);
    if (!bench->x || !bench->out || !bench->workspace || (params[MATMUL_HAS_RESIDUAL] && !bench->residual) ||
        (route_floats && !bench->routes))
        return status_fail(status, STATUS_MACHINE, "out of memory while tuning a matmul of %" PRIu64 " rows", rows);
    uint64_t random = 6;
    for (int i = 0; route_floats && i < CHOICES; i++)
        choose_experts(params, &random, bench->routes + (uint64_t)i * route_floats);
    bench->call.params = params;
    bench->call.operands[MATMUL_COUNTS] = bench->counts;
    bench->call.operands[MATMUL_X] = bench->x;
    bench->call.operands[MATMUL_OUT] = bench->out;
    bench->call.operands[MATMUL_WORKSPACE] = bench->workspace;
    bench->call.operands[MATMUL_RESIDUAL] = bench->residual; /* NULL without one */
    return true;
}

static void bench_close(struct bench *bench)
{
    free(bench->x);
    free(bench->out);
    free(bench->workspace);
    free(bench->residual);
    free(bench->routes);
}

/* Keeps candidates whose prediction is near the best one, at most `limit`; the first (the default) always stays. `kept`
 * receives their indices in list order. Returns their number. */
static int prune(const struct matmul_problem *problem, const struct machine *machine,
                 int64_t (*candidates)[MATMUL_TUNABLES], int count, int limit, int kept[])
{
    double predicted[MAX_CANDIDATES], best = 0;
    int64_t params[MATMUL_PARAMS];
    memcpy(params, problem->params, sizeof params);
    for (int c = 0; c < count; c++) {
        memcpy(params + MATMUL_FIRST_TUNABLE, candidates[c], MATMUL_TUNABLES * sizeof(int64_t));
        predicted[c] = matmul_model_us(params, machine);
        if (c == 0 || predicted[c] < best) best = predicted[c];
    }
    int survivors = 0;
    for (int c = 0; c < count && survivors < limit; c++)
        if (c == 0 || predicted[c] <= best * model_margin) kept[survivors++] = c;
    return survivors;
}

/* The default first, then the listed candidates that differ from it. */
static int list_candidates(const int64_t *params, const struct machine *machine, int64_t (*candidates)[MATMUL_TUNABLES])
{
    matmul_default_tunables(params, machine->isa, machine->threads, candidates[0]);
    int listed = matmul_candidates(params, machine->isa, machine->threads, candidates + 1, MAX_CANDIDATES - 1);
    int count = 1;
    for (int c = 1; c <= listed; c++)
        if (memcmp(candidates[c], candidates[0], sizeof candidates[0]) != 0)
            memmove(candidates[count++], candidates[c], sizeof candidates[0]);
    return count;
}

static int fill_values(const int64_t *tunables, struct tuning_value values[TUNING_MAX_VALUES])
{
    for (int i = 0; i < MATMUL_TUNABLES; i++) {
        snprintf(values[i].name, TUNING_NAME_BYTES, "%s", op_matmul.tunables[i]);
        values[i].value = tunables[i];
    }
    return MATMUL_TUNABLES;
}

/* The measured ceiling is one of float32 multiply-adds, which products of rounded activations pass: memory alone bounds those. */
static uint64_t bounded_flops(const int64_t *params, uint64_t flops)
{
    return params[MATMUL_COMPUTE_DTYPE] == ENCODING_F32 ? flops : 0;
}

static void fill_record(struct tuning_record *record, const int64_t *params, const int64_t *values,
                        const struct machine *machine, const char *level)
{
    memset(record, 0, sizeof *record);
    matmul_tuning_key(params, machine, record->key);
    record->value_count = fill_values(values, record->values);
    op_matmul.cost(params, 0, &record->bytes, &record->flops);
    record->roofline_us = roofline_us(machine, record->bytes, bounded_flops(params, record->flops));
    snprintf(record->level, sizeof record->level, "%s", level);
    record->candidates = 1;
}

static struct race_options race_options_for(const struct level *level)
{
    return (struct race_options){.budget_us = level->budget_us, .first_repetitions = level->repetitions};
}

double tune_matmul_expected_us(const struct matmul_problem *problem, const struct machine *machine,
                               enum tune_level level)
{
    int64_t candidates[MAX_CANDIDATES][MATMUL_TUNABLES], params[MATMUL_PARAMS];
    int kept[MAX_CANDIDATES];
    if (level == TUNE_OFF || problem->site_count == 0) return 0;
    int raced = prune(problem, machine, candidates, list_candidates(problem->params, machine, candidates),
                      levels[level].candidates, kept);
    double scale = take_slice(problem->params, &levels[level], params);
    memcpy(params, problem->params, sizeof params);
    memcpy(params + MATMUL_FIRST_TUNABLE, candidates[0], sizeof candidates[0]);
    const struct race_options options = race_options_for(&levels[level]);
    return race_expected_us(raced, matmul_model_us(params, machine) / scale, &options);
}

bool tune_matmul(const struct matmul_problem *problem, const struct machine *machine, struct team *team,
                 enum tune_level level, struct tuning_record *record, struct status *status)
{
    int64_t candidates[MAX_CANDIDATES][MATMUL_TUNABLES];
    int kept[MAX_CANDIDATES];
    int count = list_candidates(problem->params, machine, candidates);
    fill_record(record, problem->params, candidates[0], machine, tune_level_name(level));
    if (level == TUNE_OFF || problem->site_count == 0) {
        snprintf(record->level, sizeof record->level, "%s", tune_level_name(TUNE_OFF));
        record->roofline_us = 0; /* nothing is measured, so that the record is the same on every run */
        return true;
    }
    bool ok = false;
    struct bench bench = {.candidates = candidates, .raced = kept};
    struct race_result *result = malloc(sizeof *result);
    if (!result) {
        status_fail(status, STATUS_MACHINE, "out of memory while tuning");
        goto done;
    }
    if (!bench_open(&bench, problem, team, machine, &levels[level], status)) goto done;
    int raced = prune(problem, machine, candidates, count, levels[level].candidates, kept);
    struct race_options options = race_options_for(&levels[level]);
    options.floor_us = record->roofline_us / bench.scale;
    options.good_enough = level == TUNE_FULL ? 0 : good_enough;
    race(run_candidate, &bench, raced, &options, result);
    const struct race_entry *winner = &result->entries[result->winner];
    fill_record(record, problem->params, candidates[kept[result->winner]], machine, tune_level_name(level));
    record->median_us = winner->median_us * bench.scale;
    record->spread_us = winner->spread_us * bench.scale;
    if (result->runner_up >= 0) {
        record->runner_up_count = fill_values(candidates[kept[result->runner_up]], record->runner_up);
        record->runner_up_us = result->entries[result->runner_up].median_us * bench.scale;
    }
    record->candidates = (uint32_t)raced;
    ok = true;
done:
    bench_close(&bench);
    free(result);
    return ok;
}

/* ---- printing the space ---- */

static void print_candidate(const int64_t *params, const struct machine *machine, FILE *out)
{
    for (int i = MATMUL_FIRST_TUNABLE; i < MATMUL_PARAMS; i++)
        fprintf(out, "%s=%" PRId64 " ", op_cpu_param_name(&op_matmul, i), params[i]);
    const char *reason = matmul_tunables_illegal(params, machine->isa);
    if (reason)
        fprintf(out, "illegal: %s\n", reason);
    else
        fprintf(out, "legal, predicted %.1f us\n", matmul_model_us(params, machine));
}

void matmul_print_space(const int64_t *problem, const struct machine *machine, FILE *out)
{
    /* The cross product of the legal values (kernels/matmul/matmul.h). */
    static const int64_t panels[] = {1, 2, 3, 4, 6, 8}, rows[] = {1, 2, 3, 4, 6, 8, 12};
    int64_t params[MATMUL_PARAMS];
    memcpy(params, problem, sizeof params);
    matmul_default_tunables(problem, machine->isa, machine->threads, params + MATMUL_FIRST_TUNABLE);
    char key[TUNING_KEY_BYTES];
    matmul_tuning_key(params, machine, key);
    fprintf(out, "# %s: register tiles (the rest as in the default)\n", key);
    int64_t task = params[MATMUL_PANELS_PER_TASK];
    for (size_t p = 0; p < sizeof panels / sizeof *panels; p++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            params[MATMUL_PANELS_PER_TILE] = panels[p];
            params[MATMUL_ROWS_PER_TILE] = rows[r];
            params[MATMUL_PANELS_PER_TASK] = task < panels[p] ? panels[p] : task / panels[p] * panels[p];
            print_candidate(params, machine, out);
        }
    int64_t candidates[MAX_CANDIDATES][MATMUL_TUNABLES];
    int count = list_candidates(problem, machine, candidates);
    fprintf(out, "# candidates raced (subject to the cost model's pruning)\n");
    for (int c = 0; c < count; c++) {
        memcpy(params + MATMUL_FIRST_TUNABLE, candidates[c], sizeof candidates[c]);
        print_candidate(params, machine, out);
    }
}
