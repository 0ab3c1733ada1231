/* SPDX-License-Identifier: Apache-2.0 */
/* engbuild: command line of the builder. Flags in, build_options out; errors to stderr, reports to stdout. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "builder/arch/arch.h"
#include "builder/build.h"
#include "builder/gpu_record.h"
#include "builder/passes/pass.h"
#include "formats/base/file.h"
#include "formats/cli/cli_flags.h"
#include "formats/engine/engine_file.h"
#include "kernels/cpu/team.h"
#include "kernels/cuda/compile_workers.h"
#include "kernels/cuda/device.h"

static const char usage[] = "usage: engbuild --model PATH [-o FILE] [options]\n"
                            "\n"
                            "Builds an engine file from a Hugging Face checkpoint, tuned on this machine.\n"
                            "\n";

enum { MOST_BATCH = 4096, MOST_CHUNK = 16384, MOST_CONTEXT = 1 << 24, MOST_DEVICE = 1024 };

/* The sizes that were given, sorted, without repetitions. */
static bool sort_sizes(const char *flag, const struct cli_list *given, uint32_t *list, int *count)
{
    for (size_t i = 0; i < given->count; i++) {
        int at = 0;
        while (at < *count && list[at] < given->values[i]) at++;
        if (at < *count && list[at] == given->values[i]) continue;
        if (*count == BUILD_MAX_PLANS) {
            cli_usage("%s: expected at most %d values, found more", flag, BUILD_MAX_PLANS);
            return false;
        }
        memmove(list + at + 1, list + at, (size_t)(*count - at) * sizeof *list);
        list[at] = (uint32_t)given->values[i];
        ++*count;
    }
    return true;
}

/* int4 and int8: with the default group. */
static const struct cli_choice dtypes[] = {{"auto", ENCODING_NONE},         {"f32", ENCODING_F32},
                                           {"fp16", ENCODING_F16},          {"bf16", ENCODING_BF16},
                                           {"int8", ENCODING_INT8_CHANNEL}, {"int4", ENCODING_INT4_G128},
                                           {"fp8", ENCODING_E4M3_CHANNEL},  {"mxfp4", ENCODING_MXFP4},
                                           {"nvfp4", ENCODING_NVFP4},       {NULL, 0}};
static const struct cli_choice groups[] = {{"32", 32}, {"64", 64}, {"128", 128}, {NULL, 0}};
static const struct cli_choice kv_dtypes[] = {{"auto", ENCODING_NONE},
                                              {"f32", ENCODING_F32},
                                              {"fp16", ENCODING_F16},
                                              {"bf16", ENCODING_BF16},
                                              {"int8", ENCODING_INT8_CHANNEL},
                                              {"fp8", ENCODING_E4M3_CHANNEL},
                                              {NULL, 0}};
static const struct cli_choice compute_dtypes[] = {{"f32", ENCODING_F32},
                                                   {"bf16", ENCODING_BF16},
                                                   {"int8", ENCODING_INT8_G32},
                                                   {"fp8", ENCODING_E4M3_CHANNEL},
                                                   {NULL, 0}};
static const struct cli_choice tune_levels[] = {{"off", TUNE_OFF},
                                                {"quick", TUNE_QUICK},
                                                {"full", TUNE_FULL},
                                                {NULL, 0}};
static const struct cli_choice targets[] = {{"cpu", TARGET_CPU}, {"cuda", TARGET_CUDA}, {NULL, 0}};

struct command_line {
    struct build_options options;
    struct cli_list batch_sizes, prefill_chunks, mixed_steps, verify_rows;
    int target, dtype, head_dtype, group, compute, kv_dtype, tune; /* the enums of the options */
    bool head_given;
    const char *kept;
    uint64_t gpus, device, threads; /* 0: not given */
    bool target_given, quiet, list_models, finished;
    char *default_cache; /* owned */
};

static int read_flags(struct command_line *line, int argc, char **argv)
{
    struct build_options *options = &line->options;
    const struct cli_flag flags[] = {
        {"model", 0, "PATH", .text = &options->model,
         .help =
             "folder, .safetensors or .index.json file, with config.json and the tokenizer beside it; or a .gguf file"},
        {"output", 'o', "FILE", .text = &options->output, .help = "engine file (default: model.eng)"},
        {"target", 0, "cpu|cuda", .choice = &line->target, .choices = targets, .given = &line->target_given,
         .help = "what to build for (default: cuda where there is a GPU, else cpu)"},
        {"gpus", 0, "N", .number = &line->gpus, .least = 1, .most = PLAN_MAX_RANKS,
         .help = "share the model among N GPUs, from --device on (default: 1, at most 16); cpu: N ranks that share the "
                 "processors"},
        {"gpu", 0, "NAME", .text = &options->gpu,
         .help = "with --dry-run or --list-candidates: plan for the GPU of this name (h200), which this machine need "
                 "not have"},
        {"device", 0, "N", .number = &line->device, .most = MOST_DEVICE,
         .help = "the GPU to build on, or the first of them (default: 0)"},
        {"no-peer-access", .set = &options->no_peer_access,
         .help = "GPUs exchange through the host's memory, as where they have no access to each other's: for machines "
                 "on which that access is broken"},
        {"max-batch", 0, "N", .number = &options->max_batch, .least = 1, .most = MOST_BATCH,
         .help = "sequences that decode at once (default: 8; cuda: 32)"},
        {"max-context", 0, "N", .number = &options->max_context, .least = 1, .most = MOST_CONTEXT,
         .help = "tokens per sequence (default: the model's, at most 32768)"},
        {"batch-sizes", 0, "LIST", .list = &line->batch_sizes, .least = 1, .most = MOST_BATCH,
         .help = "decode plans, e.g. 1,2,4,8 (default: powers of two up to --max-batch)"},
        {"prefill-chunks", 0, "LIST", .list = &line->prefill_chunks, .least = 1, .most = MOST_CHUNK,
         .help = "prefill plans (default: 16,64,256; cuda: 32,128,512,2048)"},
        {"mixed-steps", 0, "LIST", .list = &line->mixed_steps, .most = MOST_CHUNK,
         .help = "rows of plans that decode sequences and read prompts in one step, at most the largest chunk; 0: none "
                 "(default: as --prefill-chunks; cuda: none)"},
        {"verify-rows", 0, "LIST", .list = &line->verify_rows, .most = MOST_CHUNK,
         .help = "rows of plans that verify drafted tokens (engrun --speculate), at most the largest chunk; 0: none "
                 "(default: 4,8; cuda, and models with recurrent layers: none without --mtp)"},
        {"dtype", 0, "TYPE", .choice = &line->dtype, .choices = dtypes,
         .help =
             "matrices in the engine: auto, f32, fp16, bf16, int8, int4, fp8, mxfp4 or nvfp4 (default: auto, as in the "
             "checkpoint; cuda: not f32, and matrices without codes are bf16 where others have codes)"},
        {"group", 0, "32|64|128", .choice = &line->group, .choices = groups,
         .help = "with --dtype int4 or int8: elements of a row that share a scale (default: 128; int8: a row)"},
        {"head-dtype", 0, "TYPE", .choice = &line->head_dtype, .choices = dtypes, .given = &line->head_given,
         .help = "the embedding and the LM head (default: int8 with --dtype int4, mxfp4 and nvfp4, else as --dtype)"},
        {"keep", 0, "PATTERN=TYPE,..", .text = &line->kept,
         .help =
             "weights whose tensors' names match a shell pattern get another type: --keep '*.down_proj.weight=int8'"},
        {"calibrate", 0, "self|FILE", .text = &options->calibrate,
         .help = "with --dtype int4, mxfp4 or nvfp4: round weights so that products of the activations of a text "
                 "change least; "
                 "self: text that the model writes"},
        {"no-accuracy", .set = &options->no_accuracy,
         .help = "do not compare weights of fewer bits with the checkpoint's, which takes time and, for a while, their "
                 "size on "
                 "the disk"},
        {"compute", 0, "f32|bf16|int8|fp8", .choice = &line->compute, .choices = compute_dtypes,
         .help =
             "to what matrix products round activations (default: f32; cuda: as the matrices, bf16 with codes, or fp8 "
             "or int8 where the checkpoint's activations are). cpu: bf16 reads prompts faster where the processor has "
             "AVX-512 BF16; "
             "int8, in blocks of 32 with a scale, "
             "makes matrices of int4 and int8 faster where it has AVX-512 VNNI, or AVX2 without AVX-512. cuda: fp8 "
             "multiplies matrices of "
             "fp8 by activations in fp8, int8 those of int8 with one scale a row and of int4 in groups of 64 or 128 by "
             "activations in int8, with a scale for each row, in plans of 32 rows or more (int4: 16)"},
        {"kv-dtype", 0, "auto|f32|fp16|bf16|int8|fp8", .choice = &line->kv_dtype, .choices = kv_dtypes,
         .help =
             "KV cache (default: auto, which is fp8 where the checkpoint's configuration says so, else f32; cuda: as "
             "the matrices, bf16 with codes). int8, fp8: codes of 8 bits with a scale for each token and KV head; fp8 "
             "with the checkpoint's static scales (k_scale, v_scale), where it has them"},
        {"tune", 0, "off|quick|full", .choice = &line->tune, .choices = tune_levels,
         .help = "off: nothing is measured, cached records and defaults (default: quick)"},
        {"tuning-cache", 0, "FILE", .text = &options->tuning_cache,
         .help = "where tuning records are kept (default: ~/.cache/engbuild/tuning.records, XDG_CACHE_HOME is "
                 "honoured); 'none' keeps none; cuda: compiled kernels are kept in FILE.kernels"},
        {"lean", .set = &options->lean, .help = "only our own kernels: the engine needs the driver and nothing else"},
        {"mtp", .set = &options->mtp,
         .help =
             "the engine drafts a token with each that it draws (engrun --speculate), by the checkpoint's own layer "
             "that predicts further tokens; sets --verify-rows 4,8 on a GPU, too"},
        {"hidden", .set = &options->hidden,
         .help = "the engine gives hidden states, which embeddings are made of (default: only of a checkpoint with a "
                 "modules.json of sentence-transformers)"},
        {"threads", 0, "N", .number = &line->threads, .least = 1, .most = TEAM_MAX_THREADS,
         .help = "threads for tuning (default: one per processor)"},
        {"dry-run", .set = &options->dry_run,
         .help = "print plans, exact memory and estimated times; write nothing; exit code 3 where the engine does not "
                 "fit"},
        {"list-candidates", .set = &options->list_candidates,
         .help = "print the tuner's candidates, legal or why not; write nothing"},
        {"list-models", .set = &line->list_models, .help = "print the supported values of model_type, as a table"},
        {"dump-after", 0, "PASS", .text = &options->dump_after, .help = "print the graph after a pass"},
        {"json", .set = &options->json, .help = "report as JSON on stdout"},
        {"quiet", .set = &line->quiet, .help = "no progress on stderr"},
        {.name = NULL},
    };
    char version[64];
    const struct cli_command command = {usage, {flags}, "\n" CLI_EXIT_CODES "\n", version};
    snprintf(version, sizeof version, "%s (engine format %d.%d)", BUILDER_VERSION, ENGINE_MAJOR, ENGINE_MINOR);
    const int code = cli_read_flags(&command, argc, argv, &line->finished);
    if (code || line->finished || !line->list_models) return code;
    char about[ARCH_ABOUT_BYTES];
    for (size_t i = 0; arch_about(i, about); i++) printf("| `%s` | %s |\n", arch_model_type(i), about);
    line->finished = true;
    return 0;
}

/* The encoding of a choice with another group; ENCODING_NONE: it has none. */
static enum encoding_id with_group(enum encoding_id choice, uint32_t group)
{
    const struct encoding *chosen = encoding_find(choice);
    for (size_t i = 0; encoding_at(i); i++) {
        const struct encoding *each = encoding_at(i);
        if (each->code == chosen->code && each->scale == SCALE_F16 && !each->zeros && each->block_columns == group)
            return each->id;
    }
    return ENCODING_NONE;
}

/* "PATTERN=TYPE,PATTERN=TYPE"; prints a message and returns false if it is not valid. */
static bool read_kept(const char *text, struct weight_types *types)
{
    for (const char *end; text && *text; text = *end ? end + 1 : end) {
        end = strchr(text, ',');
        if (!end) end = text + strlen(text);
        const char *equals = memchr(text, '=', (size_t)(end - text));
        struct weight_kept *kept = &types->kept[types->kept_count];
        const struct cli_choice *choice = dtypes;
        while (equals && choice->name &&
               (strlen(choice->name) != (size_t)(end - equals - 1) ||
                memcmp(choice->name, equals + 1, strlen(choice->name))))
            choice++;
        if (!equals || equals == text || !choice->name || (size_t)(equals - text) >= sizeof kept->pattern) {
            cli_usage("--keep: expected PATTERN=TYPE with a type of --dtype, found '%.*s'", (int)(end - text), text);
            return false;
        }
        if (types->kept_count == WEIGHT_MOST_KEPT - 1) {
            cli_usage("--keep: expected at most %d patterns", WEIGHT_MOST_KEPT - 1);
            return false;
        }
        memcpy(kept->pattern, text, (size_t)(equals - text));
        kept->pattern[equals - text] = '\0';
        kept->encoding = (enum encoding_id)choice->value;
        types->kept_count++;
    }
    return true;
}

/* Prints a message and returns false if the flags for types contradict each other. */
static bool read_types(struct command_line *line)
{
    struct weight_types *types = &line->options.types;
    types->matrices = (enum encoding_id)line->dtype;
    if (line->group) {
        if (types->matrices != ENCODING_INT4_G128 && types->matrices != ENCODING_INT8_CHANNEL) {
            cli_usage("--group: only with --dtype int4 or int8");
            return false;
        }
        types->matrices = with_group(types->matrices, (uint32_t)line->group);
        types->fixed_group = true;
    }
    const struct encoding *matrices = encoding_find(types->matrices);
    if (line->head_given) {
        types->head = (enum encoding_id)line->head_dtype;
        types->head_as_it_is = types->head == ENCODING_NONE;
    } else if (matrices && matrices->bits == 4)
        types->head = ENCODING_INT8_CHANNEL;
    return read_kept(line->kept, types);
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
    if (file_has_suffix(options->output, ".safetensors") || file_has_suffix(options->output, ".json") ||
        file_has_suffix(options->output, ".gguf"))
        return cli_usage("-o: '%s' is named as a part of a checkpoint, which an engine would replace", options->output);
    if (options->calibrate && !options->calibrate[0])
        return cli_usage("--calibrate: expected 'self' or a file, found ''");
    if (options->tuning_cache && !options->tuning_cache[0])
        return cli_usage("--tuning-cache: expected a file name or 'none', found ''");
    if (options->max_batch && options->batch_size_count &&
        options->batch_sizes[options->batch_size_count - 1] > options->max_batch)
        return cli_usage("--batch-sizes: expected at most --max-batch (%" PRIu64 "), found %u", options->max_batch,
                         options->batch_sizes[options->batch_size_count - 1]);
    if (options->json && options->dump_after)
        return cli_usage("--dump-after and --json both write to stdout; choose one");
    struct status status = {0};
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

static const char compile_worker[] = "--compile-worker"; /* for processes of engbuild itself: no flag */

static int read_line(struct command_line *line, int argc, char **argv)
{
    struct build_options *options = &line->options;
    build_options_init(options);
    line->tune = (int)options->tune;
    int code = read_flags(line, argc, argv);
    if (code || line->finished) return code;
    if (optind < argc) return cli_usage("expected --model PATH and other flags, found '%s'", argv[optind]);
    if (!sort_sizes("--batch-sizes", &line->batch_sizes, options->batch_sizes, &options->batch_size_count) ||
        !sort_sizes("--prefill-chunks", &line->prefill_chunks, options->prefill_chunks,
                    &options->prefill_chunk_count) ||
        !sort_sizes("--mixed-steps", &line->mixed_steps, options->mixed_steps, &options->mixed_step_count) ||
        !sort_sizes("--verify-rows", &line->verify_rows, options->verify_rows, &options->verify_row_count))
        return CLI_USAGE;
    if (line->target_given) options->target = (enum engine_target)line->target;
    options->compute = (enum encoding_id)line->compute;
    options->kv_dtype = (enum encoding_id)line->kv_dtype;
    options->tune = (enum tune_level)line->tune;
    options->device = (int)line->device;
    options->threads = (int)line->threads;
    if (!options->tuning_cache)
        options->tuning_cache = line->default_cache = default_cache_path();
    else if (strcmp(options->tuning_cache, "none") == 0)
        options->tuning_cache = NULL;
    options->compile_worker = compile_worker;
    options->progress = line->quiet ? NULL : stderr;
    options->warnings = stderr;
    return read_types(line) ? check_line(line) : CLI_USAGE;
}

int main(int argc, char **argv)
{
    struct command_line line = {0};
    struct status status = {0}, write_status;
    if (argc == 3 && strcmp(argv[1], compile_worker) == 0)
        return compile_worker_run(device_sources, device_source_count, argv[2]);
    cli_begin("engbuild");
    int code = read_line(&line, argc, argv);
    bool ok = code == CLI_DONE && (line.finished || build_engine(&line.options, &status));
    free(line.batch_sizes.values);
    free(line.prefill_chunks.values);
    free(line.mixed_steps.values);
    free(line.verify_rows.values);
    free(line.default_cache);
    /* An incomplete report has already been reported, with a better message. */
    if (!cli_flush(&write_status) && (ok || cli_reader_left()))
        code = cli_fail_status(&write_status);
    else if (!ok && !code)
        code = cli_fail_status(&status);
    return cli_end(code);
}
