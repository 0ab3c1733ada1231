/* SPDX-License-Identifier: Apache-2.0 */
/* make_checkpoint: a checkpoint of random weights in the shape described by a config.json, for measurements at full
 * size. The architecture's import defines the tensors. The same seed gives the same bytes. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder/arch/arch.h"
#include "builder/build.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/cli/cli_flags.h"
#include "kernels/cpu/team.h"

static const char usage[] =
    "usage: make_checkpoint --config FOLDER -o FOLDER [options]\n"
    "\n"
    "Writes config.json and model.safetensors with random weights: matrices uniform with standard deviation\n"
    "1/sqrt(columns), so that activations keep their size, norm weights and factors around 1, or around 0 where the\n"
    "model adds 1 to them, those of q smaller where the model does not scale scores.\n"
    "\n";

enum { CHUNK_ELEMENTS = 1 << 20 };

/* Written chunk by chunk, in any order. */
struct making {
    struct file_output output;
    uint64_t begin; /* of the first tensor in the file */
    struct tensor_view *tensors;
    float *centres; /* of the values of each */
    size_t count;
    uint64_t seed;
    atomic_bool failed;
    struct status *status; /* written by the thread that sets `failed` first */
};

/* SplitMix64 (Steele, Lea, Flood 2014): four 16-bit values per step. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t chunks_of(const struct tensor_view *tensor)
{
    uint64_t elements = tensor->bytes / dtype_bytes(tensor->dtype);
    return (elements + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
}

/* Uniform in [centre - reach, centre + reach]. */
static void fill_chunk(const struct tensor_view *tensor, float centre, uint64_t elements, uint64_t state, void *buffer)
{
    const bool matrix = tensor->rank == 2;
    const float reach = matrix ? sqrtf(3.0f / (float)tensor->shape[1]) : 0.1f;
    uint16_t *halves = buffer;
    float *floats = buffer;
    uint64_t bits = 0;
    for (uint64_t i = 0; i < elements; i++, bits >>= 16) {
        if (i % 4 == 0) bits = next_random(&state);
        const float value = centre + reach * ((float)(int16_t)(bits & 0xffff) * 0x1p-15f);
        if (tensor->dtype == DTYPE_F32)
            floats[i] = value;
        else
            halves[i] = tensor->dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    }
}

/* The bytes of a chunk depend only on the seed and on its number. */
static bool write_chunk(struct making *making, uint64_t number, void *buffer, struct status *status)
{
    uint64_t offset = making->begin, chunk = number, state = making->seed;
    const struct tensor_view *tensor = making->tensors;
    for (; chunk >= chunks_of(tensor); tensor++) {
        chunk -= chunks_of(tensor);
        offset += tensor->bytes;
    }
    const uint64_t bytes = dtype_bytes(tensor->dtype), first = chunk * CHUNK_ELEMENTS;
    const uint64_t left = tensor->bytes / bytes - first, elements = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
    state = next_random(&state) + number;
    fill_chunk(tensor, making->centres[tensor - making->tensors], elements, next_random(&state), buffer);
    return file_output_patch(&making->output, offset + first * bytes, buffer, elements * bytes, status);
}

static void write_chunks(void *argument, struct team_member *member)
{
    struct making *making = argument;
    struct status status;
    uint64_t chunks = 0, number;
    status_clear(&status);
    for (size_t t = 0; t < making->count; t++) chunks += chunks_of(&making->tensors[t]);
    void *buffer = malloc(CHUNK_ELEMENTS * sizeof(float));
    bool ok = buffer || status_fail(&status, STATUS_MACHINE, "out of memory");
    while (ok && (number = team_ticket(member)) < chunks && !atomic_load(&making->failed))
        ok = write_chunk(making, number, buffer, &status);
    free(buffer);
    if (!ok && !atomic_exchange(&making->failed, true)) *making->status = status;
}

static bool write_all(struct making *making, struct status *status)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < making->count; t++) bytes += making->tensors[t].bytes;
    making->begin = making->output.position;
    making->status = status;
    atomic_init(&making->failed, false);
    if (!file_output_reserve(&making->output, bytes, status)) return false;
    struct team *team = team_create(0, status);
    if (!team) return false;
    team_run(team, write_chunks, making);
    team_destroy(team);
    return !atomic_load(&making->failed);
}

/* Around what the tensor's values lie. */
static float centre_of(const struct model_config *config, const struct weight_source *source)
{
    static const char *const factors[] = {"layer_scalar", "router.scale", "per_expert_scale"};
    /* Where scores are not divided by the root of a head's size, the norm of q does so in trained models. */
    if (strstr(source->tensor, "q_norm") && config->attention_scale == 1) return 1 / sqrtf((float)source->shape[0]);
    if (strstr(source->tensor, "norm")) return 1.0f - source->add;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (strstr(source->tensor, factors[i])) return 1;
    return 0;
}

/* Several sources may be parts of one tensor. */
static void add_tensor(struct making *making, const struct model_config *config, const struct weight_source *source,
                       enum dtype dtype)
{
    if (!source->tensor) return;
    for (size_t t = 0; t < making->count; t++)
        if (strcmp(making->tensors[t].name, source->tensor) == 0) return;
    making->centres[making->count] = centre_of(config, source);
    struct tensor_view *tensor = &making->tensors[making->count++];
    *tensor = (struct tensor_view){.name = source->tensor, .dtype = dtype, .bytes = dtype_bytes(dtype)};
    for (; tensor->rank < SOURCE_MAX_RANK && source->shape[tensor->rank]; tensor->rank++) {
        tensor->shape[tensor->rank] = source->shape[tensor->rank];
        tensor->bytes *= source->shape[tensor->rank];
    }
}

static bool write_weights(const struct graph *graph, enum dtype dtype, uint64_t seed, const char *path,
                          struct status *status)
{
    size_t capacity = 0;
    for (int w = 0; w < graph->weight_count; w++) capacity += (size_t)graph->weights[w].source_count;
    struct making making = {.output = {.descriptor = -1}, .seed = seed};
    making.tensors = calloc(capacity + 1, sizeof *making.tensors);
    making.centres = calloc(capacity + 1, sizeof *making.centres);
    if (!making.tensors || !making.centres) {
        free(making.tensors), free(making.centres);
        return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    for (int w = 0; w < graph->weight_count; w++)
        for (int i = 0; i < graph->weights[w].source_count; i++)
            add_tensor(&making, graph->config, &graph->weights[w].sources[i], dtype);
    bool ok = file_output_open(&making.output, path, status) &&
              safetensors_write_header(&making.output, making.tensors, making.count, status) &&
              write_all(&making, status) && file_output_commit(&making.output, status);
    file_output_abandon(&making.output);
    free(making.tensors), free(making.centres);
    return ok;
}

static bool copy_config(const char *from, const char *to, struct status *status)
{
    char *text;
    size_t size;
    struct file_output output = {.descriptor = -1};
    if (!file_read(from, 16 << 20, &text, &size, status)) return false;
    bool ok = file_output_open(&output, to, status) && file_output_write(&output, text, size, status) &&
              file_output_commit(&output, status);
    file_output_abandon(&output);
    free(text);
    return ok;
}

static bool make(const char *config, const char *folder, enum dtype dtype, bool mtp, uint64_t seed,
                 struct status *status)
{
    bool ok = false;
    struct checkpoint checkpoint;
    struct graph graph = {0};
    char from[4096], to[4096], weights[4096];
    snprintf(from, sizeof from, "%s/config.json", config);
    snprintf(to, sizeof to, "%s/config.json", folder);
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    if (!checkpoint_open(&checkpoint, config, true, arch_read_config, status)) return false;
    if (mtp && !arch_add_predictor(&checkpoint.config, status)) goto done;
    graph_init(&graph, &checkpoint.config, PLAN_DECODE);
    if (!import_graph(&graph, status)) goto done;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        status_fail_errno(status, STATUS_MACHINE, errno, "cannot create folder '%s'", folder);
        goto done;
    }
    ok = write_weights(&graph, dtype, seed, weights, status) && copy_config(from, to, status);
done:
    graph_free(&graph);
    checkpoint_close(&checkpoint);
    return ok;
}

int main(int argc, char **argv)
{
    static const struct cli_choice dtypes[] = {{"bf16", DTYPE_BF16},
                                               {"fp16", DTYPE_F16},
                                               {"f32", DTYPE_F32},
                                               {.name = NULL}};
    const char *config = NULL, *folder = NULL;
    int dtype = DTYPE_BF16;
    uint64_t seed = 1;
    bool mtp = false, finished = false;
    struct status status = {0};
    const struct cli_flag flags[] = {
        {"config", 0, "FOLDER", .text = &config, .help = "the folder whose config.json gives the shape"},
        {"output", 'o', "FOLDER", .text = &folder, .help = "the checkpoint; made if it does not exist"},
        {"dtype", 0, "TYPE", .choice = &dtype, .choices = dtypes,
         .help = "of the weights: bf16 (default), fp16 or f32"},
        {"mtp", .set = &mtp, .help = "with the layer that predicts further tokens"},
        {"seed", 0, "N", .number = &seed, .most = UINT64_MAX, .help = "the same seed gives the same bytes (1)"},
        {.name = NULL},
    };
    const struct cli_command command = {usage, {flags}, "\n" CLI_EXIT_CODES "\n", BUILDER_VERSION};
    cli_begin("make_checkpoint");
    int code = cli_read_flags(&command, argc, argv, &finished);
    if (!code && !finished) {
        if (!config || !folder || optind < argc)
            code = cli_usage("expected --config FOLDER and -o FOLDER, found %s", !config         ? "no --config"
                                                                                 : optind < argc ? argv[optind]
                                                                                                 : "no -o");
        else if (!make(config, folder, (enum dtype)dtype, mtp, seed, &status))
            code = cli_fail_status(&status);
    }
    return cli_end(code);
}
