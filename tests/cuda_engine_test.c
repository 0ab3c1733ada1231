/* SPDX-License-Identifier: Apache-2.0 */
/* A whole device engine, from the builder's lowering through the file to the executor, with the fake driver: the
 * program runs itself again with the fake's folder in LD_LIBRARY_PATH. */
#include "builder/arch/arch.h"
#include "formats/base/test_program.h"
#include "tests/test_lowered_engine.h"
#include "kernels/cuda/test_fake_cuda.h"

#include <dlfcn.h>

#include "builder/weights/source.h"
#include "kernels/cuda/executor.h"
#include "kernels/matmul/weight_layout.h"
#include "tests/fake_cuda/fake_cuda.h"

static const char fake_folder[] = "tests/fake_cuda/whole";

static struct test_fake_cuda fake;

static int set_up(void **state)
{
    fake = test_fake_cuda_find();
    return lowered_engine_build(state);
}

static int begin(void **state)
{
    test_fake_cuda_begin(&fake);
    return 0;
}

static int64_t lost; /* objects whose context could not be entered to free them */

/* No test may leak resources. */
static int end(void **state)
{
    assert_int_equal(fake.live(-1), lost);
    return 0;
}

/* ---- an engine with memory on the device ---- */

enum { KV_PAGES = 7 };

struct loaded {
    struct engine engine;
    struct device device;
    struct cuda_memory memory;
};

static void open_device(struct loaded *loaded)
{
    struct status status = {0};
    test_expect_success(device_open(&loaded->device, 0, &status), &status);
    const struct manifest *manifest = &loaded->engine.manifest;
    struct cuda_memory *memory = &loaded->memory;
    memory->bytes[SPACE_WEIGHTS] = manifest->weights_bytes;
    memory->bytes[SPACE_ARENA] = manifest->arena_bytes;
    memory->bytes[SPACE_KV] = KV_PAGES * manifest->geometry.page_bytes;
    memory->bytes[SPACE_STEP] = manifest->step_bytes;
    memory->bytes[SPACE_STATE] = manifest->state_bytes;
    assert_true(device_enter(&loaded->device, &status));
    for (int space = SPACE_WEIGHTS; space <= SPACE_STATE; space++) /* one rank */
        assert_int_equal(loaded->device.driver.MemAlloc(&memory->base[space], memory->bytes[space]), CU_SUCCESS);
    device_leave(&loaded->device);
}

static void shut_device(struct loaded *loaded)
{
    struct status status = {0};
    assert_true(device_enter(&loaded->device, &status));
    for (int space = SPACE_WEIGHTS; space <= SPACE_STATE; space++) /* one rank */
        assert_int_equal(loaded->device.driver.MemFree(loaded->memory.base[space]), CU_SUCCESS);
    device_leave(&loaded->device);
    device_close(&loaded->device);
}

static void load_file(struct loaded *loaded, const char *path)
{
    struct status status = {0};
    memset(loaded, 0, sizeof *loaded);
    test_expect_success(engine_open(&loaded->engine, path, &status), &status);
    open_device(loaded);
}

static void unload(struct loaded *loaded)
{
    shut_device(loaded);
    engine_close(&loaded->engine);
}

/* ---- what the fake sees ---- */

/* The launches of one replay of a plan. The fake's lock is held while a kernel runs, so defects are only noted. */
struct watch {
    const struct loaded *loaded;
    const struct plan *plan;
    uint32_t next;
    char fault[256];
};

static const char *argument_fault(const struct watch *watch, const struct plan_launch *launch, uint32_t i,
                                  const void *argument)
{
    const struct plan_operand *operand = &watch->plan->operands[launch->first_operand + i];
    const struct cuda_memory *memory = &watch->loaded->memory;
    uint64_t found[6], address = memory->base[operand->space] + operand->offset;
    memcpy(found, argument, operand->tensor_map ? sizeof found : sizeof found[0]);
    if (found[0] != address) return "address";
    if (!operand->tensor_map) return NULL;
    struct plan_tensor_map map;
    map = watch->plan->tensor_maps[operand->tensor_map - 1];
    uint64_t rows = (uint64_t)map.rows;
    if (operand->space == SPACE_KV) /* the whole pool from the layer's block on */
        rows = (memory->bytes[SPACE_KV] - operand->offset) / (uint64_t)map.pitch;
    uint64_t expected[6] =
        {address, (uint64_t)map.columns, rows, (uint64_t)map.pitch, (uint64_t)map.box_columns, (uint64_t)map.box_rows};
    return memcmp(found, expected, sizeof found) == 0 ? NULL : "tensor map";
}

static void see(const char *entry, void *const *arguments, const unsigned grid[3], const unsigned block[3],
                void *context)
{
    struct watch *watch = context;
    uint32_t index = watch->next++;
    const char *what = NULL;
    if (watch->fault[0]) return;
    if (index >= watch->plan->header.launch_count) {
        snprintf(watch->fault, sizeof watch->fault, "'%s' is one launch too many", entry);
        return;
    }
    const struct plan_launch *launch = &watch->plan->launches[index];
    const struct engine_kernel *kernel = &watch->loaded->engine.kernels[launch->kernel];
    if (strcmp(entry, kernel->entry) != 0) what = "kernel";
    if (memcmp(grid, launch->grid, sizeof launch->grid) != 0) what = "grid";
    if (memcmp(block, launch->block, sizeof launch->block) != 0) what = "block";
    for (uint32_t i = 0; !what && i < launch->operand_count; i++) what = argument_fault(watch, launch, i, arguments[i]);
    if (what)
        snprintf(watch->fault, sizeof watch->fault, "launch %u (%s): another %s than planned, kernel '%s'", index,
                 plan_op_name(launch->op), what, entry);
}

static void learn_all(const struct engine *engine, fake_cuda_kernel *kernel, void *context)
{
    for (size_t i = 0; i < engine->kernel_count; i++) fake.learn(engine->kernels[i].entry, kernel, context);
}

static void expect_all_seen(const struct watch *watch)
{
    if (watch->fault[0]) fail_msg("%s", watch->fault);
    assert_int_equal(watch->next, watch->plan->header.launch_count);
}

/* ---- tests ---- */

TEST(the_file_opens)
{
    struct engine engine;
    struct status status = {0};
    static const struct {
        uint32_t kind, rows;
    } plans[] = {{PLAN_DECODE, 1},  {PLAN_DECODE, 2},  {PLAN_DECODE, 4},  {PLAN_DECODE, 8},
                 {PLAN_DECODE, 16}, {PLAN_PREFILL, 8}, {PLAN_PREFILL, 64}};
    test_expect_success(engine_open(&engine, lowered_engine_path(), &status), &status);
    test_expect_success(engine_verify_weights(&engine, 0, engine.weight_chunks, &status), &status);
    assert_int_equal(engine.manifest.target, TARGET_CUDA);
    assert_int_equal(engine.manifest.target_capability, 90);
    assert_int_equal(engine.manifest.weight_encoding, ENCODING_BF16);
    assert_int_equal(engine.manifest.kv_dtype, ENCODING_BF16);
    assert_int_equal(engine.manifest.geometry.page_tokens, 64);
    assert_true(engine.manifest.has_tokenizer && engine.tokenizer);
    assert_int_equal(engine.golden.token_count, 0);
    assert_int_equal(engine.plan_count, sizeof plans / sizeof *plans);
    size_t used = 0;
    bool *is_used = calloc(engine.kernel_count, sizeof *is_used);
    assert_non_null(is_used);
    for (size_t p = 0; p < engine.plan_count; p++) {
        const struct plan *plan = &engine.plans[p];
        assert_int_equal(plan->header.kind, plans[p].kind);
        assert_int_equal(plan->header.rows, plans[p].rows);
        for (uint32_t n = 0; n < plan->header.launch_count; n++) {
            used += !is_used[plan->launches[n].kernel];
            is_used[plan->launches[n].kernel] = true;
        }
    }
    assert_int_equal(used, engine.kernel_count);
    free(is_used);
    engine_close(&engine);
}

/* Weights in their original order are the checkpoint's bytes. */
TEST(weights_are_the_checkpoints)
{
    static const char *const names[] = {"model.embed_tokens.weight", "model.norm.weight",
                                        "model.layers.4.mlp.down_proj.weight",
                                        "model.layers.0.self_attn.o_proj.weight"};
    struct engine engine;
    struct checkpoint checkpoint;
    struct status status = {0};
    test_expect_success(engine_open(&engine, lowered_engine_path(), &status), &status);
    test_expect_success(checkpoint_open(&checkpoint, "tests/models/fables", false, arch_read_config, &status), &status);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct tensor_view *tensor = checkpoint_find(&checkpoint, names[i]);
        const struct engine_tensor *found = NULL;
        for (size_t t = 0; t < engine.tensor_count; t++)
            if (strcmp(engine.tensors[t].name, names[i]) == 0) found = &engine.tensors[t];
        assert_true(tensor && found);
        assert_int_equal(found->layout, LAYOUT_ROW_MAJOR);
        assert_int_equal(found->bytes, tensor->bytes);
        assert_memory_equal(engine.weights + found->offset, tensor->data, tensor->bytes);
    }
    checkpoint_close(&checkpoint);
    engine_close(&engine);
}

TEST(same_input_same_bytes)
{
    enum { MOST_BYTES = 64 << 20 };
    struct lowered_engine engine;
    struct status status = {0};
    char *folder = test_folder(), *first = NULL, *second = NULL;
    size_t first_size, second_size;
    lowered_engine_init(&engine);
    lowered_engine_write(&engine, test_path(folder, "again.eng"));
    test_expect_success(file_read(lowered_engine_path(), MOST_BYTES, &first, &first_size, &status), &status);
    bool ok = file_read(test_path(folder, "again.eng"), MOST_BYTES, &second, &second_size, &status);
    test_expect_success(ok, &status);
    assert_int_equal(first_size, second_size);
    assert_memory_equal(first, second, first_size);
    free(first);
    free(second);
    test_folder_remove(folder);
}

/* Every plan, replayed twice as a graph, then launch by launch. */
static void run_every_plan(const char *path)
{
    struct loaded loaded;
    struct cuda_kernels kernels;
    struct status status = {0};
    load_file(&loaded, path);
    const struct engine *engine = &loaded.engine;
    bool ok = cuda_kernels_load(&kernels, &loaded.device, engine->kernels, engine->kernel_count, &status);
    test_expect_success(ok, &status);
    for (size_t p = 0; p < engine->plan_count; p++) {
        const struct plan *plan = &engine->plans[p];
        struct cuda_plan bound;
        ok = cuda_plan_bind(&bound, &loaded.device, &kernels, plan, &loaded.memory, "the plan", &status);
        test_expect_success(ok, &status);
        assert_int_equal(bound.launch_count, plan->header.launch_count);
        for (int replay = 0; replay < 3; replay++) {
            struct watch watch = {.loaded = &loaded, .plan = plan};
            double launch_us[256];
            uint64_t before = fake.kernels();
            learn_all(engine, see, &watch);
            assert_true(plan->header.launch_count <= 256);
            ok = replay < 2 ? cuda_plan_launch(&bound, &loaded.device, &status)
                            : cuda_plan_run_timed(&loaded.device, &kernels, plan, &loaded.memory, launch_us, &status);
            test_expect_success(ok, &status);
            expect_all_seen(&watch);
            assert_int_equal(fake.kernels() - before, plan->header.launch_count);
        }
        learn_all(engine, NULL, NULL);
        cuda_plan_free(&bound, &loaded.device);
    }
    cuda_kernels_free(&kernels, &loaded.device);
    unload(&loaded);
    assert_int_equal(fake.misuse(), 0);
}

TEST(every_plan_runs_as_planned) { run_every_plan(lowered_engine_path()); }

/* What panels say of a matrix is what its codes were made of, about. */
static void expect_near(const struct engine *engine, const struct engine_tensor *tensor,
                        const struct checkpoint *checkpoint)
{
    const uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
    const struct tensor_view *source = checkpoint_find(checkpoint, tensor->name);
    struct panel_form form;
    assert_true(weight_layout_form(tensor->layout, (int64_t)tensor->dtype, &form));
    if (!source) return; /* of several tensors */
    float *values = malloc(columns * sizeof *values);
    double errors = 0, squares = 0;
    assert_non_null(values);
    for (uint64_t row = 0; row < rows; row++) {
        panel_read(&form, engine->weights + tensor->offset, row, columns, 0, columns, values);
        for (uint64_t k = 0; k < columns; k++) {
            const float wanted = source_tensor_element(source, row * columns + k);
            errors += (double)(values[k] - wanted) * (values[k] - wanted);
            squares += (double)wanted * wanted;
        }
    }
    free(values);
    if (!(errors > 0 && errors < 0.02 * squares))
        fail_msg("%s: squared errors are %g of %g", tensor->name, errors, squares);
}

/* The table is also the LM head. */
TEST(an_engine_of_codes)
{
    static const enum encoding_id encodings[] = {ENCODING_INT4_G32, ENCODING_NVFP4, ENCODING_INT8_CHANNEL};
    struct checkpoint checkpoint;
    struct status status = {0};
    char *folder = test_folder();
    test_expect_success(checkpoint_open(&checkpoint, "tests/models/fables", false, arch_read_config, &status), &status);
    for (size_t e = 0; e < sizeof encodings / sizeof *encodings; e++) {
        struct lowered_engine wanted;
        struct engine engine;
        int matrices = 0;
        lowered_engine_init(&wanted);
        wanted.matrices = encodings[e];
        lowered_engine_write(&wanted, test_path(folder, "coded.eng"));
        test_expect_success(engine_open(&engine, test_path(folder, "coded.eng"), &status), &status);
        assert_int_equal(engine.manifest.weight_encoding, encodings[e]);
        for (size_t t = 0; t < engine.tensor_count; t++) {
            const struct engine_tensor *tensor = &engine.tensors[t];
            assert_int_equal(tensor->layout, tensor->rank == 2 ? LAYOUT_FRAGMENT16 : LAYOUT_ROW_MAJOR);
            if (tensor->rank != 2) continue;
            assert_int_equal(tensor->dtype, encodings[e]);
            expect_near(&engine, tensor, &checkpoint);
            matrices++;
        }
        assert_int_equal(matrices, 21);
        engine_close(&engine);
        run_every_plan(test_path(folder, "coded.eng"));
    }
    checkpoint_close(&checkpoint);
    test_folder_remove(folder);
}

/* Loads kernels, binds and replays a decode and a prefill plan, and releases all. */
static bool try_everything(struct loaded *loaded, struct status *status)
{
    enum { PLANS = 2 };
    const struct engine *engine = &loaded->engine;
    const struct plan *plans[PLANS] = {&engine->plans[0], &engine->plans[engine->plan_count - 1]};
    struct cuda_kernels kernels;
    struct cuda_plan bound[PLANS] = {{0}};
    bool ok = cuda_kernels_load(&kernels, &loaded->device, engine->kernels, engine->kernel_count, status);
    for (int p = 0; ok && p < PLANS; p++)
        ok = cuda_plan_bind(&bound[p], &loaded->device, &kernels, plans[p], &loaded->memory, "the plan", status);
    for (int p = 0; ok && p < PLANS; p++) ok = cuda_plan_launch(&bound[p], &loaded->device, status);
    for (int p = 0; p < PLANS; p++) cuda_plan_free(&bound[p], &loaded->device);
    cuda_kernels_free(&kernels, &loaded->device);
    return ok;
}

/* Every call of the driver fails once, from loading the kernels to releasing all. Few plans keep the number of calls
 * small. */
TEST(each_call_failing)
{
    struct lowered_engine small;
    struct loaded loaded;
    char *folder = test_folder();
    lowered_engine_init(&small);
    small.decode_rows[1] = small.prefill_rows[1] = 0;
    lowered_engine_write(&small, test_path(folder, "small.eng"));
    load_file(&loaded, test_path(folder, "small.eng"));
    const struct engine *engine = &loaded.engine;
    uint64_t launches = engine->plans[0].header.launch_count + engine->plans[1].header.launch_count;
    const uint64_t before = fake.calls(); /* that open the device and allocate its memory */
    uint64_t failures = 0, lost_calls = 0, calls = UINT64_MAX;
    shut_device(&loaded);
    for (uint64_t call = before + 1; call <= calls; call++) {
        struct status status = {0};
        test_fake_cuda_set(&fake, "FAKE_CUDA_FAIL_CALL", call);
        open_device(&loaded);
        assert_int_equal(fake.calls(), before);
        int64_t alive = fake.live(-1);
        bool ok = try_everything(&loaded, &status);
        assert_int_equal(status.code, ok ? STATUS_OK : STATUS_MACHINE);
        if (!ok && !strstr(status.message, "CUDA_ERROR_UNKNOWN (unknown error)"))
            fail_msg("call %llu: %s", (unsigned long long)call, status.message);
        failures += !ok;
        if (fake.live(-1) != alive) { /* it was the call that enters the context to release resources */
            assert_true(ok && fake.live(-1) > alive);
            lost_calls++;
            lost += fake.live(-1) - alive;
            alive = fake.live(-1);
        }
        if (fake.calls() < call) { /* the failure is still to come: all calls were made */
            calls = call;
            assert_false(try_everything(&loaded, &status));
        }
        /* A failure has no lasting effect: the next try on the same device works. */
        if (!ok || call == calls) {
            uint64_t ran = fake.kernels();
            test_expect_success(try_everything(&loaded, &status), &status);
            assert_int_equal(fake.kernels() - ran, launches);
        }
        assert_int_equal(fake.live(-1), alive);
        assert_int_equal(fake.misuse(), 0);
        shut_device(&loaded);
        assert_int_equal(fake.live(-1), lost);
    }
    assert_true(lost_calls <= 3); /* two plans and the kernels */
    /* A kernel: load, look up, read two attributes, set two, function, a query for each parameter (a failed one marks
     * the end). A launch: its node, its tensor maps. Clusters are additional. */
    uint64_t least = 7 * engine->kernel_count + launches;
    for (size_t i = 0; i < engine->kernel_count; i++) least += engine->kernels[i].operand_count;
    for (int p = 0; p < 2; p++)
        for (uint32_t o = 0; o < engine->plans[p].header.operand_count; o++)
            least += engine->plans[p].operands[o].tensor_map != 0;
    assert_true(failures >= least);
    engine_close(&loaded.engine);
    test_folder_remove(folder);
}

/* ---- code that does not fit ---- */

static void expect_load_refused(const struct loaded *loaded, const struct engine_kernel *kernel, enum status_code code,
                                const char *words)
{
    struct cuda_kernels kernels;
    struct status status = {0};
    const struct engine_kernel both[2] = {loaded->engine.kernels[0], *kernel};
    int64_t alive = fake.live(-1);
    bool ok = cuda_kernels_load(&kernels, &loaded->device, both, 2, &status);
    test_expect_failure(ok, &status, code, words);
    assert_null(kernels.kernels);
    assert_int_equal(kernels.count, 0);
    assert_int_equal(fake.live(-1), alive);
    cuda_kernels_free(&kernels, &loaded->device);
}

TEST(wrong_code_is_refused)
{
    static const struct {
        const char *entry, *cubin;
        uint32_t operand_count;
        enum status_code code;
        const char *words;
    } cases[] = {
        {"twice", "FAKE CUBIN 80\nkernel twice 8 8\nend\n", 2, STATUS_VERSION,
         "twice|for another GPU|compute capability 9.0|build the engine on this machine"},
        {"twice", "not a cubin", 2, STATUS_CORRUPT, "twice|loading its code|CUDA_ERROR_INVALID_IMAGE"},
        {"twice", "FAKE CUBIN 90\nkernel thrice 8 8\nend\n", 2, STATUS_CORRUPT, "twice|looking it up|NOT_FOUND"},
        {"twice", "FAKE CUBIN 90\nkernel twice 8\nend\n", 2, STATUS_CORRUPT, "twice|parameter 1 of 2"},
        {"twice", "FAKE CUBIN 90\nkernel twice 8 8 8\nend\n", 2, STATUS_CORRUPT, "twice|more parameters than the 2"},
        {"twice", "FAKE CUBIN 90\nkernel twice 8 4\nend\n", 2, STATUS_CORRUPT,
         "twice|parameter 1 has 4 bytes|expected 8 or 128"},
    };
    struct loaded loaded;
    load_file(&loaded, lowered_engine_path());
    const struct engine_kernel text = {.entry = "twice",
                                       .cubin = cases[0].cubin,
                                       .cubin_bytes = strlen(cases[0].cubin) + 1,
                                       .operand_count = 2};
    expect_load_refused(&loaded, &text, STATUS_CORRUPT, "twice|its code|expected|ELF");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char cubin[256];
        const struct engine_kernel kernel = {
            .entry = cases[c].entry,
            .cubin = cubin,
            .cubin_bytes = fake_cuda_cubin(cases[c].cubin, cubin, sizeof cubin),
            .operand_count = cases[c].operand_count,
        };
        expect_load_refused(&loaded, &kernel, cases[c].code, cases[c].words);
    }
    assert_int_equal(fake.misuse(), 0);
    unload(&loaded);
}

/* ---- plans that do not fit ---- */

/* Binds the last plan with one launch changed. */
static void expect_bind_refused(const struct loaded *loaded, const struct cuda_kernels *kernels, uint32_t index,
                                const struct plan_launch *changed, enum status_code code, const char *words)
{
    const struct engine *engine = &loaded->engine;
    struct plan plan = engine->plans[engine->plan_count - 1];
    struct plan_launch *launches = malloc(plan.header.launch_count * sizeof *launches);
    struct cuda_plan bound;
    struct status status = {0};
    int64_t alive = fake.live(-1);
    assert_non_null(launches);
    memcpy(launches, plan.launches, plan.header.launch_count * sizeof *launches);
    launches[index] = *changed;
    plan.launches = launches;
    bool ok = cuda_plan_bind(&bound, &loaded->device, kernels, &plan, &loaded->memory, "the plan", &status);
    test_expect_failure(ok, &status, code, words);
    test_expect_message(&status, "the plan: launch ");
    assert_null(bound.exec);
    assert_int_equal(fake.live(-1), alive);
    cuda_plan_free(&bound, &loaded->device);
    free(launches);
}

TEST(launches_that_do_not_fit_are_refused)
{
    struct loaded loaded;
    struct cuda_kernels kernels;
    struct status status = {0};
    load_file(&loaded, lowered_engine_path());
    const struct engine *engine = &loaded.engine;
    const struct plan *plan = &engine->plans[engine->plan_count - 1];
    bool ok = cuda_kernels_load(&kernels, &loaded.device, engine->kernels, engine->kernel_count, &status);
    test_expect_success(ok, &status);
    const uint32_t index = 2;
    struct plan_launch launch = plan->launches[index];
    launch.shared_bytes = 232449;
    expect_bind_refused(&loaded, &kernels, index, &launch, STATUS_MACHINE, "232449 bytes of shared memory|232448");
    launch = plan->launches[index];
    launch.block[0] = launch.block[1] = 33;
    launch.block[2] = 1;
    expect_bind_refused(&loaded, &kernels, index, &launch, STATUS_MACHINE, "1089 threads a block|at most 1024");
    launch = plan->launches[index];
    launch.kernel = (uint32_t)engine->kernel_count;
    expect_bind_refused(&loaded, &kernels, index, &launch, STATUS_INTERNAL, "kernel ");
    launch = plan->launches[index];
    launch.first_dependency--; /* on the launch two before */
    expect_bind_refused(&loaded, &kernels, index, &launch, STATUS_CORRUPT, "does not depend on the launch before it");
    launch = plan->launches[index];
    launch.dependency_count = 0;
    expect_bind_refused(&loaded, &kernels, index, &launch, STATUS_CORRUPT, "does not depend on the launch before it");
    /* A pointer where the kernel takes a tensor map, and the other way round. */
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        const struct plan_operand *operands = plan->operands + plan->launches[n].first_operand;
        if (plan->launches[n].operand_count < 2 || !operands[1].tensor_map) continue;
        for (size_t k = 0; k < engine->kernel_count; k++) {
            bool mapped = kernels.kernels[k].parameter_bytes[1] == sizeof(struct cu_tensor_map);
            if (kernels.kernels[k].operand_count != plan->launches[n].operand_count || mapped) continue;
            launch = plan->launches[n];
            launch.kernel = (uint32_t)k;
            expect_bind_refused(&loaded, &kernels, n, &launch, STATUS_CORRUPT,
                                "operand 1|takes 8 bytes|the plan passes 128");
        }
    }
    cuda_kernels_free(&kernels, &loaded.device);
    unload(&loaded);
    assert_int_equal(fake.misuse(), 0);
}

/* Before Hopper there is no programmatic launch, cluster or tensor map; newer GPUs have all of them and other
 * limits. */
TEST(engines_for_other_gpus_run_there)
{
    static const enum test_gpu gpus[] = {TEST_GPU_80, TEST_GPU_120};
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
        struct lowered_engine other;
        struct loaded loaded;
        struct status status = {0};
        char *folder = test_folder();
        lowered_engine_init(&other);
        other.gpu = gpus[g];
        lowered_engine_write(&other, test_path(folder, "other.eng"));
        load_file(&loaded, test_path(folder, "other.eng")); /* on a GPU of capability 9.0 */
        bool ok = try_everything(&loaded, &status);
        test_expect_failure(ok, &status, STATUS_VERSION, "its code is for another GPU|9.0");
        unload(&loaded);
        test_fake_cuda_set(&fake, "FAKE_CUDA_CAPABILITY", (uint64_t)test_gpus[gpus[g]].capability);
        load_file(&loaded, test_path(folder, "other.eng"));
        test_expect_success(try_everything(&loaded, &status), &status);
        unload(&loaded);
        assert_int_equal(fake.misuse(), 0);
        test_fake_cuda_set(&fake, "FAKE_CUDA_CAPABILITY", 90);
        test_folder_remove(folder);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return test_run_with(set_up, begin, end, lowered_engine_remove);
}
