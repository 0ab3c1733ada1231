/* SPDX-License-Identifier: Apache-2.0 */
/* Finishing device plans: the engine's form of every plan of every model with every tactic that the tuner may choose
 * passes the checks that engine_open will make, and kernels are shared between launches that compute alike. */
#include "builder/test_device_model.h"
#include "formats/base/test_program.h"
#include "formats/engine/engine_verify.h"
#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/all_reduce/all_reduce_nccl.h"
#include "kernels/attention/attention_cudnn_build.h"
#include "kernels/matmul/matmul_cublaslt.h"

static const uint32_t decode_rows[] = {1, 4, 8, 9, 32, 64}, prefill_rows[] = {8, 32, 128, 1024};
enum {
    DECODES = sizeof decode_rows / sizeof *decode_rows,
    PREFILLS = sizeof prefill_rows / sizeof *prefill_rows,
    MOST_TACTICS = 64,
};

/* ---- checks of one finished plan ---- */

static void check_chain(const struct plan *plan)
{
    assert_int_equal(plan->header.dependency_count, plan->header.launch_count - 1);
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        assert_int_equal(launch->dependency_count, n > 0);
        if (n > 0) assert_int_equal(plan->dependencies[launch->first_dependency], n - 1);
    }
}

/* Launches that begin early, clusters and tensor maps need compute capability 9.0. */
static void check_gpu_limits(const struct plan *plan, const struct plan_launch *launch, const struct device_facts *gpu,
                             const struct device_kernel *kernel)
{
    bool hopper = gpu->capability >= 90, coresident = strcmp(kernel->name, "all_reduce_two_shot") == 0;
    assert_int_equal(launch->attributes, (hopper ? LAUNCH_PROGRAMMATIC : 0) | (coresident ? LAUNCH_CORESIDENT : 0));
    uint32_t cluster = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
    assert_true(cluster >= 1 && cluster <= (hopper ? 16 : 1));
    assert_true(launch->shared_bytes <= (uint32_t)gpu->shared_per_block);
    for (uint32_t i = 0; i < launch->operand_count; i++)
        if (!hopper) assert_int_equal(plan->operands[launch->first_operand + i].tensor_map, 0);
}

/* Inside its operand to the last element; in the KV pool, whose pages it walks through, a whole number of rows lies
 * between two pages and before the layer's block. */
static void check_tensor_maps(const struct test_device_model *model, const struct plan *plan,
                              const struct plan_launch *launch, const struct device_tactic *tactic)
{
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
        struct plan_tensor_map wanted;
        bool has = tactic->kernel->tensor_map && tactic->kernel->tensor_map(tactic->params, (int)i, &wanted);
        assert_int_equal(operand->tensor_map != 0, has);
        if (!has) continue;
        const struct plan_tensor_map map = plan->tensor_maps[operand->tensor_map - 1];
        assert_memory_equal(&map, &wanted, sizeof map);
        uint64_t element = dtype_bytes((enum dtype)map.dtype), pitch = (uint64_t)map.pitch;
        assert_true((uint64_t)map.columns * element <= pitch);
        if (operand->space == SPACE_KV) {
            assert_int_equal(map.rows, 0);
            assert_int_equal(model->lowering.geometry.page_bytes % pitch, 0);
            assert_int_equal(operand->offset % pitch, 0);
            assert_int_equal(operand->bytes % pitch, 0);
        } else {
            assert_true(map.rows >= 1);
            assert_int_equal((uint64_t)map.rows * pitch, operand->bytes);
        }
    }
}

static void check_launch(const struct test_device_model *model, const struct plan *plan, uint32_t index,
                         const struct device_plan *source, const struct kernel_set *set, const struct device_facts *gpu)
{
    const struct plan_launch *launch = &plan->launches[index];
    const struct device_launch *from = &source->launches[index];
    const struct device_tactic *tactic = &from->tactic;
    struct device_geometry geometry;
    uint64_t bytes, flops;
    assert_int_equal(launch->op, from->op);
    assert_int_equal(launch->layer, from->layer);
    assert_int_equal(launch->tactic, from->record);
    assert_int_equal(launch->reserved, 0);
    assert_int_equal(launch->operand_count, from->operand_count);
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        struct plan_operand operand = plan->operands[launch->first_operand + i];
        operand.tensor_map = 0;
        assert_memory_equal(&operand, &from->operands[i], sizeof operand);
    }
    int64_t params[PLAN_MAX_PARAMS];
    struct status status = {0};
    assert_ptr_equal(tactic->kernel->problem, op_find(launch->op));
    test_expect_success(op_params(plan, launch, tactic->kernel->own_count, params, &status), &status);
    assert_memory_equal(params, tactic->params, (size_t)device_param_count(tactic->kernel) * sizeof *params);
    for (uint32_t i = 0; i < launch->param_count; i++) {
        const struct plan_param *param = &plan->params[launch->first_param + i];
        assert_true(param->id >= OP_LATER_PARAM_ID || (param->value != 0 && param->flags == 0));
    }
    assert_null(tactic->kernel->launch(tactic->params, gpu, &geometry));
    assert_memory_equal(launch->grid, geometry.grid, sizeof launch->grid);
    assert_memory_equal(launch->block, geometry.block, sizeof launch->block);
    assert_memory_equal(launch->cluster, geometry.cluster, sizeof launch->cluster);
    assert_int_equal(launch->shared_bytes, geometry.shared_bytes);
    tactic->kernel->cost(tactic->params, PLAN_COST_CONTEXT, &bytes, &flops);
    assert_int_equal(launch->bytes, bytes);
    assert_int_equal(launch->flops, flops);
    assert_true(launch->kernel < set->count);
    const struct kernel_set_entry *entry = &set->entries[launch->kernel];
    assert_ptr_equal(entry->tactic.kernel, tactic->kernel);
    assert_memory_equal(entry->tactic.params, tactic->params,
                        (size_t)device_param_count(tactic->kernel) * sizeof *tactic->params);
    assert_int_equal(entry->operand_count, launch->operand_count);
    check_gpu_limits(plan, launch, gpu, tactic->kernel);
    check_tensor_maps(model, plan, launch, tactic);
}

static void finish_and_check(const struct test_device_model *model, const struct device_plan *source,
                             const struct device_facts *gpu, struct kernel_set *set)
{
    struct plan plan;
    struct status status = {0};
    struct plan_space_sizes sizes;
    test_expect_success(device_plan_finish(source, gpu, set, &plan, &status), &status);
    assert_int_equal(plan.header.launch_count, source->count);
    test_device_model_sizes(model, &plan.header, &sizes);
    test_expect_success(plan_verify(&plan, &sizes, "plan", &status), &status);
    struct engine engine = {.kernels = kernel_set_view(set), .kernel_count = set->count};
    assert_non_null(engine.kernels);
    for (uint32_t n = 0; n < plan.header.launch_count; n++) {
        if (!engine_verify_device_launch(&engine, &plan, &plan.launches[n], &status))
            fail_msg("%s on '%s', %u rows, launch %u (%s): %s", model->name, gpu->name, plan.header.rows, n,
                     source->launches[n].tactic.kernel->name, status.message);
        check_launch(model, &plan, n, source, set, gpu);
    }
    check_chain(&plan);
    free(engine.kernels);
    plan_free(&plan);
}

/* The plan as lowered, then once more for every tactic of every launch: in round t a launch has tactic t of its own
 * list, or starts from the first again. */
static void check_all_tactics(const struct test_device_model *model, const struct device_facts *gpu,
                              enum plan_kind kind, uint32_t rows)
{
    struct device_plan plan;
    struct kernel_set set = {0};
    struct status status = {0};
    const struct graph *graph = test_device_model_graph(model, kind, rows);
    test_expect_success(lower_device_plan(graph, &model->lowering, gpu, rows, &plan, &status), &status);
    finish_and_check(model, &plan, gpu, &set);
    struct device_tactic(*tactics)[MOST_TACTICS] = calloc(plan.count, sizeof *tactics);
    int *counts = calloc(plan.count, sizeof *counts), most = 0;
    assert_true(tactics && counts);
    for (uint32_t n = 0; n < plan.count; n++) {
        const struct device_launch *launch = &plan.launches[n];
        counts[n] = device_tactics(launch->op, launch->tactic.params, gpu, tactics[n], MOST_TACTICS);
        assert_true(counts[n] >= 1);
        assert_ptr_equal(tactics[n][0].kernel, launch->tactic.kernel);
        assert_memory_equal(tactics[n][0].params, launch->tactic.params, sizeof launch->tactic.params);
        if (counts[n] > most) most = counts[n];
    }
    for (int t = 1; t < most; t++) {
        for (uint32_t n = 0; n < plan.count; n++) {
            plan.launches[n].tactic = tactics[n][t % counts[n]];
            plan.launches[n].record = n;
        }
        finish_and_check(model, &plan, gpu, &set);
    }
    free(tactics);
    free(counts);
    kernel_set_free(&set);
    device_plan_free(&plan);
}

TEST(every_plan_with_every_tactic)
{
    static struct test_device_model model;
    const char *source;
    for (size_t m = 0; (source = test_device_model_source(m)); m++) {
        test_device_model_open(&model, source, m % 2 ? DTYPE_F16 : DTYPE_BF16);
        for (int g = 0; g < TEST_GPUS; g++) {
            const struct device_facts *gpu = &test_gpus[g];
            test_device_model_scratch(&model, gpu, decode_rows, DECODES);
            for (int r = 0; r < DECODES; r++) check_all_tactics(&model, gpu, PLAN_DECODE, decode_rows[r]);
            for (int r = 0; r < PREFILLS; r++) check_all_tactics(&model, gpu, PLAN_PREFILL, prefill_rows[r]);
        }
        test_device_model_close(&model);
    }
}

/* ---- the set of kernels ---- */

TEST(layers_and_plans_share_kernels)
{
    static struct test_device_model model;
    struct device_plan plan;
    struct plan finished;
    struct kernel_set set = {0};
    struct status status = {0};
    const struct device_facts *gpu = &test_gpus[TEST_GPU_90];
    test_device_model_open(&model, test_device_model_source(0), DTYPE_BF16);
    test_device_model_scratch(&model, gpu, decode_rows, DECODES);
    const struct graph *graph = &model.graphs[TEST_SMALL_BATCH];
    test_expect_success(lower_device_plan(graph, &model.lowering, gpu, 1, &plan, &status), &status);
    for (int round = 0; round < 2; round++) {
        test_expect_success(device_plan_finish(&plan, gpu, &set, &finished, &status), &status);
        /* embed, rope_table, qkv, rope_attention, o, gate/up, down, LM head, sample: alike in all three layers. */
        assert_int_equal(set.count, 9);
        for (uint32_t n = 0; n < finished.header.launch_count; n++)
            for (uint32_t o = 0; o < n; o++) {
                const struct device_launch *a = &plan.launches[n], *b = &plan.launches[o];
                bool same = a->tactic.kernel == b->tactic.kernel && a->operand_count == b->operand_count &&
                            memcmp(a->tactic.params, b->tactic.params, sizeof a->tactic.params) == 0;
                assert_int_equal(finished.launches[n].kernel == finished.launches[o].kernel, same);
            }
        plan_free(&finished);
    }
    device_plan_free(&plan);
    kernel_set_free(&set);
    assert_int_equal(set.count, 0);
    test_device_model_close(&model);
}

/* Tunables that are not set are zero, which is illegal for every kernel. */
TEST(kernels_with_tunables_have_candidates)
{
    for (int op = 0; op < OP_COUNT; op++) {
        const struct device_kernel *const *kernels = device_kernels((enum plan_op)op);
        for (int i = 0; kernels && kernels[i]; i++) {
            const struct device_kernel *kernel = kernels[i];
            assert_int_equal(kernel->op, op);
            assert_non_null(op_find((unsigned)op));
            assert_ptr_equal(device_kernel_find(kernel->name), kernel);
            assert_ptr_equal(kernel->problem, op_find((unsigned)op));
            assert_true(device_param_count(kernel) <= PLAN_MAX_PARAMS);
            if (kernel->own_count > 0 && !kernel->candidates)
                fail_msg("kernel '%s' has tunables and no candidates", kernel->name);
        }
    }
}

/* ---- kernels that are none ---- */

static const char *always_legal(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    *geometry = (struct device_geometry){.grid = {1, 1, 1}, .block = {32, 1, 1}, .cluster = {1, 1, 1}};
    return params[0] < 0 ? "the parameter is negative" : NULL;
}

static bool always_mapped(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    (void)params, (void)operand;
    *map = (struct plan_tensor_map){.dtype = DTYPE_BF16, .columns = 8, .rows = 1, .pitch = 16, .box_columns = 8};
    return true;
}

static void no_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)params, (void)context;
    *bytes = *flops = 0;
}

static struct device_kernel made_up(int param_count)
{
    static const char *const own_names[PLAN_MAX_PARAMS] = {"first"};
    return (struct device_kernel){
        .name = "made_up",
        .op = OP_EMBED,
        .own_names = own_names,
        .own_count = param_count,
        .launch = always_legal,
        .tensor_map = always_mapped,
        .cost = no_cost,
    };
}

/* So that a trace knows the cost of a library's call at the step's context. */
TEST(library_calls_are_found_by_name)
{
    const struct device_kernel *const calls[] = {&device_matmul_cublaslt, &device_attention_cudnn,
                                                 &device_all_reduce_nccl, &device_all_gather_nccl};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        assert_true(calls[i]->library != 0 && calls[i]->cost);
        assert_ptr_equal(device_kernel_find(calls[i]->name), calls[i]);
        assert_ptr_equal(calls[i]->problem, op_find(calls[i]->op));
    }
    assert_null(device_kernel_find("no kernel"));
}

static const char *never_legal(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)params, (void)gpu, (void)geometry;
    return "the shape is unusual";
}

/* All kernels of an op race and are asked for a reason, however many they are. */
TEST(an_op_may_have_many_kernels)
{
    enum { KERNELS = 9 };
    struct device_kernel kernels[KERNELS];
    const struct device_kernel *list[KERNELS + 1] = {NULL};
    const struct device_facts *gpu = &test_gpus[TEST_GPU_90];
    struct device_tactic tactics[2 * KERNELS];
    const int64_t params[PLAN_MAX_PARAMS] = {7};
    for (int i = 0; i < KERNELS; i++) {
        kernels[i] = made_up(1);
        list[i] = &kernels[i];
    }
    assert_int_equal(device_tactics_among(list, params, gpu, tactics, 2 * KERNELS), KERNELS);
    for (int i = 0; i < KERNELS; i++) {
        assert_ptr_equal(tactics[i].kernel, list[i]);
        assert_memory_equal(tactics[i].params, params, sizeof params);
    }
    assert_int_equal(device_tactics_among(list, params, gpu, tactics, KERNELS - 1), KERNELS - 1);
    assert_string_equal(device_reason_among(list, params, gpu), "no kernel for this GPU takes its shape");
    kernels[KERNELS - 1].launch = never_legal;
    assert_string_equal(device_reason_among(list, params, gpu), "the shape is unusual");
    assert_int_equal(device_tactics_among(list, params, gpu, tactics, 2 * KERNELS), KERNELS - 1);
    for (int i = 0; i < KERNELS; i++) kernels[i].least_capability = gpu->capability + 1;
    assert_int_equal(device_tactics_among(list, params, gpu, tactics, 2 * KERNELS), 0);
    assert_string_equal(device_reason_among(list, params, gpu), "no kernel runs on this GPU");
}

TEST(kernels_are_told_apart)
{
    const struct device_kernel kernel = made_up(2), other = made_up(2);
    struct kernel_set set = {0};
    struct device_tactic tactic = {.kernel = &kernel, .params = {1, 2, 3}};
    for (int round = 0; round < 2; round++) {
        assert_int_equal(kernel_set_add(&set, &tactic, 4), 0);
        assert_int_equal(kernel_set_add(&set, &tactic, 5), 1); /* as many parameters as the launch has operands */
    }
    tactic.params[2] = 99; /* not one of this kernel's */
    assert_int_equal(kernel_set_add(&set, &tactic, 4), 0);
    tactic.params[1] = 3;
    assert_int_equal(kernel_set_add(&set, &tactic, 4), 2);
    tactic.kernel = &other;
    assert_int_equal(kernel_set_add(&set, &tactic, 4), 3);
    for (uint32_t i = 4; i < 200; i++) { /* the array grows */
        tactic.params[0] = 1000 + i;
        assert_int_equal(kernel_set_add(&set, &tactic, 4), i);
    }
    struct engine_kernel *view = kernel_set_view(&set);
    assert_non_null(view);
    assert_string_equal(view[199].entry, "made_up");
    assert_int_equal(view[1].operand_count, 5);
    assert_null(view[1].cubin);
    free(view);
    kernel_set_free(&set);
    view = kernel_set_view(&set);
    assert_non_null(view);
    free(view);
}

static void count_progress(void *context, uint64_t done, uint64_t total)
{
    uint64_t *last = context;
    last[0] = done;
    last[1] = total;
}

/* What has its code is not compiled again, so that no compiler is needed. */
TEST(compiled_kernels_are_left_alone)
{
    const struct device_kernel kernel = made_up(1);
    for (int threads = 1; threads <= 100; threads += 33) {
        struct kernel_set set = {0};
        struct status status = {0};
        uint64_t progress[2] = {0};
        for (int64_t i = 0; i < 50; i++) {
            struct device_tactic tactic = {.kernel = &kernel, .params = {i}};
            uint32_t at = kernel_set_add(&set, &tactic, 1);
            set.entries[at].cubin = strdup("code");
            set.entries[at].cubin_bytes = 4;
        }
        struct kernel_compiler compiler = {.capability = 90, .threads = threads};
        test_expect_success(kernel_set_compile(&set, &compiler, count_progress, progress, &status), &status);
        kernel_set_free(&compiler.known);
        assert_int_equal(progress[0], 50);
        assert_int_equal(progress[1], 50);
        struct engine_kernel *view = kernel_set_view(&set);
        assert_non_null(view);
        for (int i = 0; i < 50; i++) {
            assert_ptr_equal(view[i].cubin, set.entries[i].cubin);
            assert_int_equal(view[i].cubin_bytes, 4);
        }
        free(view);
        kernel_set_free(&set);
    }
}

TEST(defects_are_told)
{
    enum { OPERANDS = 3 };
    static const struct {
        int param_count;
        int64_t param;
        const char *words; /* NULL: fits */
    } cases[] = {
        {1, -1, "made_up|the parameter is negative"},
        {PLAN_MAX_PARAMS, 0, NULL},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct device_kernel kernel = made_up(cases[c].param_count);
        struct device_launch launches[2] = {{.op = OP_EMBED, .tactic = {.kernel = &kernel}, .operand_count = OPERANDS}};
        for (int i = 1; i < cases[c].param_count; i += 2) launches[0].tactic.params[i] = i;
        launches[0].tactic.params[0] = cases[c].param;
        launches[1] = launches[0];
        const struct device_plan source = {.header = {.kind = PLAN_DECODE},
                                           .vocab_size = 1,
                                           .launches = launches,
                                           .count = 2};
        struct kernel_set set = {0};
        struct status status = {0};
        struct plan plan;
        bool ok = device_plan_finish(&source, &test_gpus[TEST_GPU_90], &set, &plan, &status);
        if (cases[c].words) {
            test_expect_failure(ok, &status, STATUS_INTERNAL, cases[c].words);
            assert_null(plan.launches);
        } else {
            test_expect_success(ok, &status);
            assert_int_equal(plan.launches[1].param_count, PLAN_MAX_PARAMS / 2); /* those that are not 0 */
            assert_int_equal(plan.header.param_count, PLAN_MAX_PARAMS);
            assert_int_equal(plan.header.tensor_map_count, 2 * OPERANDS);
            assert_int_equal(set.count, 1);
            plan_free(&plan);
        }
        kernel_set_free(&set);
    }
}

int main(void) { return test_run(); }
