/* make_checkpoint: a checkpoint of random weights in the shape that a config.json describes, for measurements at full
 * size. The architecture's import says which tensors there are. Same seed, same bytes. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder/import.h"
#include "formats/checkpoint.h"

static const char usage[] =
    "usage: make_checkpoint --config FOLDER -o FOLDER [--dtype bf16|fp16|f32] [--seed N]\n"
    "\n"
    "Writes config.json and model.safetensors with random weights: matrices uniform with standard\n"
    "deviation 1/sqrt(columns), so that activations keep their size, norm weights around 1.\n";

struct generator {
    uint64_t state;
    enum dtype dtype;
    uint8_t *buffer;
};

enum { BUFFER_ELEMENTS = 1 << 20 };

/* SplitMix64 (Steele, Lea, Flood 2014): four 16-bit values a step. */
static uint64_t next_random(struct generator *generator)
{
    uint64_t z = generator->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [centre - reach, centre + reach]. */
static bool write_tensor(struct generator *generator, struct file_output *output, uint64_t elements, float centre,
                         float reach, struct status *status)
{
    enum { VALUES = 1 << 16 }; /* that 16 random bits can choose */
    static float wide[VALUES];
    static uint16_t narrow[VALUES];
    float *floats = (float *)(void *)generator->buffer;
    uint16_t *halves = (uint16_t *)(void *)generator->buffer;
    uint64_t bits = 0;
    for (int i = 0; i < VALUES; i++) {
        wide[i] = centre + reach * ((float)(int16_t)i * 0x1p-15f);
        narrow[i] = generator->dtype == DTYPE_F16 ? f16_from_float(wide[i]) : bf16_from_float(wide[i]);
    }
    for (uint64_t first = 0; first < elements; first += BUFFER_ELEMENTS) {
        uint64_t count = elements - first < BUFFER_ELEMENTS ? elements - first : BUFFER_ELEMENTS;
        for (uint64_t i = 0; i < count; i++) {
            if (i % 4 == 0) bits = next_random(generator);
            if (generator->dtype == DTYPE_F32)
                floats[i] = wide[bits & 0xffff];
            else
                halves[i] = narrow[bits & 0xffff];
            bits >>= 16;
        }
        if (!file_output_write(output, generator->buffer, count * dtype_bytes(generator->dtype), status)) return false;
    }
    return true;
}

static bool write_weights(const struct graph *graph, struct generator *generator, const char *path,
                          struct status *status)
{
    bool ok = false;
    size_t count = 0, capacity = (size_t)graph->weight_count * GRAPH_MAX_PIECES;
    struct file_output output = {.descriptor = -1};
    struct tensor_view *tensors = calloc(capacity + 1, sizeof *tensors);
    generator->buffer = malloc(BUFFER_ELEMENTS * sizeof(float));
    if (!tensors || !generator->buffer) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    for (int w = 0; w < graph->weight_count; w++)
        for (int p = 0; p < graph->weights[w].piece_count; p++) {
            const struct weight_piece *piece = &graph->weights[w].pieces[p];
            struct tensor_view *tensor = &tensors[count++];
            tensor->name = piece->tensor;
            tensor->dtype = generator->dtype;
            tensor->rank = piece->columns ? 2 : 1;
            tensor->shape[0] = piece->rows;
            tensor->shape[1] = piece->columns;
            tensor->bytes = piece->rows * (piece->columns ? piece->columns : 1) * dtype_bytes(generator->dtype);
        }
    if (!file_output_open(&output, path, status) || !safetensors_write_header(&output, tensors, count, status))
        goto done;
    for (size_t t = 0; t < count; t++) {
        const struct tensor_view *tensor = &tensors[t];
        bool norm = strstr(tensor->name, "norm") != NULL, matrix = tensor->rank == 2;
        float reach = matrix ? sqrtf(3.0f / (float)tensor->shape[1]) : 0.1f;
        uint64_t elements = tensor->bytes / dtype_bytes(tensor->dtype);
        if (!write_tensor(generator, &output, elements, norm ? 1.0f : 0.0f, reach, status)) goto done;
    }
    ok = file_output_commit(&output, status);
done:
    file_output_abandon(&output);
    free(generator->buffer);
    free(tensors);
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

static bool make(const char *config, const char *folder, enum dtype dtype, uint64_t seed, struct status *status)
{
    bool ok = false;
    struct checkpoint checkpoint;
    struct graph graph = {0};
    char from[4096], to[4096], weights[4096];
    snprintf(from, sizeof from, "%s/config.json", config);
    snprintf(to, sizeof to, "%s/config.json", folder);
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    if (!checkpoint_open(&checkpoint, config, true, status)) return false;
    graph_init(&graph, &checkpoint.config, PLAN_DECODE);
    if (!import_graph(&graph, status)) goto done;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        status_fail_errno(status, STATUS_MACHINE, errno, "cannot create folder '%s'", folder);
        goto done;
    }
    struct generator generator = {.state = seed, .dtype = dtype};
    ok = write_weights(&graph, &generator, weights, status) && copy_config(from, to, status);
done:
    graph_free(&graph);
    checkpoint_close(&checkpoint);
    return ok;
}

int main(int argc, char **argv)
{
    static const struct option flags[] = {{"config", required_argument, NULL, 'c'},
                                          {"output", required_argument, NULL, 'o'},
                                          {"dtype", required_argument, NULL, 'd'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    const char *config = NULL, *folder = NULL;
    enum dtype dtype = DTYPE_BF16;
    uint64_t seed = 1;
    struct status status = {0};
    for (int flag; (flag = getopt_long(argc, argv, "o:", flags, NULL)) != -1;) {
        char *end = "";
        if (flag == 'c')
            config = optarg;
        else if (flag == 'o')
            folder = optarg;
        else if (flag == 's')
            seed = strtoull(optarg, &end, 10);
        else if (flag == 'd')
            dtype = strcmp(optarg, "bf16") == 0   ? DTYPE_BF16
                    : strcmp(optarg, "fp16") == 0 ? DTYPE_F16
                    : strcmp(optarg, "f32") == 0  ? DTYPE_F32
                                                  : DTYPE_NONE;
        else {
            fputs(usage, flag == 'h' ? stdout : stderr);
            return flag == 'h' ? 0 : 2;
        }
        if (dtype == DTYPE_NONE || *end) {
            fprintf(stderr, "make_checkpoint: expected --dtype bf16, fp16 or f32 and --seed NUMBER, found '%s'\n",
                    optarg);
            return 2;
        }
    }
    if (!config || !folder || optind < argc) {
        fputs(usage, stderr);
        return 2;
    }
    if (make(config, folder, dtype, seed, &status)) return 0;
    fprintf(stderr, "make_checkpoint: %s\n", status.message);
    return status_exit_code(&status);
}
