/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "builder/build_graph.h"
#include "builder/golden/accuracy_cuda.h"
#include "builder/golden/golden_cuda.h"
#include "builder/gpu_record.h"
#include "builder/lower/names.h"
#include "builder/lower/lower_cuda.h"
#include "formats/base/checked.h"
#include "kernels/routed_matmul/routed_matmul.h"
#include "tuner/cuda/plan_timer.h"
#include "tuner/cuda/tune.h"

struct cuda_build {
    struct gpus gpus;
    const struct gpu_record *record; /* the GPU consists of the facts of this record only; NULL: a GPU of this
                                      * machine */
    bool entered;                    /* its context is current for the whole build, so that everything can be freed */
    struct kernel_compiler compiler;
    struct plan_variants variants[BUILD_ALL_PLANS]; /* as struct build.plans */
    struct vendor_cache vendor_cache;
    struct kernel_set kernels; /* of the finished plans */
};

/* ---- opening ---- */

/* Compiled kernels and the vendor cache are kept beside the tuning records, in a folder named after their file;
 * NULL: no cache. */
static char *kernel_cache_path(const struct build_options *options)
{
    char *path = NULL;
    if (!options->tuning_cache || asprintf(&path, "%s.kernels", options->tuning_cache) < 0) return NULL;
    return path;
}

static bool open_nccl(struct build *build, struct status *status)
{
    struct status missing;
    if (!gpus_join_nccl(&build->cuda->gpus, &missing, status)) return false;
    if (missing.code != STATUS_OK)
        progress_warn(&build->progress, "the engine cannot run in several processes: %s; --lean says so on purpose",
                      missing.message);
    return true;
}

/* A missing library does not stop a build: its tactics take no part. */
static bool open_libraries(struct build *build, struct status *status)
{
    struct gpus *gpus = &build->cuda->gpus;
    const struct build_options *options = build->options;
    if (options->lean) return true;
    /* With other libraries each rank would have to check the calls. */
    if (options->gpus > 1) return open_nccl(build, status);
    if (options->tune == TUNE_OFF) return true;
    if (!device_enter(&gpus->devices[0], status)) return false;
    struct status missing[2] = {{0}};
    const bool found[2] = {cublaslt_open(&gpus->cublaslt, 0, &missing[0]), cudnn_open(&gpus->cudnn, 0, &missing[1])};
    static const char *const ops[2] = {"matmul", "attention"};
    for (int i = 0; i < 2; i++)
        if (!found[i])
            progress_warn(&build->progress, "only our own kernels take part in %s: %s; --lean says so on purpose",
                          ops[i], missing[i].message);
    device_leave(&gpus->devices[0]);
    return true;
}

/* The kernels do not depend on how ranks exchange data; the fastest choices do. */
static bool link_ranks(struct build *build, const struct device *const *devices, struct status *status)
{
    const struct build_options *options = build->options;
    struct status reason;
    build->cuda->gpus.link = CUDA_LINK_HOST;
    if (options->no_peer_access) return true;
    if (!cuda_comm_find_link(devices, options->gpus, &build->cuda->gpus.link, &reason, status)) return false;
    if (build->cuda->gpus.link == CUDA_LINK_HOST)
        progress_warn(&build->progress, "the GPUs exchange through the host's memory: %s", reason.message);
    return true;
}

/* The GPUs of the other ranks: alike, since one plan serves all. */
static bool open_others(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    struct gpus *gpus = &build->cuda->gpus;
    const struct device *devices[PLAN_MAX_RANKS] = {&gpus->devices[0]};
    for (uint32_t r = 1; r < options->gpus; r++) {
        struct device *device = &gpus->devices[r];
        const struct device_facts *first = &gpus->devices[0].facts, *found = &device->facts;
        if (!device_open(device, options->device + (int)r, status))
            return status_prefix(status, "--gpus: expected %u GPUs from GPU %d on", options->gpus, options->device);
        devices[r] = device;
        if (strcmp(found->name, first->name) != 0 || found->capability != first->capability)
            return status_fail(status, STATUS_MACHINE,
                               "--gpus: expected %u GPUs of one model, found GPU %d: %s and GPU %d: %s; choose others "
                               "(--device, CUDA_VISIBLE_DEVICES) or fewer",
                               options->gpus, gpus->devices[0].ordinal, first->name, device->ordinal, found->name);
    }
    return options->gpus == 1 || link_ranks(build, devices, status);
}

static bool is_plan_only(const struct build_options *options) { return options->dry_run || options->list_candidates; }

/* A plan needs only facts: of the named GPU, else of this machine's, else of one on record. */
static bool open_device(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    struct cuda_build *cuda = build->cuda;
    struct device *device = &cuda->gpus.devices[0];
    if (!is_plan_only(options) || !options->gpu) {
        if (device_open(device, options->device, status)) {
            cuda->entered = device_enter(device, status);
            return cuda->entered;
        }
        struct device any;
        struct status reason;
        bool has_others = options->device > 0 && device_find(&any, 0, &reason);
        if (has_others) device_close(&any);
        if (has_others || !is_plan_only(options)) return false;
    }
    cuda->record = gpu_record_find(options->gpu, status);
    if (!cuda->record) return false;
    if (!options->gpu)
        progress_warn(&build->progress, "planning for an %s, as with --gpu %s: %s", cuda->record->facts.name,
                      cuda->record->name, status->message);
    status_clear(status);
    device->facts = cuda->record->facts;
    return true;
}

bool build_cuda_open(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    if (options->types.matrices == ENCODING_F32)
        return status_fail(
            status, STATUS_USAGE,
            "--dtype: the cuda target has bf16 and fp16 matrices, and codes (int8, int4, fp8, mxfp4, nvfp4); "
            "found %s",
            encoding_label(options->types.matrices));
    if (options->kv_dtype == ENCODING_F32)
        return status_fail(status, STATUS_USAGE,
                           "--kv-dtype: the cuda target has bf16, fp16, int8 and fp8 KV caches, found %s",
                           encoding_label(options->kv_dtype));
    struct cuda_build *cuda = build->cuda = calloc(1, sizeof *build->cuda);
    if (!cuda) return status_fail(status, STATUS_MACHINE, "out of memory");
    cuda->gpus.ranks = options->gpus;
    if (!open_device(build, status)) return false;
    build->has_routed_matmul = build_cuda_facts(build)->capability >= device_routed_matmul.least_capability;
    build->shared_per_block = build_cuda_facts(build)->shared_per_block;
    build->multiprocessors = build_cuda_facts(build)->multiprocessors;
    if (is_plan_only(options)) return true;
    if (!open_others(build, status)) return false;
    char *cache = kernel_cache_path(options);
    struct kernel_compiler *compiler = &cuda->compiler;
    compiler->nvrtc = nvrtc_open_anyway(device_sources, device_source_count, cache, status);
    compiler->capability = cuda->gpus.devices[0].facts.capability;
    compiler->threads = team_size(build->team);
    if (options->compile_worker && compiler->threads > COMPILE_THREADS_OF_A_PROCESS)
        compiler->workers = compile_workers_start("/proc/self/exe", options->compile_worker, cache ? cache : "",
                                                  compiler->threads - COMPILE_THREADS_OF_A_PROCESS);
    cuda->vendor_cache.folder = cache;
    return compiler->nvrtc != NULL && open_libraries(build, status);
}

void build_cuda_close(struct build *build)
{
    struct cuda_build *cuda = build->cuda;
    if (!cuda) return;
    for (size_t p = 0; p < build->plan_count; p++) {
        plan_variants_free(&cuda->variants[p]);
        plan_free(&build->library_plans[p]);
    }
    kernel_set_free(&cuda->kernels);
    kernel_set_free(&cuda->compiler.known);
    compile_workers_stop(cuda->compiler.workers);
    if (cuda->entered) gpus_release(&cuda->gpus);
    vendor_cache_free(&cuda->vendor_cache);
    if (cuda->compiler.nvrtc) nvrtc_close(cuda->compiler.nvrtc);
    for (uint32_t r = 1; r < cuda->gpus.ranks; r++) device_close(&cuda->gpus.devices[r]);
    if (cuda->entered) device_leave(&cuda->gpus.devices[0]);
    device_close(&cuda->gpus.devices[0]);
    free(cuda);
    build->cuda = NULL;
}

/* ---- facts ---- */

const struct device_facts *build_cuda_facts(const struct build *build) { return &build->cuda->gpus.devices[0].facts; }

bool build_cuda_is_on_record(const struct build *build) { return build->cuda->record != NULL; }

void build_cuda_estimate(struct build *build)
{
    struct device_clocks clocks = {0};
    if (build->cuda->record)
        clocks = build->cuda->record->clocks;
    else
        estimate_cuda_clocks(&build->cuda->gpus.devices[0], &clocks);
    estimate_cuda_ceilings(build_cuda_facts(build), &clocks, &build->machine);
}

/* ---- lowering ---- */

/* What a plan computes must not depend on tuning, so that these have no alternative. */
static bool is_eight_bit(const struct build *build, uint32_t rows)
{
    return build->eight_bit_rows && rows >= build->eight_bit_rows;
}

/* Graphs that a plan may be of, best guess first. For few rows end-to-end tuning finds the faster one of the first two. */
struct plan_graphs {
    const struct graph *graphs[3];
    int count;
};

static struct plan_graphs graphs_of(const struct build *build, enum plan_kind kind, uint32_t rows)
{
    struct plan_graphs found = {.count = 0};
    if (kind == PLAN_DECODE && rows <= graph_small_batch_rows(&build->small_batch)) {
        if (rows <= graph_routed_mlp_rows(&build->routed_mlp)) found.graphs[found.count++] = &build->routed_mlp;
        found.graphs[found.count++] = &build->small_batch;
    } else if (is_eight_bit(build, rows)) {
        return (struct plan_graphs){{build_eight_bit_graph_of(build, kind)}, 1};
    } else if (kind == PLAN_DECODE && rows <= graph_router_batch_rows(&build->router_batch)) {
        found.graphs[found.count++] = &build->router_batch;
    }
    found.graphs[found.count++] = build_graph_of(build, kind);
    return found;
}

static bool lower_one(struct build *build, const struct plan_graphs *from, uint32_t rows, struct status *status)
{
    struct plan_variants *variants = &build->cuda->variants[build->plan_count];
    struct plan_header *header = &build->plans[build->plan_count++].header;
    for (int g = 0; g < from->count && variants->count < PLAN_VARIANTS; g++) {
        struct device_plan *plan = &variants->plans[variants->count];
        if (!lower_device_plan(from->graphs[g], &build->lowering, build_cuda_facts(build), rows, plan, status)) {
            const bool is_last = g + 1 == from->count;
            if ((is_last && !variants->count) || status->code != STATUS_BAD_INPUT) return false;
            /* A launch for few rows may have no kernel for the encoding of a weight (--keep). That of a router with its norm is one
             * of two ways, and matrices that are too large for it are usual: no warning. */
            if (from->graphs[g]->plan_rows == GRAPH_ROWS_SMALL_BATCH)
                progress_warn(&build->progress, "decode plan of %u rows: made as for many rows: %s", rows,
                              status->message);
            status_clear(status);
            continue;
        }
        /* The manifest's arena is large enough for either until one is chosen. */
        uint64_t arena_bytes = header->arena_bytes;
        if (variants->count++ == 0) *header = plan->header;
        header->arena_bytes = plan->header.arena_bytes > arena_bytes ? plan->header.arena_bytes : arena_bytes;
    }
    return true;
}

bool build_cuda_lower(struct build *build, struct status *status)
{
    build->lowering.scratch_bytes = 0;
    for (enum plan_kind kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++)
        for (int i = 0; i < build->rows[kind].count; i++) {
            const uint32_t rows = build->rows[kind].rows[i];
            const struct plan_graphs from = graphs_of(build, kind, rows);
            for (int g = 0; g < from.count; g++) {
                const uint64_t bytes =
                    device_scratch_bytes(from.graphs[g], &build->lowering, build_cuda_facts(build), rows);
                if (bytes > build->lowering.scratch_bytes) build->lowering.scratch_bytes = bytes;
            }
        }
    for (enum plan_kind kind = PLAN_DECODE; kind < PLAN_KIND_END; kind++)
        for (int i = 0; i < build->rows[kind].count; i++) {
            const uint32_t rows = build->rows[kind].rows[i];
            const struct plan_graphs from = graphs_of(build, kind, rows);
            if (!lower_one(build, &from, rows, status))
                return status_prefix(status, "%s plan of %u rows", plan_kind_name(kind), rows);
        }
    return true;
}

/* ---- tactics and kernels ---- */

static struct tune_context tune_context(struct build *build, enum tune_level level)
{
    struct cuda_build *cuda = build->cuda;
    return (struct tune_context){
        .rig = {.gpus = &cuda->gpus, .manifest = &build->manifest, .arena_bytes = build->manifest.arena_bytes},
        .scratch_bytes = build->lowering.scratch_bytes,
        .compiler = &cuda->compiler,
        .vendor_cache = &cuda->vendor_cache,
        .tactics = &build->tactics,
        .machine = &build->machine,
        .progress = &build->progress,
        .level = level,
        .measures = level != TUNE_OFF && cuda->gpus.weights[0],
        .plans = cuda->variants,
        .plan_count = build->plan_count,
    };
}

bool build_cuda_list_candidates(struct build *build, struct status *status)
{
    struct tune_context context = tune_context(build, TUNE_OFF);
    return tune_print_candidates(&context, build->options->out, status);
}

/* Finishes all plans; the manifest's arena shrinks to what they need. */
static bool finish_plans(struct build *build, struct status *status)
{
    struct cuda_build *cuda = build->cuda;
    build->manifest.arena_bytes = 0;
    for (size_t p = 0; p < build->plan_count; p++) {
        const struct plan_variants *variants = &cuda->variants[p];
        if (!device_plan_finish(&variants->plans[0], build_cuda_facts(build), &cuda->kernels, &build->plans[p], status))
            return status_prefix(status, "plan %zu", p);
        if (variants->count > 1 && !device_plan_finish(&variants->plans[1], build_cuda_facts(build), &cuda->kernels,
                                                       &build->library_plans[p], status))
            return status_prefix(status, "plan %zu with libraries", p);
        uint64_t bytes = build->plans[p].header.arena_bytes;
        if (bytes > build->manifest.arena_bytes) build->manifest.arena_bytes = bytes;
    }
    return true;
}

static bool time_plans(struct build *build, const struct cuda_rig *rig, struct status *status)
{
    struct plan_timer timer;
    if (!plan_timer_open(&timer, rig, &build->cuda->kernels, status)) return false;
    bool ok = true;
    for (size_t p = 0; ok && p < build->plan_count; p++) {
        const struct plan *library = &build->library_plans[p];
        bool is_used = library->header.launch_count > 0 && library->header.use == PLAN_USE_ALWAYS;
        ok = plan_timer_run(&timer, is_used ? library : &build->plans[p], &build->plan_us[p], status);
    }
    plan_timer_close(&timer);
    return ok;
}

bool build_cuda_tune(struct build *build, const uint8_t *weights, enum tune_level level, struct status *status)
{
    struct cuda_build *cuda = build->cuda;
    if (weights) progress_stage(&build->progress, "upload");
    for (uint32_t rank = 0; weights && rank < cuda->gpus.ranks; rank++)
        if (!gpus_upload_weights(&cuda->gpus, &build->manifest, weights, rank, &build->progress, status)) return false;
    struct tune_context context = tune_context(build, level);
    if (!tune_cuda(&context, status) || !finish_plans(build, status)) return false;
    if (!weights) return true;
    progress_stage(&build->progress, "compile");
    if (!kernel_set_compile(&cuda->kernels, &cuda->compiler, tune_show_compiling, &build->progress, status))
        return false;
    return level == TUNE_OFF || time_plans(build, &context.rig, status);
}

bool build_cuda_golden(struct build *build, struct golden_outputs *golden, struct status *status)
{
    struct cuda_rig rig = tune_context(build, TUNE_OFF).rig;
    for (size_t p = 0; p < build->plan_count; p++) {
        const uint64_t bytes = build->library_plans[p].header.arena_bytes;
        if (bytes > rig.arena_bytes) rig.arena_bytes = bytes;
    }
    return compute_golden_cuda(&rig, build->plans, build->library_plans, build->plan_count, &build->cuda->kernels,
                               &build->progress, golden, status);
}

/* ---- a model beside the engine's ---- */

/* How its plan lies in memory: `manifest` has its geometry and KV cache. */
static struct lowering lowering_of(const struct build *build, const struct graph *graph,
                                   const struct manifest *manifest, uint32_t rows)
{
    struct lowering lowering = build->lowering;
    lowering.kv_dtype = manifest->kv_dtype;
    lowering.geometry = manifest->geometry;
    lowering.scratch_bytes = device_scratch_bytes(graph, &lowering, build_cuda_facts(build), rows);
    return lowering;
}

bool build_cuda_takes_model(const struct build *build, const struct graph *graph, const struct manifest *manifest,
                            uint32_t rows)
{
    const struct lowering lowering = lowering_of(build, graph, manifest, rows);
    const struct gpus *gpus = &build->cuda->gpus;
    struct status status = {0};
    uint64_t own, engine, needed;
    if (!device_takes_graph(graph, &lowering, build_cuda_facts(build), rows, &status) ||
        !accuracy_cuda_bytes(manifest, rows, &own) || !accuracy_cuda_bytes(&build->manifest, rows, &engine) ||
        !checked_add(own, engine, &needed) || !checked_add(needed, manifest_rank_weights(manifest), &needed))
        return false;
    for (uint32_t r = 0; r < gpus->ranks; r++) {
        uint64_t free_bytes;
        if (!device_free_memory(&gpus->devices[r], &free_bytes, &status) || needed > free_bytes) return false;
    }
    return true;
}

bool build_cuda_accuracy(struct build *build, const struct graph *graph, struct manifest *manifest,
                         const uint8_t *weights, const struct plan *plan, struct manifest_accuracy *accuracy,
                         struct status *status)
{
    const uint32_t rows = plan->header.rows;
    const struct lowering lowering = lowering_of(build, graph, manifest, rows);
    const struct cuda_rig own_rig = tune_context(build, TUNE_OFF).rig;
    struct gpus gpus = build->cuda->gpus; /* the same, with other weights */
    memset(gpus.weights, 0, sizeof gpus.weights);
    struct kernel_set kernels = {0};
    struct device_plan lowered = {.count = 0};
    struct plan finished = {0};
    bool ok = lower_device_plan(graph, &lowering, build_cuda_facts(build), rows, &lowered, status) &&
              device_plan_finish(&lowered, build_cuda_facts(build), &kernels, &finished, status) &&
              kernel_set_compile(&kernels, &build->cuda->compiler, NULL, NULL, status);
    manifest->arena_bytes = finished.header.arena_bytes;
    manifest->step_bytes = finished.header.step_bytes;
    for (uint32_t r = 0; ok && r < gpus.ranks; r++) ok = gpus_upload_weights(&gpus, manifest, weights, r, NULL, status);
    if (ok) {
        const struct cuda_rig rig = {.gpus = &gpus, .manifest = manifest, .arena_bytes = manifest->arena_bytes};
        const struct accuracy_gpu_model unquantised = {&rig, &finished, &kernels},
                                        quantised = {&own_rig, plan, &build->cuda->kernels};
        ok = measure_accuracy_cuda(&unquantised, &quantised, build->team, &build->progress, accuracy, status);
    }
    gpus_free_weights(&gpus);
    plan_free(&finished);
    device_plan_free(&lowered);
    kernel_set_free(&kernels);
    return ok;
}

bool build_cuda_write_kernels(struct build *build, struct status *status)
{
    const struct kernel_set *set = &build->cuda->kernels;
    struct engine_kernel *kernels = kernel_set_view(set);
    struct plan used[BUILD_ALL_PLANS];
    size_t count = 0;
    if (!kernels) return status_fail(status, STATUS_MACHINE, "out of memory while writing the kernels");
    for (size_t p = 0; p < build->plan_count; p++)
        if (build->library_plans[p].header.launch_count > 0) used[count++] = build->library_plans[p];
    bool ok = engine_writer_kernels(build->writer, kernels, set->count, status) &&
              engine_writer_calls(build->writer, set->calls, set->call_count, status) &&
              write_names(build->writer, build->plans, build->plan_count, set, status) &&
              engine_writer_library_plans(build->writer, used, count, status);
    free(kernels);
    return ok;
}
