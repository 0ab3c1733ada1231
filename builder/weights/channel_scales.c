/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/channel_scales.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "builder/weights/coded.h"
#include "builder/weights/shard.h"
#include "formats/base/file.h"
#include "kernels/matmul/weight_layout.h"

/* Rows of a matrix that decide: this many elements, and not fewer rows. */
enum { ALPHAS = 11, TRIED_ELEMENTS = 1 << 19, LEAST_TRIED_ROWS = 128 };

/* Factors beyond these cost range elsewhere, in float16 above all. */
static const double most_scale = 1024;

static double alpha_of(int step) { return (double)step / (ALPHAS - 1); }

struct choosing {
    const struct graph *engine;
    const struct checkpoint *checkpoint;
    const struct calibration *calibration;
    const struct channel_link *links;
    int link_count;
    double (*errors)[ALPHAS]; /* [link_count] */
    atomic_int *left;         /* [link_count]: alphas without an error yet */
    atomic_bool failed;
};

static const struct tensor_view *tensor_of(const struct choosing *job, const struct weight_source *source)
{
    return source->tensor ? checkpoint_find(job->checkpoint, source->tensor) : NULL;
}

/* ---- scales of one link ---- */

/* `value` as an engine has it that keeps it in an encoding of plain numbers; NaN: it cannot. */
static double rounded(enum encoding_id encoding, double value)
{
    const float wanted = (float)value;
    uint32_t bytes = 0;
    uint64_t refused;
    float found = NAN;
    if (encoding_from_float(encoding, 1, 1, &wanted, &bytes, &refused))
        encoding_to_float(encoding, 1, 1, &bytes, 0, 1, &found);
    return (double)found;
}

/* Element `row` of a norm is rounded when it is divided: the scale becomes what the division really was by. */
static double scale_of_vector(const struct choosing *job, const struct graph_weight *weight, uint64_t row, double scale)
{
    const struct weight_source *source = &weight->sources[0];
    float before;
    source_read(source, tensor_of(job, source), row, 0, 1, &before);
    const double after = rounded(weight->encoding, (double)before / scale);
    const double found = (double)before / after;
    return isfinite(found) && found > 0 ? found : 1;
}

/* rows[rank_rows]: factors of the maker's rows; columns[depth]: of the matrix's columns. */
static void make_scales(const struct choosing *job, const struct channel_link *link, uint32_t rank, double alpha,
                        float *rows, float *columns)
{
    const struct graph_weight *maker = &job->engine->weights[link->maker],
                              *matrix = &job->engine->weights[link->matrix];
    const uint64_t count = maker->sources[link->source].rank_rows, heads = link->heads, head_dim = link->head_dim;
    const float *magnitudes = calibration_magnitudes(job->calibration, link->is_shared ? 0 : rank, link->matrix);
    double sum = 0;
    uint64_t counted = 0;
    for (uint64_t row = 0; row < count; row++) {
        double square = 0;
        const uint64_t first = row / head_dim * head_dim * heads + row % head_dim;
        for (uint64_t head = 0; head < heads; head++) {
            const double magnitude = (double)magnitudes[first + head * head_dim];
            square += magnitude * magnitude;
        }
        rows[row] = square > 0 ? (float)(0.5 * log(square)) : -INFINITY;
        if (!(square > 0)) continue;
        sum += (double)rows[row];
        counted++;
    }
    const double mean = counted ? sum / (double)counted : 0;
    for (uint64_t row = 0; row < count; row++) {
        double scale = isfinite(rows[row]) ? exp(alpha * ((double)rows[row] - mean)) : 1;
        scale = fmin(fmax(scale, 1 / most_scale), most_scale);
        if (!maker->columns) scale = scale_of_vector(job, maker, row, scale);
        rows[row] = (float)(1 / scale);
    }
    for (uint64_t column = 0; column < matrix->depth; column++)
        columns[column] = column < matrix->columns ? (float)(1 / (double)rows[channel_link_row(link, column)]) : 1;
}

/* ---- the error of an alpha ---- */

struct workspace {
    float *values, *rows, *columns;
    struct coded_row coded;
    struct panel_form form;
};

static bool workspace_open(struct workspace *work, const struct choosing *job, const struct channel_link *link)
{
    const struct graph_weight *maker = &job->engine->weights[link->maker],
                              *matrix = &job->engine->weights[link->matrix];
    *work = (struct workspace){.values = malloc(matrix->depth * sizeof(float)),
                               .rows = malloc(maker->sources[link->source].rank_rows * sizeof(float)),
                               .columns = malloc(matrix->depth * sizeof(float))};
    return work->values && work->rows && work->columns &&
           weight_layout_form(graph_weight_layout(job->engine, matrix), matrix->encoding, &work->form) &&
           coded_row_open(&work->coded, &work->form, matrix->depth);
}

static void workspace_close(struct workspace *work)
{
    free(work->values);
    free(work->rows);
    free(work->columns);
    coded_row_close(&work->coded);
}

/* Infinity where a row cannot be encoded. */
static double error_of_rows(const struct choosing *job, const struct channel_link *link, uint32_t rank, double alpha,
                            uint64_t step, struct workspace *work)
{
    const struct graph_weight *matrix = &job->engine->weights[link->matrix];
    struct coded_feedback feedback = {.factors = calibration_factors(job->calibration, rank, link->matrix),
                                      .error_weights = calibration_error_weights(job->calibration, rank, link->matrix),
                                      .scales = alpha > 0 ? work->columns : NULL};
    double error = 0;
    make_scales(job, link, rank, alpha, work->rows, work->columns);
    for (int s = 0; s < matrix->source_count; s++) {
        const struct weight_source *source = &matrix->sources[s];
        const struct tensor_view *tensor = tensor_of(job, source);
        const struct shard_slice slice = shard_slice(source, rank, job->engine->ranks);
        for (uint64_t row = 0; row < slice.rows; row += step) {
            uint64_t refused;
            source_read(source, tensor, slice.first_row + row, slice.first_column, matrix->columns, work->values);
            for (uint64_t k = matrix->columns; k < matrix->depth; k++) work->values[k] = 0;
            if (!coded_from_floats(&work->form, work->values, matrix->depth, &feedback, &work->coded, &refused))
                return INFINITY;
            error += feedback.error;
        }
    }
    return error;
}

/* Nothing of the matrix's tensors is needed before packing. */
static void release(const struct choosing *job, const struct channel_link *link)
{
    const struct graph_weight *matrix = &job->engine->weights[link->matrix];
    for (int s = 0; s < matrix->source_count; s++) {
        const struct tensor_view *tensor = tensor_of(job, &matrix->sources[s]);
        if (tensor && tensor->data) file_map_release(tensor->data, tensor->bytes);
    }
}

/* From one row that is tried to the next. */
static uint64_t row_step(const struct choosing *job, const struct graph_weight *matrix)
{
    const uint64_t rows = matrix->rows * job->engine->ranks, fitting = TRIED_ELEMENTS / matrix->depth;
    const uint64_t tried = fitting > LEAST_TRIED_ROWS ? fitting : LEAST_TRIED_ROWS;
    return (rows + tried - 1) / tried;
}

static void try_some(void *argument, struct team_member *member)
{
    struct choosing *job = argument;
    for (int64_t item; (item = team_ticket(member)) < (int64_t)job->link_count * ALPHAS;) {
        const int l = (int)(item / ALPHAS), a = (int)(item % ALPHAS);
        const struct channel_link *link = &job->links[l];
        const uint64_t step = row_step(job, &job->engine->weights[link->matrix]);
        struct workspace work;
        double error = 0;
        if (!workspace_open(&work, job, link)) atomic_store(&job->failed, true);
        for (uint32_t rank = 0; rank < job->engine->ranks && !atomic_load(&job->failed); rank++)
            error += error_of_rows(job, link, rank, alpha_of(a), step, &work);
        workspace_close(&work);
        job->errors[l][a] = error;
        if (atomic_fetch_sub(&job->left[l], 1) == 1) release(job, link);
    }
}

/* ---- the choice ---- */

static int best_alpha(const double *errors)
{
    int best = 0;
    for (int a = 1; a < ALPHAS; a++)
        if (errors[a] < errors[best]) best = a;
    return best;
}

static struct weight_scales *scales_at(const struct channel_scales *scales, uint32_t rank, int weight)
{
    return &scales->weights[(size_t)rank * (size_t)scales->weight_count + (size_t)weight];
}

struct weight_scales channel_scales_of(const struct channel_scales *scales, uint32_t rank, int weight)
{
    return scales && scales->weights ? *scales_at(scales, rank, weight) : (struct weight_scales){0};
}

static void keep_scales(struct channel_scales *scales, const struct choosing *job)
{
    struct channel_scales_summary *summary = &scales->summary;
    float *next = scales->values;
    summary->matrices = job->link_count;
    for (int l = 0; l < job->link_count; l++) {
        const struct channel_link *link = &job->links[l];
        const double alpha = alpha_of(best_alpha(job->errors[l]));
        if (!(alpha > 0)) continue;
        if (summary->scaled++ == 0) summary->least_alpha = summary->most_alpha = alpha;
        summary->least_alpha = fmin(summary->least_alpha, alpha);
        summary->most_alpha = fmax(summary->most_alpha, alpha);
        for (uint32_t rank = 0; rank < scales->ranks; rank++) {
            float *rows = next, *columns = rows + job->engine->weights[link->maker].sources[link->source].rank_rows;
            next = columns + job->engine->weights[link->matrix].depth;
            make_scales(job, link, rank, alpha, rows, columns);
            scales_at(scales, rank, link->matrix)->columns = columns;
            for (int i = 0; i < 2; i++) {
                const int weight = i == 0 ? link->maker : link->bias;
                if (weight < 0) continue;
                scales_at(scales, rank, weight)->rows = rows;
                scales_at(scales, rank, weight)->source = link->source;
            }
        }
    }
}

static bool open_scales(struct channel_scales *scales, const struct choosing *job)
{
    uint64_t floats = 1;
    for (int l = 0; l < job->link_count; l++)
        floats += scales->ranks * (job->engine->weights[job->links[l].matrix].depth +
                                   job->engine->weights[job->links[l].maker].sources[job->links[l].source].rank_rows);
    scales->weights = calloc((size_t)scales->weight_count * scales->ranks + 1, sizeof *scales->weights);
    scales->values = malloc(floats * sizeof *scales->values);
    return scales->weights && scales->values;
}

bool channel_scales_choose(struct channel_scales *scales, const struct graph *model, const struct graph *engine,
                           const struct checkpoint *checkpoint, const struct calibration *calibration,
                           struct team *team, struct status *status)
{
    struct channel_link *links = NULL;
    struct choosing job = {.engine = engine, .checkpoint = checkpoint, .calibration = calibration};
    *scales = (struct channel_scales){.weight_count = engine->weight_count, .ranks = engine->ranks};
    bool ok = channel_links_find(model, engine, calibration, &links, &job.link_count, status);
    if (!ok) goto done;
    const size_t count = (size_t)job.link_count + 1;
    job.links = links;
    job.errors = calloc(count, sizeof *job.errors);
    job.left = calloc(count, sizeof *job.left);
    ok = job.errors && job.left && open_scales(scales, &job);
    for (int l = 0; ok && l < job.link_count; l++) atomic_init(&job.left[l], ALPHAS);
    if (ok) team_run(team, try_some, &job);
    ok = (ok && !atomic_load(&job.failed)) || status_fail(status, STATUS_MACHINE, "out of memory while calibrating");
    if (ok) keep_scales(scales, &job);
done:
    free(links);
    free(job.errors);
    free(job.left);
    if (!ok) channel_scales_close(scales);
    return ok;
}

void channel_scales_close(struct channel_scales *scales)
{
    free(scales->weights);
    free(scales->values);
    *scales = (struct channel_scales){0};
}
