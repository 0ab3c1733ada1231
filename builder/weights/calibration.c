/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/calibration.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/base/checked.h"

enum { BLOCK = CALIBRATION_BLOCK, BLOCK_FLOATS = BLOCK * BLOCK };

/* Vectors with an element for each column of the matrices. */
enum { MAGNITUDES, ERROR_WEIGHTS, VECTORS };

/* Part of the mean of the diagonal that is added to it: columns that never vary alone would get factors without bound. */
static const double damping = 0.01;

static uint64_t blocks_of(uint64_t columns) { return (columns + BLOCK - 1) / BLOCK; }

/* A matrix of experts has none: few of the rows reach each of them, and sums for all would take as much memory as the model. */
static bool is_calibrated(const struct graph_weight *weight)
{
    return weight->used && !weight->experts && !weight->keeps_codes && weight->columns &&
           encoding_find(weight->encoding)->bits == 4;
}

/* A new file without a name. */
static int open_scratch(const char *folder)
{
    const int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
    char *path = NULL; /* a file system without such files */
    if (asprintf(&path, "%s/calibration.XXXXXX", folder) < 0) return -1;
    const int named = mkostemp(path, O_CLOEXEC);
    if (named >= 0) unlink(path);
    free(path);
    return named;
}

bool calibration_open(struct calibration *calibration, const struct graph *graph, const char *folder,
                      struct status *status)
{
    const size_t count = (size_t)graph->weight_count * graph->ranks;
    uint64_t floats = 0;
    *calibration = (struct calibration){.weight_count = graph->weight_count, .ranks = graph->ranks};
    calibration->offsets = malloc((count + 1) * sizeof *calibration->offsets);
    if (!calibration->offsets) return status_fail(status, STATUS_MACHINE, "out of memory while calibrating");
    for (size_t i = 0; i < count; i++) {
        const struct graph_weight *weight = &graph->weights[i % (size_t)graph->weight_count];
        calibration->offsets[i] = UINT64_MAX;
        if (!is_calibrated(weight)) continue;
        calibration->offsets[i] = floats;
        floats += blocks_of(weight->depth) * BLOCK_FLOATS;
    }
    if (floats == 0) return true;
    calibration->floats = floats;
    floats += VECTORS * (floats / BLOCK);
    calibration->bytes = floats * sizeof(float);
    const int file = open_scratch(folder);
    if (file < 0 || ftruncate(file, (off_t)calibration->bytes) != 0 ||
        posix_fallocate(file, 0, (off_t)calibration->bytes) != 0) {
        if (file >= 0) close(file);
        calibration->bytes = 0;
        return status_fail(status, STATUS_MACHINE, "%s: no room for the statistics of --calibrate (%.1f GB)", folder,
                           (double)floats * sizeof(float) * 1e-9);
    }
    void *memory = mmap(NULL, calibration->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) {
        calibration->bytes = 0;
        return status_fail(status, STATUS_MACHINE, "out of memory while calibrating");
    }
    calibration->matrices = memory;
    return true;
}

void calibration_close(struct calibration *calibration)
{
    free(calibration->offsets);
    if (calibration->matrices) munmap(calibration->matrices, calibration->bytes);
    *calibration = (struct calibration){0};
}

static float *matrices_of(const struct calibration *calibration, uint32_t rank, int weight)
{
    if (!calibration->offsets || weight < 0) return NULL;
    const uint64_t offset = calibration->offsets[(size_t)rank * (size_t)calibration->weight_count + (size_t)weight];
    return offset == UINT64_MAX ? NULL : calibration->matrices + offset;
}

/* The elements for the columns of `matrices` on. */
static float *vector_of(const struct calibration *calibration, const float *matrices, int vector)
{
    const uint64_t first = (uint64_t)(matrices - calibration->matrices) / BLOCK;
    return calibration->matrices + calibration->floats + (uint64_t)vector * (calibration->floats / BLOCK) + first;
}

const float *calibration_factors(const struct calibration *calibration, uint32_t rank, int weight)
{
    return matrices_of(calibration, rank, weight);
}

const float *calibration_magnitudes(const struct calibration *calibration, uint32_t rank, int weight)
{
    const float *matrices = matrices_of(calibration, rank, weight);
    return matrices ? vector_of(calibration, matrices, MAGNITUDES) : NULL;
}

const float *calibration_error_weights(const struct calibration *calibration, uint32_t rank, int weight)
{
    const float *matrices = matrices_of(calibration, rank, weight);
    return matrices ? vector_of(calibration, matrices, ERROR_WEIGHTS) : NULL;
}

enum { MOST_ROWS = 8 };
typedef float vector __attribute__((vector_size(16)));

/* sums[i, j] += sum over MOST_ROWS rows of x[i] * x[j] for j from i on, and for a few before it that have no meaning. */
static void add_products(float *sums, const vector x[][BLOCK / 4], uint64_t width)
{
    for (uint64_t i = 0; i < width; i++) {
        vector *to = (vector *)(void *)(sums + i * BLOCK);
        for (uint64_t j = i / 4; j < (width + 3) / 4; j++) {
            vector sum = to[j];
            for (int row = 0; row < MOST_ROWS; row++) sum += x[row][i / 4][i % 4] * x[row][j];
            to[j] = sum;
        }
    }
}

void calibration_add(struct calibration *calibration, uint32_t rank, int weight, const float *x, uint64_t rows,
                     uint64_t columns, const struct team_member *member)
{
    vector part[MOST_ROWS][BLOCK / 4];
    float *matrices = matrices_of(calibration, rank, weight);
    const uint64_t blocks = blocks_of(columns);
    for (uint64_t block = (uint64_t)member->index; matrices && block < blocks; block += (uint64_t)member->count) {
        const uint64_t first = block * BLOCK, width = columns - first < BLOCK ? columns - first : BLOCK;
        for (uint64_t row = 0; row < rows; row += MOST_ROWS) {
            const uint64_t count = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
            memset(part, 0, sizeof part);
            for (uint64_t i = 0; i < count; i++) memcpy(part[i], x + (row + i) * columns + first, width * sizeof *x);
            add_products(matrices + block * BLOCK_FLOATS, (const vector(*)[BLOCK / 4]) part, width);
        }
    }
}

/* In place, of a symmetric positive definite matrix [n, n] whose upper half is given: the lower factor L, H = L L^T. */
static bool factorise(double *h, uint64_t n)
{
    for (uint64_t j = 0; j < n; j++) {
        double *row = h + j * BLOCK;
        for (uint64_t k = 0; k < j; k++) {
            const double *other = h + k * BLOCK;
            double sum = row[k];
            for (uint64_t i = 0; i < k; i++) sum -= row[i] * other[i];
            row[k] = sum / other[k];
        }
        double rest = row[j];
        for (uint64_t i = 0; i < j; i++) rest -= row[i] * row[i];
        if (!(rest > 0)) return false;
        row[j] = sqrt(rest);
    }
    return true;
}

/* With the columns in reverse order, H = L L^T makes H^-1 = M^T M with M = L^-1, which reversed again is upper triangular:
 * the factor U. */
static bool make_factors(float *sums, uint64_t n, double kept, double *h, double *inverse, float *magnitudes,
                         float *error_weights)
{
    double mean = 0;
    for (uint64_t i = 0; i < n; i++) {
        mean += (double)sums[i * BLOCK + i] / (double)n;
        magnitudes[i] = sqrtf(sums[i * BLOCK + i]);
    }
    const double added = mean > 0 ? damping * mean : 1;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j <= i; j++) {
            const uint64_t a = n - 1 - i, b = n - 1 - j; /* a <= b */
            h[i * BLOCK + j] = i == j ? (double)sums[a * BLOCK + b] + added : kept * (double)sums[a * BLOCK + b];
        }
    if (!factorise(h, n)) return false;
    for (uint64_t j = 0; j < n; j++) /* column by column of L^-1 */
        for (uint64_t i = j; i < n; i++) {
            double sum = i == j;
            for (uint64_t k = j; k < i; k++) sum -= h[i * BLOCK + k] * inverse[k * BLOCK + j];
            inverse[i * BLOCK + j] = sum / h[i * BLOCK + i];
        }
    for (uint64_t i = 0; i < n; i++) {
        const double *row = inverse + (n - 1 - i) * BLOCK, diagonal = row[n - 1 - i];
        for (uint64_t j = i; j < n; j++) sums[i * BLOCK + j] = (float)(row[n - 1 - j] / diagonal);
        error_weights[i] = (float)(1 / (diagonal * diagonal));
    }
    return true;
}

struct finishing {
    struct calibration *calibration;
    const struct graph *graph;
    double kept; /* part of the covariances that is believed */
    atomic_bool failed;
};

static void finish_some(void *argument, struct team_member *member)
{
    struct finishing *job = argument;
    double *work = malloc(2 * sizeof *work * BLOCK_FLOATS);
    uint32_t ticket = team_ticket(member), item = 0;
    if (!work) atomic_store(&job->failed, true);
    for (uint32_t rank = 0; work && rank < job->calibration->ranks; rank++)
        for (int w = 0; w < job->calibration->weight_count; w++) {
            float *matrices = matrices_of(job->calibration, rank, w);
            const uint64_t depth = job->graph->weights[w].depth;
            for (uint64_t block = 0; matrices && block < blocks_of(depth); block++, item++) {
                if (item != ticket) continue;
                const uint64_t left = depth - block * BLOCK;
                memset(work, 0, 2 * sizeof *work * BLOCK_FLOATS);
                float *sums = matrices + block * BLOCK_FLOATS;
                if (!make_factors(sums, left < BLOCK ? left : BLOCK, job->kept, work, work + BLOCK_FLOATS,
                                  vector_of(job->calibration, sums, MAGNITUDES),
                                  vector_of(job->calibration, sums, ERROR_WEIGHTS)))
                    atomic_store(&job->failed, true);
                ticket = team_ticket(member);
            }
        }
    free(work);
}

bool calibration_finish(struct calibration *calibration, const struct graph *graph, struct team *team,
                        struct status *status)
{
    /* Few tokens show covariances that are none: they are believed the more the more tokens there are for a column. */
    const double tokens = (double)calibration->tokens;
    struct finishing job = {.calibration = calibration, .graph = graph, .kept = tokens / (tokens + BLOCK)};
    team_run(team, finish_some, &job);
    return !atomic_load(&job.failed) ||
           status_fail(status, STATUS_MACHINE, "out of memory, or activations that are not finite, while calibrating");
}
