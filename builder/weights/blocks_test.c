/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of several matrices from one tensor that is read both transposed and as it is, as latent attention has them: packed elements
 * on one rank and several, and elements that are taken twice or not at all. */
#include <sys/mman.h>
#include <unistd.h>

#include "builder/passes/pass.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/matmul/panel.h"

enum { HEADS = 6, KEY_ROWS = 3, VALUE_ROWS = 19, PERIOD = KEY_ROWS + VALUE_ROWS, COLUMNS = 21 };
enum { ROWS = HEADS * PERIOD, ELEMENTS = ROWS * COLUMNS, BYTES = ELEMENTS * sizeof(float) };

struct fixture {
    struct tensor_view view;
    struct checkpoint checkpoint;
    struct model_config rank_config;
    struct graph graph;
    float *elements; /* [ELEMENTS], a file's: packing gives pages of tensors back */
};
static struct fixture fixture;

static void begin(uint32_t ranks)
{
    struct fixture *f = &fixture;
    struct status status = {0};
    const int file = memfd_create("tensor", 0);
    assert_true(file >= 0 && ftruncate(file, BYTES) == 0);
    float *elements = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(elements != MAP_FAILED);
    close(file);
    *f = (struct fixture){.view = {.name = "kv",
                                   .dtype = DTYPE_F32,
                                   .rank = 2,
                                   .shape = {ROWS, COLUMNS},
                                   .data = elements,
                                   .bytes = BYTES},
                          .elements = elements};
    for (int i = 0; i < ELEMENTS; i++) f->elements[i] = (float)i + 0.5f;
    f->checkpoint.tensors = &f->view;
    f->checkpoint.tensor_count = 1;
    struct model_config *config = &f->checkpoint.config;
    snprintf(config->model_type, sizeof config->model_type, "phi9");
    config->heads = HEADS, config->kv_heads = 1, config->intermediate_size = 12;
    test_expect_success(shard_config(config, ranks, &f->rank_config, &status), &status);
    graph_init(&f->graph, config, PLAN_DECODE);
    f->graph.ranks = ranks;
    f->graph.rank_config = &f->rank_config;
}

static void end(void)
{
    graph_free(&fixture.graph);
    munmap(fixture.elements, BYTES);
}

/* The matrices of heads [0, heads): keys transposed, [COLUMNS, KEY_ROWS], or values, [VALUE_ROWS, COLUMNS]. */
static int add_matrices(bool of_values, uint64_t heads)
{
    int weight = -1;
    for (uint64_t head = 0; head < heads; head++) {
        struct weight_source source = {.shape = {ROWS, COLUMNS}};
        if (of_values)
            source.first_row = head * PERIOD + KEY_ROWS, source.rows = VALUE_ROWS;
        else
            source.transposed = true, source.first_column = head * PERIOD, source.columns = KEY_ROWS;
        if (head == 0)
            weight = graph_weight_from(&fixture.graph, 0, WEIGHT_MATRIX, &source, "kv");
        else
            graph_weight_append(&fixture.graph, weight, &source, "kv");
    }
    struct graph_weight *made = &fixture.graph.weights[weight];
    snprintf(made->name, sizeof made->name, of_values ? "values" : "keys");
    made->experts = heads;
    made->interleave = PANEL_ROWS;
    made->rows = graph_weight_rows(made);
    graph_shard(&fixture.graph, weight, SHARD_MATRICES);
    return weight;
}

static bool bind(struct status *status)
{
    *status = (struct status){0};
    return pass_shard.run(&fixture.graph, status) &&
           bind_weights(&fixture.graph, &fixture.checkpoint, &(struct weight_types){0}, status);
}

/* Matrix `matrix` of a rank's weight at `panels` must be that of `head`. */
static void check_matrix(const uint8_t *panels, bool of_values, uint64_t matrix, uint64_t head)
{
    const uint64_t rows = of_values ? VALUE_ROWS : COLUMNS, columns = of_values ? COLUMNS : KEY_ROWS;
    struct panel_form form;
    assert_true(panel_form(ENCODING_F32, &form));
    for (uint64_t row = 0; row < 2 * PANEL_ROWS; row++) {
        float found[COLUMNS];
        panel_read(&form, panels, matrix * 2 * PANEL_ROWS + row, columns, 0, columns, found);
        for (uint64_t column = 0; column < columns; column++) {
            const uint64_t at =
                head * PERIOD * COLUMNS + (of_values ? (KEY_ROWS + row) * COLUMNS + column : column * COLUMNS + row);
            assert_true(found[column] == (row < rows ? (float)at + 0.5f : 0)); /* after the last row zeros */
        }
    }
}

TEST(ranks_have_whole_matrices)
{
    static const uint32_t ranks[] = {1, 2, 3, 6};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        struct status status;
        uint64_t total;
        begin(ranks[i]);
        const int keys = add_matrices(false, HEADS), values = add_matrices(true, HEADS);
        test_expect_success(bind(&status) && plan_weights(&fixture.graph, &total, &status), &status);
        struct packer *packer = packer_open(&fixture.graph, &fixture.checkpoint, total, &status);
        uint8_t *bytes = malloc(total);
        assert_true(packer && bytes);
        test_expect_success(packer_read(packer, 0, total, bytes, &status), &status);
        const uint64_t heads = HEADS / ranks[i];
        for (uint32_t rank = 0; rank < ranks[i]; rank++)
            for (int of_values = 0; of_values < 2; of_values++) {
                const struct graph_weight *weight = &fixture.graph.weights[of_values ? values : keys];
                assert_int_equal(weight->rows, heads * 2 * PANEL_ROWS);
                for (uint64_t matrix = 0; matrix < heads; matrix++)
                    check_matrix(bytes + total / ranks[i] * rank + weight->offset, of_values, matrix,
                                 rank * heads + matrix);
            }
        packer_close(packer);
        free(bytes);
        end();
    }
}

TEST(every_element_is_taken_once)
{
    struct status status;
    begin(1);
    add_matrices(false, HEADS - 1);
    add_matrices(true, HEADS);
    test_expect_failure(bind(&status), &status, STATUS_BAD_INPUT,
                        "'kv'|rows 110 to 110 (of columns 0 to 0) are not used|model_type 'phi9'");
    end();
    begin(1);
    add_matrices(false, HEADS);
    add_matrices(true, HEADS);
    const struct weight_source again = {.shape = {ROWS, COLUMNS}, .first_row = 2, .rows = 1};
    graph_weight_from(&fixture.graph, 0, WEIGHT_ROW_MAJOR, &again, "kv");
    test_expect_failure(bind(&status), &status, STATUS_INTERNAL, "'kv': row 2 is taken twice");
    end();
}

int main(void) { return test_run(); }
