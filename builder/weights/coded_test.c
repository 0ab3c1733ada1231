/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of quantised checkpoints: an engine for a GPU has the elements that one for the CPU has, bit for bit, and both have those of
 * the checkpoint. */
#include <math.h>

#include "builder/arch/arch.h"
#include "builder/passes/pass.h"
#include "builder/weights/coded.h"
#include "builder/weights/column_orders.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "formats/base/test_support.h"
#include "kernels/matmul/weight_layout.h"

static const char *const models[] = {
    "awq-w4-g32",
    "ct-fp8-channel",
    "ct-mxfp4",
    "ct-nvfp4",
    "ct-w4a16-g32",
    "ct-w4a16-g64-asym",
    "ct-w8a8-int",
    "fp8-block",
    "gptq-w8-channel-v2",
    "modelopt-nvfp4",
    "gptq-w4-g32-sym",
    "fp8-tensor-static",
    "gptq-w4-g64-asym-actorder",
};

/* Packed weights for a target. */
struct packed {
    struct graph graph;
    struct column_orders orders;
    uint64_t bytes;
    uint8_t *weights;
};

static void pack(struct packed *packed, const struct checkpoint *checkpoint, const struct model_config *rank_config,
                 uint32_t ranks, enum engine_target target)
{
    struct status status = {0};
    graph_init(&packed->graph, &checkpoint->config, PLAN_DECODE);
    packed->graph.target = target;
    packed->graph.compute_dtype = target == TARGET_CUDA ? DTYPE_BF16 : DTYPE_F32;
    packed->graph.ranks = ranks;
    packed->graph.rank_config = rank_config;
    const struct weight_types types = {0};
    bool ok = import_graph(&packed->graph, &status) && column_orders_open(&packed->orders, checkpoint, &status) &&
              column_orders_add(&packed->graph, &packed->orders, checkpoint, &types, &status) &&
              run_passes(&packed->graph, NULL, NULL, &status) &&
              bind_weights(&packed->graph, checkpoint, &types, &status) &&
              plan_weights(&packed->graph, &packed->bytes, &status);
    test_expect_success(ok, &status);
    packed->weights = malloc(packed->bytes);
    assert_non_null(packed->weights);
    struct packer *packer = packer_open(&packed->graph, checkpoint, packed->bytes, &status);
    ok = packer && packer_read(packer, 0, packed->bytes, packed->weights, &status);
    test_expect_success(ok, &status);
    packer_close(packer);
}

static void unpack(struct packed *packed)
{
    graph_free(&packed->graph);
    column_orders_close(&packed->orders);
    free(packed->weights);
}

/* Where a row of a source lies in the weight. */
static uint64_t place_of(const struct graph_weight *weight, int source, uint64_t row)
{
    const uint64_t group = weight->interleave, count = (uint64_t)weight->source_count;
    uint64_t first = 0;
    if (group) return (row / group * count + (uint64_t)source) * group + row % group;
    for (int i = 0; i < source; i++) first += weight->sources[i].rank_rows;
    return first + row;
}

static void read_row(const struct packed *packed, const struct graph_weight *weight, uint32_t rank, int source,
                     uint64_t row, float *values)
{
    const uint8_t *at = packed->weights + packed->bytes / packed->graph.ranks * rank + weight->offset;
    const enum tensor_layout layout = graph_weight_layout(&packed->graph, weight);
    struct panel_form form;
    assert_int_equal(layout, packed->graph.target == TARGET_CPU ? LAYOUT_PANEL16 : LAYOUT_FRAGMENT16);
    assert_true(weight_layout_form(layout, weight->encoding, &form));
    panel_read(&form, at, place_of(weight, source, row), weight->depth, 0, weight->depth, values);
}

/* Returns how many elements were compared. */
static uint64_t compare(const struct packed *cpu, const struct packed *cuda, const struct checkpoint *checkpoint,
                        const char *name)
{
    uint64_t compared = 0;
    for (int w = 0; w < cuda->graph.weight_count; w++) {
        const struct graph_weight *left = &cpu->graph.weights[w], *right = &cuda->graph.weights[w];
        assert_string_equal(left->name, right->name);
        if (!right->used || encoding_is_plain(right->encoding)) continue;
        assert_int_equal(left->encoding, right->encoding);
        assert_true(right->keeps_codes);
        float *values = malloc(3 * right->depth * sizeof *values);
        float *found = values + right->depth, *source_values = found + right->depth;
        for (uint32_t rank = 0; rank < cuda->graph.ranks; rank++)
            for (int s = 0; s < right->source_count; s++) {
                const struct weight_source *source = &right->sources[s];
                const struct shard_slice slice = shard_slice(source, rank, cuda->graph.ranks);
                for (uint64_t row = 0; row < slice.rows; row++, compared += right->columns) {
                    read_row(cpu, left, rank, s, row, values);
                    read_row(cuda, right, rank, s, row, found);
                    source_read(source, checkpoint_find(checkpoint, source->tensor), slice.first_row + row,
                                slice.first_column, right->columns, source_values);
                    for (uint64_t k = 0; k < right->columns; k++)
                        if (values[k] != found[k] ||
                            fabsf(values[k] - source_values[k]) > 1e-6f * fabsf(source_values[k]))
                            fail_msg(
                                "%s: %s row %llu column %llu: %g for the GPU, %g for the CPU, %g in the checkpoint",
                                name, right->name, (unsigned long long)row, (unsigned long long)k, (double)found[k],
                                (double)values[k], (double)source_values[k]);
                }
            }
        free(values);
    }
    return compared;
}

TEST(both_targets_keep_the_same_elements)
{
    if (!test_shared()) skip();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            struct status status = {0};
            struct checkpoint checkpoint;
            struct model_config rank_config;
            struct packed cpu = {0}, cuda = {0};
            char path[512];
            snprintf(path, sizeof path, "%s/models/quantised/%s", test_shared(), models[m]);
            test_expect_success(checkpoint_open(&checkpoint, path, false, arch_read_config, &status), &status);
            test_expect_success(shard_config(&checkpoint.config, ranks, &rank_config, &status), &status);
            pack(&cpu, &checkpoint, &rank_config, ranks, TARGET_CPU);
            pack(&cuda, &checkpoint, &rank_config, ranks, TARGET_CUDA);
            assert_true(compare(&cpu, &cuda, &checkpoint, models[m]) > 100000);
            unpack(&cpu);
            unpack(&cuda);
            checkpoint_close(&checkpoint);
        }
}

/* Elements of a row of floats that is encoded in a target's layout. */
static void encode_row(enum tensor_layout layout, enum encoding_id encoding, const float *floats, uint64_t count,
                       float *values)
{
    struct panel_form form;
    struct coded_row row;
    uint64_t refused;
    float copy[1024];
    assert_true(weight_layout_form(layout, encoding, &form));
    assert_true(coded_row_open(&row, &form, count));
    uint8_t *panel =
        calloc(1, layout == LAYOUT_PANEL16 ? panel_bytes(count, encoding) : fragment_bytes(count, encoding));
    assert_non_null(panel);
    memcpy(copy, floats, count * sizeof *floats);
    assert_true(coded_from_floats(&form, copy, count, NULL, &row, &refused));
    panel_pack_coded(&form, &row, 5, count, panel);
    panel_read(&form, panel, 5, count, 0, count, values);
    free(panel);
    coded_row_close(&row);
}

/* Groups of very different magnitudes, so that scales take many values. On a GPU numbers of tables are rounded to bfloat16. */
TEST(both_targets_encode_floats_alike)
{
    enum { COUNT = 1024, ROWS = 200 };
    uint64_t random = 5;
    float floats[COUNT], cpu[COUNT], cuda[COUNT];
    for (size_t e = 0; encoding_at(e); e++) {
        const struct encoding *encoding = encoding_at(e);
        struct panel_form form;
        if (encoding_is_plain(encoding->id) || !weight_layout_form(LAYOUT_FRAGMENT16, encoding->id, &form) ||
            !weight_layout_form(LAYOUT_PANEL16, encoding->id, &form))
            continue;
        for (int row = 0; row < ROWS; row++) {
            for (int i = 0; i < COUNT; i += 16) {
                const float size = ldexpf(1, -(int)(test_random(&random) % 15));
                for (int k = 0; k < 16; k++) floats[i + k] = size * ((float)(test_random(&random) % 20001) / 10000 - 1);
            }
            encode_row(LAYOUT_PANEL16, encoding->id, floats, COUNT, cpu);
            encode_row(LAYOUT_FRAGMENT16, encoding->id, floats, COUNT, cuda);
            for (int i = 0; i < COUNT; i++)
                if (fabsf(cpu[i] - cuda[i]) > (encoding->code == CODE_TABLE ? 0x1p-8f * fabsf(cpu[i]) : 0))
                    fail_msg("%s row %d element %d: %g for the GPU, %g for the CPU, of %g", encoding->name, row, i,
                             (double)cuda[i], (double)cpu[i], (double)floats[i]);
        }
    }
}

int main(void) { return test_run(); }
