/* SPDX-License-Identifier: Apache-2.0 */
/* A plan of more tuned problems than one tuning record has values is tuned end to end, and comes back from the cache. On the fake
 * driver and the fake compiler: the program runs itself again with their folders in LD_LIBRARY_PATH. */
#include "kernels/cuda/test_fake_cuda.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"
#include "kernels/rms_norm/rms_norm.h"
#include "tuner/cuda/tune.h"

enum { PROBLEMS = 3 * TUNING_MAX_VALUES, HIDDEN = 4096, PAGE_BYTES = 4096 };

static const char compiler_folder[] = "tests/fake_cuda/compiler";

static const struct manifest manifest = {
    .geometry = {.slots = 1,
                 .max_context = 64,
                 .page_tokens = 16,
                 .pages_per_slot = 4,
                 .page_bytes = PAGE_BYTES,
                 .vocab_size = 64},
    .weights_bytes = HIDDEN * sizeof(float),
    .arena_bytes = 2 * HIDDEN * sizeof(float),
};

struct fixture {
    struct gpus gpus;
    struct kernel_compiler compiler;
    struct vendor_cache vendor_cache;
    struct tactics tactics;
    struct machine machine;
    struct progress progress;
    struct plan_variants variants;
};

/* Norms of as many widths as there are to be problems. */
static void make_plan(struct device_plan *plan)
{
    plan->header =
        (struct plan_header){.kind = PLAN_DECODE, .rows = 1, .out_rows = 1, .arena_bytes = manifest.arena_bytes};
    plan->count = PROBLEMS;
    plan->launches = calloc(PROBLEMS, sizeof *plan->launches);
    assert_non_null(plan->launches);
    for (uint32_t n = 0; n < PROBLEMS; n++) {
        const uint64_t hidden = HIDDEN - 16 * n, bytes = hidden * sizeof(float);
        plan->launches[n] = (struct device_launch){
            .op = OP_RMS_NORM,
            .tactic = {.kernel = &device_rms_norm,
                       .params = {[RMS_NORM_ROWS] = 1,
                                  [RMS_NORM_HIDDEN] = (int64_t)hidden,
                                  [RMS_NORM_WEIGHT_DTYPE] = DTYPE_F32,
                                  [RMS_NORM_OUT_DTYPE] = DTYPE_F32,
                                  [RMS_NORM_COPY_DTYPE] = DTYPE_BF16,
                                  [RMS_NORM_BIAS_DTYPE] = DTYPE_BF16,
                                  [RMS_NORM_FACTOR_DTYPE] = DTYPE_BF16,
                                  [RMS_NORM_PARTS] = 1,
                                  [RMS_NORM_DEVICE_THREADS] = 128}},
            .operand_count = RMS_NORM_OUT + 1,
            .operands = {{.space = SPACE_STEP, .access = ACCESS_READ, .bytes = 2 * sizeof(int32_t)},
                         {.space = SPACE_ARENA, .access = ACCESS_READ, .bytes = bytes},
                         {.space = SPACE_WEIGHTS, .access = ACCESS_READ, .bytes = bytes},
                         {.space = SPACE_ARENA, .access = ACCESS_WRITE, .offset = bytes, .bytes = bytes}},
            .record = PLAN_NO_TACTIC,
            .problem = PLAN_NO_TACTIC,
        };
    }
}

static void open_fixture(struct fixture *f, struct tuning_cache *cache)
{
    struct status status = {0};
    struct device *device = &f->gpus.devices[0];
    memset(f, 0, sizeof *f);
    f->gpus.ranks = 1;
    test_expect_success(device_open(device, 0, &status) && device_enter(device, &status), &status);
    assert_int_equal(device->driver.MemAlloc(&f->gpus.weights[0], manifest.weights_bytes), CU_SUCCESS);
    f->compiler = (struct kernel_compiler){.capability = device->facts.capability, .threads = 2};
    f->compiler.nvrtc = nvrtc_open(device_sources, device_source_count, NULL, &status);
    test_expect_success(f->compiler.nvrtc != NULL, &status);
    f->tactics.cache = cache;
    f->variants.count = 1;
    make_plan(&f->variants.plans[0]);
}

static void close_fixture(struct fixture *f)
{
    plan_variants_free(&f->variants);
    tactics_free(&f->tactics);
    kernel_set_free(&f->compiler.known);
    nvrtc_close(f->compiler.nvrtc);
    gpus_release(&f->gpus);
    device_leave(&f->gpus.devices[0]);
    device_close(&f->gpus.devices[0]);
}

static void tune(struct fixture *f, enum tune_level level)
{
    struct plan_field fields[STEP_FIELD_COUNT];
    struct manifest sized = manifest;
    struct status status = {0};
    assert_true(step_layout(1, 1, manifest.geometry.vocab_size, 0, 0, fields, &sized.step_bytes));
    assert_true(geometry_place_state(&sized.geometry, &sized.state_bytes));
    struct tune_context context = {
        .rig = {.gpus = &f->gpus, .manifest = &sized, .arena_bytes = sized.arena_bytes},
        .compiler = &f->compiler,
        .vendor_cache = &f->vendor_cache,
        .tactics = &f->tactics,
        .machine = &f->machine,
        .progress = &f->progress,
        .level = level,
        .measures = level != TUNE_OFF,
        .plans = &f->variants,
        .plan_count = 1,
    };
    test_expect_success(tune_cuda(&context, &status), &status);
    assert_int_equal(f->variants.count, 1);
    assert_int_equal(f->variants.plans[0].count, PROBLEMS);
}

/* What does not begin with the name of a problem, as keys of problems and of their tactics do. */
static size_t count_plan_records(const struct tactics *tactics)
{
    size_t count = 0;
    for (size_t i = 0; i < tactics->count; i++) count += !strstr(tactics->records[i].key, "rms_norm");
    return count;
}

TEST(a_plan_may_have_any_number_of_problems)
{
    struct tuning_cache cache = {0};
    struct fixture measured, known;
    open_fixture(&measured, &cache);
    tune(&measured, TUNE_QUICK);
    assert_int_equal(measured.tactics.measured, PROBLEMS + 1);
    assert_true(count_plan_records(&measured.tactics) > PROBLEMS / TUNING_MAX_VALUES);

    for (int level = TUNE_OFF; level <= TUNE_QUICK; level++) {
        open_fixture(&known, &cache);
        tune(&known, (enum tune_level)level);
        assert_int_equal(known.tactics.measured, 0);
        assert_int_equal(known.tactics.count, measured.tactics.count);
        assert_int_equal(device_plan_hash(&known.variants.plans[0], 0),
                         device_plan_hash(&measured.variants.plans[0], 0));
        for (uint32_t n = 0; n < PROBLEMS; n++)
            assert_int_equal(known.variants.plans[0].launches[n].record, measured.variants.plans[0].launches[n].record);
        close_fixture(&known);
    }
    close_fixture(&measured);
    tuning_cache_close(&cache);
}

/* A cache that lacks a part of the choice: the plan, and nothing else, is measured again. */
TEST(a_lost_part_costs_the_choice_alone)
{
    struct tuning_cache cache = {0}, lacking = {0};
    struct fixture fixture;
    open_fixture(&fixture, &cache);
    tune(&fixture, TUNE_QUICK);
    close_fixture(&fixture);
    size_t lost = 0;
    for (size_t i = 0; i < cache.count; i++) {
        bool is_part = strncmp(cache.records[i].key, "values ", strlen("values ")) == 0;
        if (is_part && lost++ == 0) continue;
        assert_true(tuning_cache_add(&lacking, &cache.records[i], NULL));
    }
    assert_true(lost > 1);
    open_fixture(&fixture, &lacking);
    tune(&fixture, TUNE_QUICK);
    assert_int_equal(fixture.tactics.measured, 1);
    close_fixture(&fixture);
    tuning_cache_close(&cache);
    tuning_cache_close(&lacking);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    const char *folders = getenv("LD_LIBRARY_PATH");
    if (!folders || !strstr(folders, compiler_folder)) setenv("LD_LIBRARY_PATH", compiler_folder, 1);
    if (!test_with_libraries("tests/fake_cuda/whole", argv, &result)) return result;
    return test_run();
}
