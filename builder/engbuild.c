/* SPDX-License-Identifier: Apache-2.0 */
/* engbuild: command line of the builder. Flags in, build_options out; errors to stderr, reports to stdout. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "builder/build.h"
#include "builder/gpu_record.h"
#include "builder/passes/pass.h"
#include "formats/cli/cli_args.h"
#include "formats/cli/cli_process.h"
#include "formats/engine/engine_file.h"
#include "kernels/cpu/team.h"
#include "kernels/cuda/device.h"

static const char usage[] =
    "usage: engbuild --model PATH [-o FILE] [options]\n"
    "\n"
    "Builds an engine file from a Hugging Face checkpoint, tuned on this machine.\n"
    "\n"
    "  --model PATH            .safetensors file, .index.json file or folder; config.json and the\n"
    "                          tokenizer are found beside it\n"
    "  -o, --output FILE       engine file (default: model.eng)\n"
    "  --target cpu|cuda       what to build for (default: cuda where there is a GPU, else cpu)\n"
    "  --gpus N                share the model among N GPUs, from --device on (default: 1, at most 16);\n"
    "                          cpu: N ranks that share the processors\n"
    "  --gpu NAME              with --dry-run or --list-candidates: plan for the GPU of this name (h200),\n"
    "                          which this machine need not have\n"
    "  --device N              the GPU to build on, or the first of them (default: 0)\n"
    "  --no-peer-access        GPUs exchange through the host's memory, as where they have no access to\n"
    "                          each other's: for machines on which that access is broken\n"
    "  --max-batch N           sequences that decode at once (default: 8; cuda: 32)\n"
    "  --max-context N         tokens per sequence (default: the model's, at most 32768)\n"
    "  --batch-sizes LIST      decode plans, e.g. 1,2,4,8 (default: powers of two up to --max-batch)\n"
    "  --prefill-chunks LIST   prefill plans (default: 16,64,256; cuda: 32,128,512,2048)\n"
    "  --dtype auto|f32|fp16|bf16       matrices in the engine (default: auto, as in the checkpoint;\n"
    "                          cuda: bf16 or fp16)\n"
    "  --kv-dtype f32|fp16|bf16         KV cache (default: f32; cuda: as the matrices)\n"
    "  --tune off|quick|full   off: nothing is measured, cached records and defaults (default: quick)\n"
    "  --tuning-cache FILE     where tuning records are kept (default: ~/.cache/engbuild/tuning.records,\n"
    "                          XDG_CACHE_HOME is honoured); 'none' keeps none; cuda: compiled\n"
    "                          kernels are kept in FILE.kernels\n"
    "  --lean                  only our own kernels: the engine needs the driver and nothing else\n"
    "  --threads N             threads for tuning (default: one per processor)\n"
    "  --dry-run               print plans, exact memory and estimated times; write nothing; exit\n"
    "                          code 3 where the engine does not fit\n"
    "  --list-candidates       print the tuner's candidates, legal or why not; write nothing\n"
    "  --dump-after PASS       print the graph after a pass\n"
    "  --json                  report as JSON on stdout\n"
    "  --quiet                 no progress on stderr\n"
    "  -h, --help, --version\n"
    "\n" CLI_EXIT_CODES "\n";

enum {
    FLAG_MODEL = 256,
    FLAG_TARGET,
    FLAG_GPUS,
    FLAG_GPU,
    FLAG_DEVICE,
    FLAG_NO_PEER_ACCESS,
    FLAG_MAX_BATCH,
    FLAG_MAX_CONTEXT,
    FLAG_BATCH_SIZES,
    FLAG_PREFILL_CHUNKS,
    FLAG_DTYPE,
    FLAG_KV_DTYPE,
    FLAG_TUNE,
    FLAG_TUNING_CACHE,
    FLAG_LEAN,
    FLAG_THREADS,
    FLAG_DRY_RUN,
    FLAG_LIST_CANDIDATES,
    FLAG_DUMP_AFTER,
    FLAG_JSON,
    FLAG_QUIET,
    FLAG_VERSION,
};

static const struct option flags[] = {
    {"model", required_argument, NULL, FLAG_MODEL},
    {"output", required_argument, NULL, 'o'},
    {"target", required_argument, NULL, FLAG_TARGET},
    {"gpus", required_argument, NULL, FLAG_GPUS},
    {"gpu", required_argument, NULL, FLAG_GPU},
    {"device", required_argument, NULL, FLAG_DEVICE},
    {"no-peer-access", no_argument, NULL, FLAG_NO_PEER_ACCESS},
    {"max-batch", required_argument, NULL, FLAG_MAX_BATCH},
    {"max-context", required_argument, NULL, FLAG_MAX_CONTEXT},
    {"batch-sizes", required_argument, NULL, FLAG_BATCH_SIZES},
    {"prefill-chunks", required_argument, NULL, FLAG_PREFILL_CHUNKS},
    {"dtype", required_argument, NULL, FLAG_DTYPE},
    {"kv-dtype", required_argument, NULL, FLAG_KV_DTYPE},
    {"tune", required_argument, NULL, FLAG_TUNE},
    {"tuning-cache", required_argument, NULL, FLAG_TUNING_CACHE},
    {"lean", no_argument, NULL, FLAG_LEAN},
    {"threads", required_argument, NULL, FLAG_THREADS},
    {"dry-run", no_argument, NULL, FLAG_DRY_RUN},
    {"list-candidates", no_argument, NULL, FLAG_LIST_CANDIDATES},
    {"dump-after", required_argument, NULL, FLAG_DUMP_AFTER},
    {"json", no_argument, NULL, FLAG_JSON},
    {"quiet", no_argument, NULL, FLAG_QUIET},
    {"version", no_argument, NULL, FLAG_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

enum { MOST_BATCH = 4096, MOST_CHUNK = 16384, MOST_CONTEXT = 1 << 24, MOST_DEVICE = 1024 };

/* The result is sorted, repetitions are dropped. */
static bool read_sizes(const char *flag, const char *text, uint64_t most, uint32_t *list, int *count)
{
    uint64_t *values = NULL;
    size_t given = 0;
    if (!cli_read_list(flag, text, 1, most, &values, &given)) return false;
    bool ok = true;
    *count = 0;
    for (size_t i = 0; ok && i < given; i++) {
        int at = 0;
        while (at < *count && list[at] < values[i]) at++;
        if (at < *count && list[at] == values[i]) continue;
        ok = *count < BUILD_MAX_PLANS;
        if (!ok) {
            cli_usage("%s: expected at most %d values, found more", flag, BUILD_MAX_PLANS);
            break;
        }
        memmove(list + at + 1, list + at, (size_t)(*count - at) * sizeof *list);
        list[at] = (uint32_t)values[i];
        ++*count;
    }
    free(values);
    return ok;
}

static const struct cli_choice dtypes[] = {{"auto", DTYPE_NONE},
                                           {"f32", DTYPE_F32},
                                           {"fp16", DTYPE_F16},
                                           {"bf16", DTYPE_BF16},
                                           {NULL, 0}};
static const struct cli_choice kv_dtypes[] = {{"f32", DTYPE_F32}, {"fp16", DTYPE_F16}, {"bf16", DTYPE_BF16}, {NULL, 0}};
static const struct cli_choice tune_levels[] = {{"off", TUNE_OFF},
                                                {"quick", TUNE_QUICK},
                                                {"full", TUNE_FULL},
                                                {NULL, 0}};
static const struct cli_choice targets[] = {{"cpu", TARGET_CPU}, {"cuda", TARGET_CUDA}, {NULL, 0}};

struct command_line {
    struct build_options options;
    bool target_given;
    uint64_t gpus; /* 0: not given */
    bool quiet, help, version;
    char *default_cache; /* owned */
};

/* False after a message. */
static bool read_flag(struct command_line *line, int flag, const char *value, char *const *argv)
{
    struct build_options *options = &line->options;
    uint64_t number;
    int choice;
    switch (flag) {
    case FLAG_MODEL: options->model = value; return true;
    case 'o': options->output = value; return true;
    case FLAG_TARGET:
        if (!cli_read_choice("--target", value, targets, &choice)) return false;
        options->target = (enum engine_target)choice;
        line->target_given = true;
        return true;
    case FLAG_GPUS: return cli_read_number("--gpus", value, 1, PLAN_MAX_RANKS, &line->gpus);
    case FLAG_GPU: options->gpu = value; return true;
    case FLAG_DEVICE:
        if (!cli_read_number("--device", value, 0, MOST_DEVICE, &number)) return false;
        options->device = (int)number;
        return true;
    case FLAG_NO_PEER_ACCESS: options->no_peer_access = true; return true;
    case FLAG_MAX_BATCH: return cli_read_number("--max-batch", value, 1, MOST_BATCH, &options->max_batch);
    case FLAG_MAX_CONTEXT: return cli_read_number("--max-context", value, 1, MOST_CONTEXT, &options->max_context);
    case FLAG_BATCH_SIZES:
        return read_sizes("--batch-sizes", value, MOST_BATCH, options->batch_sizes, &options->batch_size_count);
    case FLAG_PREFILL_CHUNKS:
        return read_sizes("--prefill-chunks", value, MOST_CHUNK, options->prefill_chunks,
                          &options->prefill_chunk_count);
    case FLAG_DTYPE:
        if (!cli_read_choice("--dtype", value, dtypes, &choice)) return false;
        options->dtype = (enum dtype)choice;
        return true;
    case FLAG_KV_DTYPE:
        if (!cli_read_choice("--kv-dtype", value, kv_dtypes, &choice)) return false;
        options->kv_dtype = (enum dtype)choice;
        return true;
    case FLAG_TUNE:
        if (!cli_read_choice("--tune", value, tune_levels, &choice)) return false;
        options->tune = (enum tune_level)choice;
        return true;
    case FLAG_TUNING_CACHE: options->tuning_cache = value; return true;
    case FLAG_LEAN: options->lean = true; return true;
    case FLAG_THREADS:
        if (!cli_read_number("--threads", value, 1, TEAM_MAX_THREADS, &number)) return false;
        options->threads = (int)number;
        return true;
    case FLAG_DRY_RUN: options->dry_run = true; return true;
    case FLAG_LIST_CANDIDATES: options->list_candidates = true; return true;
    case FLAG_DUMP_AFTER: options->dump_after = value; return true;
    case FLAG_JSON: options->json = true; return true;
    case FLAG_QUIET: line->quiet = true; return true;
    case FLAG_VERSION: line->version = true; return true;
    case 'h': line->help = true; return true;
    default: cli_bad_flag(flag, argv); return false;
    }
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

/* The target of a build without --target. A GPU that cannot be used is reported, since its owner expects it to be
 * used. */
static bool has_gpu(const struct build_options *options)
{
    struct device device;
    struct status status = {0};
    bool usable = device_open(&device, options->device, &status);
    device_close(&device);
    if (!usable && access("/dev/nvidiactl", F_OK) == 0)
        fprintf(stderr, "note: building for the cpu target: %s\n", status.message);
    return usable;
}

/* Returns the exit code, after a message. */
static int check_line(struct command_line *line)
{
    struct build_options *options = &line->options;
    if (!options->model) return cli_usage("expected --model PATH, found none");
    if (!options->model[0]) return cli_usage("--model: expected a path, found ''");
    if (!options->output[0]) return cli_usage("-o: expected a file name, found ''");
    if (ends_with(options->output, ".safetensors") || ends_with(options->output, ".json"))
        return cli_usage("-o: '%s' is named as a part of a checkpoint, which an engine would replace", options->output);
    if (options->tuning_cache && !options->tuning_cache[0])
        return cli_usage("--tuning-cache: expected a file name or 'none', found ''");
    if (options->max_batch && options->batch_size_count &&
        options->batch_sizes[options->batch_size_count - 1] > options->max_batch)
        return cli_usage("--batch-sizes: expected at most --max-batch (%" PRIu64 "), found %u", options->max_batch,
                         options->batch_sizes[options->batch_size_count - 1]);
    if (options->json && options->dump_after)
        return cli_usage("--dump-after and --json both write to stdout; choose one");
    struct status status;
    status_clear(&status);
    if (options->dump_after && !pass_name_known(options->dump_after, &status)) return cli_fail_status(&status);
    if (options->gpu && !options->dry_run && !options->list_candidates)
        return cli_usage(
            "--gpu: only with --dry-run or --list-candidates; a build takes a GPU of this machine (--device)");
    if (options->gpu && line->target_given && options->target != TARGET_CUDA)
        return cli_usage("--gpu: expected --target cuda, found cpu");
    if (options->gpu && !gpu_record_find(options->gpu, &status)) return cli_fail_status(&status);
    if (line->gpus) options->gpus = (uint32_t)line->gpus;
    if (!line->target_given)
        options->target = line->gpus || options->gpu || has_gpu(options) ? TARGET_CUDA : TARGET_CPU;
    return CLI_DONE;
}

/* ~/.cache/engbuild/tuning.records, as the XDG base directory specification places caches; NULL without a home. */
static char *default_cache_path(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int length = -1;
    if (cache && cache[0] == '/')
        length = asprintf(&path, "%s/engbuild/tuning.records", cache);
    else if (home && home[0] == '/')
        length = asprintf(&path, "%s/.cache/engbuild/tuning.records", home);
    return length < 0 ? NULL : path;
}

static int read_line(struct command_line *line, int argc, char **argv)
{
    build_options_init(&line->options);
    opterr = 0;
    int flag;
    while ((flag = getopt_long(argc, argv, ":ho:", flags, NULL)) != -1) {
        if (!read_flag(line, flag, optarg, argv)) return cli_value_code();
        if (line->help || line->version) return CLI_DONE;
    }
    if (optind < argc) return cli_usage("expected --model PATH and other flags, found '%s'", argv[optind]);
    struct build_options *options = &line->options;
    if (!options->tuning_cache)
        options->tuning_cache = line->default_cache = default_cache_path();
    else if (strcmp(options->tuning_cache, "none") == 0)
        options->tuning_cache = NULL;
    options->progress = line->quiet ? NULL : stderr;
    options->warnings = stderr;
    return check_line(line);
}

int main(int argc, char **argv)
{
    struct command_line line = {0};
    struct status status, write_status;
    status_clear(&status);
    cli_begin("engbuild");
    int code = read_line(&line, argc, argv);
    bool ok = code == CLI_DONE;
    if (ok && line.help)
        fputs(usage, stdout);
    else if (ok && line.version)
        printf("engbuild %s (engine format %d.%d)\n", BUILDER_VERSION, ENGINE_MAJOR, ENGINE_MINOR);
    else if (ok)
        ok = build_engine(&line.options, &status);
    free(line.default_cache);
    /* An incomplete report has already been reported, with a better message. */
    if (!cli_flush(&write_status) && (ok || cli_reader_left()))
        code = cli_fail_status(&write_status);
    else if (!ok && !code)
        code = cli_fail_status(&status);
    return cli_end(code);
}
