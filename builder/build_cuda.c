/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "builder/choose_plans_cuda.h"
#include "builder/vendor/library_plans_cuda.h"
#include "builder/vendor/nccl_launches_cuda.h"
#include "builder/time_plans_cuda.h"
#include "builder/tune_cuda.h"

/* Compiled kernels and what libraries made are kept beside the tuning records, in a folder named after their file;
 * NULL: no cache. */
static char *kernel_cache_path(const struct build_options *options)
{
    char *path = NULL;
    if (!options->tuning_cache || asprintf(&path, "%s.kernels", options->tuning_cache) < 0) return NULL;
    return path;
}

/* A build goes on without a library that is not there: its tactics only take no part. */
static bool open_libraries(struct build *build, struct status *status)
{
    struct cuda_build *cuda = &build->cuda;
    const struct build_options *options = build->options;
    if (options->lean) return true;
    /* Of others each rank would have to check the calls. */
    if (options->gpus > 1) return nccl_ranks_open(build, status);
    if (options->tune == TUNE_OFF) return true;
    if (!device_enter(&cuda->device, status)) return false;
    struct status missing[2];
    for (int i = 0; i < 2; i++) status_clear(&missing[i]);
    const bool found[2] = {cublaslt_open(&cuda->cublaslt, 0, &missing[0]), cudnn_open(&cuda->cudnn, 0, &missing[1])};
    static const char *const ops[2] = {"matmul", "attention"};
    for (int i = 0; i < 2; i++)
        if (!found[i])
            build_warn(build, "only our own kernels take part in %s: %s; --lean says so on purpose", ops[i],
                       missing[i].message);
    device_leave(&cuda->device);
    return true;
}

/* The kernels are the same whichever way ranks exchange; what is fastest differs. */
static bool link_ranks(struct build *build, const struct device *const *devices, struct status *status)
{
    const struct build_options *options = build->options;
    struct status reason;
    build->cuda.link = CUDA_LINK_HOST;
    if (options->no_peer_access) return true;
    if (!cuda_comm_find_link(devices, options->gpus, &build->cuda.link, &reason, status)) return false;
    if (build->cuda.link == CUDA_LINK_HOST)
        build_warn(build, "the GPUs exchange through the host's memory: %s", reason.message);
    return true;
}

/* The GPUs of the other ranks: alike, since one plan serves all. */
static bool open_others(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    const struct device *devices[PLAN_MAX_RANKS] = {&build->cuda.device};
    for (uint32_t r = 1; r < options->gpus; r++) {
        struct device *device = &build->cuda.others[r - 1].device;
        const struct device_facts *first = &build->cuda.device.facts, *found = &device->facts;
        if (!device_open(device, options->device + (int)r, status))
            return status_prefix(status, "--gpus: expected %u GPUs from GPU %d on", options->gpus, options->device);
        devices[r] = device;
        if (strcmp(found->name, first->name) != 0 || found->capability != first->capability)
            return status_fail(status, STATUS_MACHINE,
                               "--gpus: expected %u GPUs of one model, found GPU %d: %s and GPU %d: %s; choose others "
                               "(--device, CUDA_VISIBLE_DEVICES) or fewer",
                               options->gpus, build->cuda.device.ordinal, first->name, device->ordinal, found->name);
    }
    return options->gpus == 1 || link_ranks(build, devices, status);
}

static bool is_plan_only(const struct build_options *options) { return options->dry_run || options->list_candidates; }

/* A plan needs facts alone: of the GPU that was named, else of this machine's, else of one on record. */
static bool open_device(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    struct cuda_build *cuda = &build->cuda;
    if (!is_plan_only(options) || !options->gpu) {
        if (device_open(&cuda->device, options->device, status)) {
            cuda->entered = device_enter(&cuda->device, status);
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
        build_warn(build, "planning for an %s, as with --gpu %s: %s", cuda->record->facts.name, cuda->record->name,
                   status->message);
    status_clear(status);
    cuda->device.facts = cuda->record->facts;
    return true;
}

bool build_cuda_open(struct build *build, struct status *status)
{
    const struct build_options *options = build->options;
    if (options->dtype && options->dtype != DTYPE_BF16 && options->dtype != DTYPE_F16)
        return status_fail(status, STATUS_USAGE, "--dtype: the cuda target has bf16 and fp16 matrices, found %s",
                           dtype_name(options->dtype));
    if (options->kv_dtype && options->kv_dtype != DTYPE_BF16 && options->kv_dtype != DTYPE_F16)
        return status_fail(status, STATUS_USAGE, "--kv-dtype: the cuda target has bf16 and fp16 KV caches, found %s",
                           dtype_name(options->kv_dtype));
    if (!open_device(build, status)) return false;
    if (is_plan_only(options)) return true;
    if (!open_others(build, status)) return false;
    char *cache = kernel_cache_path(options);
    build->cuda.nvrtc = nvrtc_open(device_sources, device_source_count, cache, status);
    if (!build->cuda.nvrtc && cache) { /* it only saves time */
        status_clear(status);
        build->cuda.nvrtc = nvrtc_open(device_sources, device_source_count, NULL, status);
    }
    build->cuda.blobs.folder = cache;
    return build->cuda.nvrtc != NULL && open_libraries(build, status);
}

void build_cuda_close(struct build *build)
{
    struct cuda_build *cuda = &build->cuda;
    for (size_t p = 0; p < build->plan_count; p++) {
        device_plan_free(&cuda->plans[p]);
        device_plan_free(&cuda->alternatives[p]);
        device_plan_free(&cuda->library_plans[p]);
        lowered_plan_free(&build->library_plans[p]);
    }
    free(cuda->problems);
    kernel_set_free(&cuda->kernels);
    kernel_set_free(&cuda->compiled);
    nccl_ranks_close(build);
    if (cuda->entered) {
        cudnn_close(&cuda->cudnn);
        cublaslt_close(&cuda->cublaslt);
    }
    library_blobs_free(&cuda->blobs);
    for (uint32_t r = 0; cuda->entered && r < build->options->gpus; r++)
        if (build_cuda_weights(build, r)) cuda->device.driver.MemFree(build_cuda_weights(build, r));
    if (cuda->nvrtc) nvrtc_close(cuda->nvrtc);
    for (uint32_t r = 1; r < build->options->gpus; r++) device_close(&cuda->others[r - 1].device);
    if (cuda->entered) device_leave(&cuda->device);
    device_close(&cuda->device);
}

/* ---- lowering ---- */

/* Few rows can also go the way of many: which is faster, whole plans will show (choose_plans). */
static bool lower_one(struct build *build, const struct graph *graph, const struct graph *alternative, uint32_t rows,
                      struct status *status)
{
    struct cuda_build *cuda = &build->cuda;
    const struct device_facts *gpu = &cuda->device.facts;
    size_t p = build->plan_count++;
    if (!lower_device_plan(graph, &build->lowering, gpu, rows, &cuda->plans[p], status) ||
        (alternative && !lower_device_plan(alternative, &build->lowering, gpu, rows, &cuda->alternatives[p], status)))
        return false;
    build->plans[p].header = cuda->plans[p].header;
    /* The manifest's arena holds either until one is chosen. */
    if (alternative && cuda->alternatives[p].header.arena_bytes > build->plans[p].header.arena_bytes)
        build->plans[p].header.arena_bytes = cuda->alternatives[p].header.arena_bytes;
    return true;
}

bool build_cuda_lower(struct build *build, const uint32_t *batches, int batch_count, const uint32_t *chunks,
                      int chunk_count, struct status *status)
{
    build->lowering.scratch_bytes = 0;
    for (int i = 0; i < batch_count; i++) {
        uint64_t bytes = device_scratch_bytes(&build->decode, &build->lowering, &build->cuda.device.facts, batches[i]);
        if (bytes > build->lowering.scratch_bytes) build->lowering.scratch_bytes = bytes;
    }
    for (int i = 0; i < batch_count; i++) {
        bool narrow = batches[i] <= GRAPH_NARROW_ROWS;
        if (!lower_one(build, narrow ? &build->narrow : &build->decode, narrow ? &build->decode : NULL, batches[i],
                       status))
            return status_prefix(status, "decode plan of batch size %u", batches[i]);
    }
    for (int i = 0; i < chunk_count; i++)
        if (!lower_one(build, &build->prefill, NULL, chunks[i], status))
            return status_prefix(status, "prefill plan of %u tokens", chunks[i]);
    return true;
}

/* ---- tactics and kernels ---- */

static void compile_progressed(void *context, uint64_t done, uint64_t total)
{
    progress_update(context, done, total, NULL);
}

bool build_cuda_compile(struct build *build, struct kernel_set *set, bool shown, struct status *status)
{
    struct cuda_build *cuda = &build->cuda;
    return kernel_set_compile(set, &cuda->compiled, cuda->nvrtc, cuda->device.facts.capability, team_size(build->team),
                              shown ? compile_progressed : NULL, &build->progress, status);
}

/* The rank's region of `weights`, to its GPU. */
static bool upload_weights(struct build *build, const uint8_t *weights, uint32_t rank, struct status *status)
{
    enum { PIECE_BYTES = 256 << 20 };
    const struct device *device = build_cuda_device(build, rank);
    uint64_t bytes = manifest_rank_weights(&build->manifest), free_bytes = 0;
    cu_deviceptr *to = rank == 0 ? &build->cuda.weights : &build->cuda.others[rank - 1].weights;
    weights += rank * bytes;
    if (!device_free_memory(device, &free_bytes, status)) return false;
    if (bytes > free_bytes)
        return status_fail(status, STATUS_MACHINE,
                           "the weights need %" PRIu64 " bytes of GPU memory to be tuned, %" PRIu64
                           " are free on GPU %d; end other programs on the GPU, or use a larger one",
                           bytes, free_bytes, device->ordinal);
    if (!device_enter(device, status)) return false;
    bool ok = cuda_ok(&device->driver, device->driver.MemAlloc(to, bytes), status,
                      "allocating %" PRIu64 " bytes for the weights", bytes);
    const uint64_t all = build->options->gpus * bytes;
    for (uint64_t done = 0; ok && done < bytes; done += PIECE_BYTES) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        ok = cuda_ok(&device->driver, device->driver.MemcpyHtoDAsync(*to + done, weights + done, piece, device->stream),
                     status, "copying the weights") &&
             cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "copying the weights");
        progress_update(&build->progress, rank * bytes + done + piece, all, NULL);
    }
    device_leave(device);
    return ok;
}

/* Finishes all plans; the manifest's arena shrinks to what they need. */
static bool finish_plans(struct build *build, struct status *status)
{
    struct cuda_build *cuda = &build->cuda;
    build->manifest.arena_bytes = 0;
    for (size_t p = 0; p < build->plan_count; p++) {
        if (!finish_device_plan(&cuda->plans[p], &cuda->device.facts, &cuda->kernels, &build->plans[p], status))
            return status_prefix(status, "plan %zu", p);
        if (cuda->library_plans[p].count > 0 && !finish_device_plan(&cuda->library_plans[p], &cuda->device.facts,
                                                                    &cuda->kernels, &build->library_plans[p], status))
            return status_prefix(status, "plan %zu with libraries", p);
        uint64_t bytes = build->plans[p].header.arena_bytes;
        if (bytes > build->manifest.arena_bytes) build->manifest.arena_bytes = bytes;
    }
    return true;
}

static bool time_plans(struct build *build, struct status *status)
{
    struct plan_timer timer;
    if (!plan_timer_open(&timer, build, &build->cuda.kernels, status)) return false;
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
    if (weights) progress_stage(&build->progress, "upload");
    for (uint32_t rank = 0; weights && rank < build->options->gpus; rank++)
        if (!upload_weights(build, weights, rank, status)) return false;
    if (!tune_cuda(build, level, status) || !choose_plans_cuda(build, level, status) ||
        !library_plans_cuda(build, level, status))
        return false;
    if (!finish_plans(build, status)) return false;
    if (!weights) return true;
    progress_stage(&build->progress, "compile");
    if (!build_cuda_compile(build, &build->cuda.kernels, true, status)) return false;
    return level == TUNE_OFF || time_plans(build, status);
}

bool build_cuda_write_kernels(struct build *build, struct status *status)
{
    const struct kernel_set *set = &build->cuda.kernels;
    struct engine_kernel *kernels = kernel_set_view(set);
    struct plan used[2 * BUILD_MAX_PLANS];
    size_t count = 0;
    if (!kernels) return status_fail(status, STATUS_MACHINE, "out of memory while writing the kernels");
    for (size_t p = 0; p < build->plan_count; p++)
        if (build->library_plans[p].header.launch_count > 0) used[count++] = build->library_plans[p];
    bool ok = engine_writer_kernels(build->writer, kernels, set->count, status) &&
              engine_writer_calls(build->writer, set->calls, set->call_count, status) &&
              engine_writer_library_plans(build->writer, used, count, status);
    free(kernels);
    return ok;
}
