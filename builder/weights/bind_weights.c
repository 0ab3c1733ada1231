/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builder/weights/coded.h"
#include "builder/weights/weights.h"
#include "formats/base/checked.h"
#include "formats/base/file.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/weight_layout.h"

/* ---- claims: sources take every element of every tensor of a checkpoint, and none twice ----
 *
 * Claims are rows by columns. Columns are cut where any claim begins or ends; within such a strip a claim has all columns or
 * none, and every row must have exactly one claim. Where some claims are transposed and others are not, elements are counted one by
 * one. */

/* The sources that take parts of one tensor. */
struct tensor_claims {
    const struct weight_source **sources;
    size_t count, capacity;
};

/* False after an allocation failure. */
static bool claims_add(struct tensor_claims *claims, const struct weight_source *source)
{
    if (claims->count == claims->capacity) {
        const size_t capacity = claims->capacity ? 2 * claims->capacity : 2;
        const struct weight_source **larger = realloc(claims->sources, capacity * sizeof *larger);
        if (!larger) return false;
        claims->sources = larger;
        claims->capacity = capacity;
    }
    claims->sources[claims->count++] = source;
    return true;
}

static void claims_free(struct tensor_claims *claims) { free(claims->sources); }

static uint64_t first_column(const struct weight_source *source) { return source->columns ? source->first_column : 0; }

static uint64_t end_column(const struct weight_source *source)
{
    return source->columns ? source->first_column + source->columns : 1;
}

/* The end of the strip that begins at `column`. */
static uint64_t strip_end(const struct tensor_claims *claims, uint64_t column, uint64_t columns)
{
    uint64_t end = columns;
    for (size_t c = 0; c < claims->count; c++) {
        const uint64_t begins = first_column(claims->sources[c]), ends = end_column(claims->sources[c]);
        if (begins > column && begins < end) end = begins;
        if (ends > column && ends < end) end = ends;
    }
    return end;
}

static bool fail_twice(const struct tensor_view *tensor, const char *what, uint64_t row, struct status *status)
{
    return status_fail(status, STATUS_INTERNAL, "tensor '%s': %s %" PRIu64 " is taken twice", tensor->name, what, row);
}

/* Rows [from, until) of the strip have no claim. */
static bool fail_left(const struct tensor_view *tensor, bool transposed, uint64_t from, uint64_t until, uint64_t column,
                      uint64_t end, bool all_columns, const char *reader, struct status *status)
{
    char part[96] = "";
    const char *rows = transposed ? "columns" : "rows", *columns = transposed ? "rows" : "columns";
    if (!all_columns) snprintf(part, sizeof part, " (of %s %" PRIu64 " to %" PRIu64 ")", columns, column, end - 1);
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s': %s %" PRIu64 " to %" PRIu64 "%s are not used by %s as config.json "
                       "describes it; an engine without them would compute something else",
                       tensor->name, rows, from, until - 1, part, reader);
}

static bool strip_is_covered(const struct tensor_claims *claims, const struct tensor_view *tensor, uint8_t *taken,
                             uint64_t column, uint64_t end, const char *reader, struct status *status)
{
    const bool transposed = claims->sources[0]->transposed;
    const uint64_t rows = source_tensor_rows(claims->sources[0]), columns = source_tensor_columns(claims->sources[0]);
    memset(taken, 0, rows);
    for (size_t c = 0; c < claims->count; c++) {
        const struct weight_source *source = claims->sources[c];
        if (first_column(source) > column || end_column(source) < end) continue;
        for (uint64_t row = 0; row < source->rows / source->repeat; row++) {
            const uint64_t at = source_tensor_row(source, row);
            if (taken[at]++) return fail_twice(tensor, transposed ? "column" : "row", at, status);
        }
    }
    const uint8_t *left = memchr(taken, 0, rows);
    if (!left) return true;
    const uint64_t from = (uint64_t)(left - taken);
    uint64_t until = from + 1;
    while (until < rows && !taken[until]) until++;
    return fail_left(tensor, transposed, from, until, column, end, end - column == columns, reader, status);
}

/* The same for a tensor that is read both transposed and as it is. */
static bool elements_are_covered(const struct tensor_claims *claims, const struct tensor_view *tensor,
                                 const char *reader, struct status *status)
{
    const uint64_t *shape = tensor->shape, count = shape[0] * shape[1]; /* only matrices are transposed */
    uint8_t *taken = calloc(count, 1);
    bool ok = taken || status_fail(status, STATUS_MACHINE, "out of memory while binding weights");
    for (size_t c = 0; ok && c < claims->count; c++) {
        const struct weight_source *source = claims->sources[c];
        for (uint64_t row = 0; ok && row < source->rows / source->repeat; row++)
            for (uint64_t column = 0; ok && column < source->columns; column++) {
                const uint64_t at = source_element(source, row, column);
                if (taken[at]++) ok = fail_twice(tensor, "row", at / shape[1], status);
            }
    }
    const uint8_t *left = ok ? memchr(taken, 0, count) : NULL;
    if (left) {
        const uint64_t row = (uint64_t)(left - taken) / shape[1], column = (uint64_t)(left - taken) % shape[1];
        ok = fail_left(tensor, false, row, row + 1, column, column + 1, false, reader, status);
    }
    free(taken);
    return ok;
}

/* Checks the claims on one tensor. Requires: at least one claim, each with the shape of `tensor` and without a fault.
 * False, naming rows or columns of the tensor, if some are unclaimed; `reader` names the reader that omits them
 * ("model_type 'phi3'"). */
static bool claims_cover(const struct tensor_claims *claims, const struct tensor_view *tensor, const char *reader,
                         struct status *status)
{
    const struct weight_source *first = claims->sources[0];
    const uint64_t rows = source_tensor_rows(first), columns = source_tensor_columns(first);
    /* A source takes each of its elements once. */
    if (claims->count == 1 && source_elements(first) == rows * columns) return true;
    for (size_t c = 1; c < claims->count; c++)
        if (claims->sources[c]->flat != first->flat)
            return status_fail(status, STATUS_INTERNAL, "tensor '%s' is read both flat and as it is", tensor->name);
    for (size_t c = 1; c < claims->count; c++)
        if (claims->sources[c]->transposed != first->transposed)
            return elements_are_covered(claims, tensor, reader, status);
    uint8_t *taken = malloc(rows);
    bool ok = taken || status_fail(status, STATUS_MACHINE, "out of memory while binding weights");
    for (uint64_t column = 0, end; ok && column < columns; column = end) {
        end = strip_end(claims, column, columns);
        ok = strip_is_covered(claims, tensor, taken, column, end, reader, status);
    }
    free(taken);
    return ok;
}

/* ---- binding ---- */

static bool readable(enum dtype dtype) { return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static void shape_text(const uint64_t *shape, int rank, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, i ? ", %" PRIu64 : "%" PRIu64, shape[i]);
    if (used < size) snprintf(out + used, size - used, "]");
}

static bool check_tensor(const struct weight_source *source, const struct tensor_view *tensor, struct status *status)
{
    int rank = 0;
    if (!tensor)
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s' is missing; config.json asks for it (is the checkpoint complete?)",
                           source->tensor);
    while (rank < SOURCE_MAX_RANK && source->shape[rank]) rank++;
    const bool is_number = tensor->rank == 0 && rank == 1 && source->shape[0] == 1; /* without a dimension */
    if (!is_number &&
        (tensor->rank != rank || memcmp(tensor->shape, source->shape, (size_t)rank * sizeof *source->shape) != 0)) {
        char expected[96], found[128];
        shape_text(source->shape, rank, expected, sizeof expected);
        shape_text(tensor->shape, tensor->rank, found, sizeof found);
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': expected shape %s from config.json, found %s", source->tensor,
                           expected, found);
    }
    if (source->codes != ENCODING_NONE && !tensor->quantised)
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': expected codes, as the quantization_config says, found %s",
                           source->tensor, dtype_name(tensor->dtype));
    if (!readable(tensor->dtype))
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': expected dtype F32, F16 or BF16, found %s", source->tensor,
                           dtype_name(tensor->dtype));
    return true;
}

/* AutoGPTQ stored zeros for layers without a bias. */
static bool is_zero_bias(const struct graph *graph, const struct tensor_view *tensor)
{
    if (graph->config->quantisation.method != QUANT_GPTQ || !file_has_suffix(tensor->name, ".bias")) return false;
    const uint8_t *data = tensor->data;
    uint64_t i = 0;
    while (i < tensor->bytes && data[i] == 0) i++;
    return data && i == tensor->bytes;
}

/* What makes keys and values, in a layer that reads those of another one. */
static bool is_of_shared_keys(const struct model_config *config, uint64_t layer, const char *rest)
{
    static const char *const modules[] = {".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.",
                                          ".self_attn.v_norm."};
    if (layer >= config->layers || !config->layer[layer].shares) return false;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (strncmp(rest, modules[i], strlen(modules[i])) == 0) return true;
    return false;
}

/* Whether the first number among the name's parts is not 0. */
static bool is_of_later_layer(const char *name)
{
    const char *part = name;
    while ((part = strchr(part, '.')) && !isdigit((unsigned char)*++part)) continue;
    return part && strtoul(part, NULL, 10) > 0;
}

/* Layers that predict the tokens after the next one, and parts of layers that have no use. */
static bool is_of_ignored_layer(const struct model_config *config, const char *name)
{
    static const char prefix[] = "model.layers.";
    const char *other = config->ignored_prefix;
    /* With --mtp tensors of the first such layer must be used: one that nothing reads is refused. */
    if (other && strncmp(name, other, strlen(other)) == 0) return !config->predicts || is_of_later_layer(name);
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    char *end;
    const unsigned long layer = strtoul(name + sizeof prefix - 1, &end, 10);
    if (is_of_shared_keys(config, layer, end)) return true;
    /* Copies of the model's own, or they would be used. */
    if (config->predicts && layer + 1 == config->layers)
        return strcmp(end, ".embed_tokens.weight") == 0 || strcmp(end, ".shared_head.head.weight") == 0;
    return *end == '.' && !other && layer >= config->layers && layer - config->layers < config->ignored_layers;
}

/* Causal masks that checkpoints of GPT-2, GPT-Neo, GPT-J and GPT-NeoX hold beside the weights. */
static bool is_mask(const struct tensor_view *tensor)
{
    static const char *const masks[] = {".attn.bias", ".attention.bias"};
    static const char *const values[] = {".attn.masked_bias", ".attention.masked_bias"};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        if (file_has_suffix(tensor->name, masks[i]) && tensor->rank == 4 && tensor->shape[0] == 1 &&
            tensor->shape[1] == 1 && tensor->shape[2] == tensor->shape[3])
            return true;
        if (file_has_suffix(tensor->name, values[i]) && tensor->rank == 0) return true;
    }
    return false;
}

void weights_take_short_names(struct graph *graph, const struct checkpoint *checkpoint)
{
    for (int w = 0; w < graph->weight_count; w++)
        for (int i = 0; i < graph->weights[w].source_count; i++) {
            char *name = graph->weights[w].sources[i].tensor;
            const char *rest = name ? strchr(name, '.') : NULL;
            if (rest && !checkpoint_find(checkpoint, name) && checkpoint_find(checkpoint, rest + 1))
                memmove(name, rest + 1, strlen(rest)); /* with its end */
        }
}

/* The tensor of the model's embedding, under the family's name for it. */
static const char *embedding_of(const struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].op == OP_EMBED && graph->nodes[n].layer == GRAPH_NO_LAYER)
            return graph->weights[graph->nodes[n].operands[EMBED_TABLE]].sources[0].tensor;
    return NULL;
}

/* Tensors that some writers store although they carry no information. */
static bool redundant(const struct graph *graph, const struct checkpoint *checkpoint, const struct tensor_view *tensor,
                      struct status *status)
{
    if (file_has_suffix(tensor->name, ".rotary_emb.inv_freq")) return true; /* computed from config.json */
    if (is_zero_bias(graph, tensor) || is_mask(tensor) || is_of_ignored_layer(graph->config, tensor->name)) return true;
    if (strcmp(tensor->name, "lm_head.weight") == 0 && graph->config->tie_word_embeddings) {
        const char *name = embedding_of(graph);
        const struct tensor_view *embedding = name ? checkpoint_find(checkpoint, name) : NULL;
        if (embedding && embedding->data && tensor->data && embedding->dtype == tensor->dtype &&
            embedding->bytes == tensor->bytes && memcmp(embedding->data, tensor->data, tensor->bytes) == 0)
            return true;
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor 'lm_head.weight' differs from '%s' although config.json says "
                           "tie_word_embeddings = true; set it to false to use both",
                           name ? name : "the embedding");
    }
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s' is not used by model_type '%s' as config.json describes it; an engine "
                       "without it would compute something else",
                       tensor->name, graph->config->model_type);
}

/* Vectors that an op reads in one dtype, such as the norms of q and k heads; a checkpoint may mix them. */
static void unify_dtypes(struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        const struct op_descriptor *op = op_find(node->op);
        for (int i = 0; i < op->operand_count; i++)
            for (int j = 0; j < i; j++) {
                if (!graph_has_weight(node, i) || !graph_has_weight(node, j)) continue;
                struct graph_weight *a = &graph->weights[node->operands[i]], *b = &graph->weights[node->operands[j]];
                if (op->operands[i].dtype == op->operands[j].dtype && a->encoding != b->encoding)
                    a->encoding = b->encoding = ENCODING_F32;
            }
    }
}

/* Checks the sources of a weight, notes them as claims on their tensors (NULL: not), and finds the encoding that holds the elements of
 * all: the tensors' own, or F32 where these differ or arithmetic makes other values. */
static bool bind_weight(const struct graph_weight *weight, const struct checkpoint *checkpoint,
                        struct tensor_claims *claims, enum encoding_id *common, struct status *status)
{
    *common = ENCODING_NONE;
    for (int i = 0; i < weight->source_count; i++) {
        const struct weight_source *source = &weight->sources[i];
        const char *fault = source_fault(source);
        if (!fault && source->columns != weight->sources[0].columns) fault = "has other columns than the first";
        if (fault) return status_fail(status, STATUS_INTERNAL, "weight '%s': source %d %s", weight->name, i, fault);
        enum encoding_id own = source_keeps_type(source) ? ENCODING_NONE : ENCODING_F32;
        if (source->tensor) {
            const struct tensor_view *tensor = checkpoint_find(checkpoint, source->tensor);
            if (!check_tensor(source, tensor, status)) return false;
            if (claims && !source->again && !claims_add(&claims[tensor - checkpoint->tensors], source))
                return status_fail(status, STATUS_MACHINE, "out of memory while binding weights");
            if (own == ENCODING_NONE) own = (enum encoding_id)tensor->dtype;
        }
        if (*common == ENCODING_NONE)
            *common = own;
        else if (own != ENCODING_NONE && own != *common)
            *common = ENCODING_F32;
    }
    if (*common == ENCODING_NONE) *common = ENCODING_F32; /* zeros alone */
    return true;
}

/* ---- encodings ---- */

static bool patterns_match(const struct graph *graph, const struct weight_types *types, struct status *status)
{
    for (int k = 0; k < types->kept_count; k++) {
        bool matches = false;
        for (int w = 0; w < graph->weight_count && !matches; w++)
            matches = graph->weights[w].columns && weight_types_match(&types->kept[k], &graph->weights[w]);
        if (!matches)
            return status_fail(
                status, STATUS_BAD_INPUT,
                "--keep: '%s' matches no matrix of the model; expected a pattern of tensor names such as "
                "'*.down_proj.weight'",
                types->kept[k].pattern);
    }
    return true;
}

/* Devices multiply activations of one type by every matrix; codes are multiplied as BF16. */
static bool has_multiplied_type(const struct graph *graph, const struct graph_weight *weight, struct status *status)
{
    const enum dtype type = graph->compute_dtype;
    if (!graph_is_multiplied(weight)) return true;
    if (!encoding_is_plain(weight->encoding))
        return type == DTYPE_BF16 ||
               status_fail(
                   status, STATUS_BAD_INPUT,
                   "weight '%s': a GPU multiplies its codes (%s) as BF16, and the other matrices are %s; choose "
                   "--dtype bf16, or another type for this weight (--keep)",
                   weight->name, encoding_label(weight->encoding), dtype_name(type));
    return (int)weight->encoding == (int)type ||
           status_fail(status, STATUS_BAD_INPUT,
                       "weight '%s': expected %s, which all matrices without codes have in this engine for GPUs, found "
                       "%s (--dtype, --head-dtype, --keep)",
                       weight->name, dtype_name(type), encoding_label(weight->encoding));
}

/* The encoding that keeps the weight's codes on each of `ranks` ranks: those in the checkpoint or, without one (NULL), those that its
 * sources must have. ENCODING_NONE: there is none. */
static enum encoding_id kept_encoding(const struct graph *graph, const struct graph_weight *weight,
                                      const struct checkpoint *checkpoint, uint32_t ranks)
{
    const char *why;
    if (!graph_is_multiplied(weight)) return ENCODING_NONE;
    if (checkpoint) return coded_encoding(weight, checkpoint, ranks, graph->target == TARGET_CPU, &why);
    return weight->source_count ? coded_that_splits(weight, weight->sources[0].codes, ranks) : ENCODING_NONE;
}

/* Codes that one GPU would keep and several cannot are not decoded without being asked for: the engine would be several times as large,
 * and a GPU's memory is small. Processors get them decoded. */
static bool refuse_divided_groups(const struct graph *graph, const struct graph_weight *weight, enum encoding_id whole,
                                  struct status *status)
{
    uint64_t columns = 0;
    const uint32_t group = encoding_find(whole)->block_columns;
    for (int i = 0; i < weight->source_count; i++)
        if (weight->sources[i].rank_columns % group) columns = weight->sources[i].rank_columns;
    return status_fail(status, STATUS_BAD_INPUT,
                       "--gpus %" PRIu32 ": tensor '%s' has codes (%s) with one scale for %" PRIu32
                       " columns, and each GPU would have %" PRIu64
                       " columns; expected whole groups: choose another --gpus, or --dtype bf16 to decode all codes",
                       graph->ranks, weight->sources[0].tensor ? weight->sources[0].tensor : weight->name,
                       encoding_label(whole), group, columns);
}

/* Changes the encoding of the weight's tensors into that which the engine has. */
static bool choose_encoding(const struct graph *graph, struct graph_weight *weight, const struct checkpoint *checkpoint,
                            const struct weight_types *types, struct status *status)
{
    const enum encoding_id asked = weight_types_ask(types, weight);
    if (asked != ENCODING_NONE)
        weight->encoding = asked;
    else if (graph->target == TARGET_CUDA && graph_is_multiplied(weight))
        weight->encoding = (enum encoding_id)graph->compute_dtype;
    const enum encoding_id found = kept_encoding(graph, weight, checkpoint, graph->ranks);
    weight->keeps_codes = found != ENCODING_NONE && (asked == ENCODING_NONE || asked == found);
    if (weight->keeps_codes) weight->encoding = found;
    if (graph->target == TARGET_CUDA && found == ENCODING_NONE && asked == ENCODING_NONE && !types->decodes &&
        types->matrices == ENCODING_NONE && graph->ranks > 1) {
        const enum encoding_id whole = kept_encoding(graph, weight, checkpoint, 1);
        if (whole != ENCODING_NONE) return refuse_divided_groups(graph, weight, whole, status);
    }
    if (graph->target == TARGET_CUDA && !has_multiplied_type(graph, weight, status)) return false;
    if (!weight_layout_has(graph_weight_layout(graph, weight), weight->encoding))
        return status_fail(status, STATUS_INTERNAL, "weight '%s': no layout has %s", weight->name,
                           encoding_name(weight->encoding));
    const enum encoding_id splits = coded_that_splits(weight, weight->encoding, graph->ranks);
    if (splits == weight->encoding || (splits != ENCODING_NONE && !types->fixed_group)) {
        weight->encoding = splits;
        return true;
    }
    return status_fail(status, STATUS_BAD_INPUT,
                       "weight '%s': %" PRIu32 " GPUs would divide a group of %" PRIu32
                       " columns with one scale; choose a smaller --group or another --dtype",
                       weight->name, graph->ranks, encoding_find(weight->encoding)->block_columns);
}

static bool all_consumed(const struct graph *graph, const struct checkpoint *checkpoint,
                         const struct tensor_claims *claims, struct status *status)
{
    char reader[sizeof graph->config->model_type + 16];
    snprintf(reader, sizeof reader, "model_type '%s'", graph->config->model_type);
    for (size_t t = 0; t < checkpoint->tensor_count; t++) {
        const struct tensor_view *tensor = &checkpoint->tensors[t];
        if (claims[t].count ? !claims_cover(&claims[t], tensor, reader, status)
                            : !redundant(graph, checkpoint, tensor, status))
            return false;
    }
    return true;
}

bool bind_weights(struct graph *graph, const struct checkpoint *checkpoint, const struct weight_types *types,
                  struct status *status)
{
    bool ok = false;
    weights_take_short_names(graph, checkpoint);
    if (!patterns_match(graph, types, status)) return false;
    struct tensor_claims *claims = calloc(checkpoint->tensor_count + 1, sizeof *claims);
    if (!claims) return status_fail(status, STATUS_MACHINE, "out of memory while binding weights");
    for (int w = 0; w < graph->weight_count; w++) {
        struct graph_weight *weight = &graph->weights[w];
        enum encoding_id common;
        if (weight->source_count == 0) continue; /* they moved to another weight */
        if (!bind_weight(weight, checkpoint, claims, &common, status)) goto done;
        weight->encoding = common;
        if (!choose_encoding(graph, weight, checkpoint, types, status)) goto done;
    }
    if (!all_consumed(graph, checkpoint, claims, status)) goto done;
    unify_dtypes(graph);
    ok = true;
done:
    for (size_t t = 0; t < checkpoint->tensor_count; t++) claims_free(&claims[t]);
    free(claims);
    return ok;
}

static bool assume_weight(const struct graph *graph, struct graph_weight *weight, enum encoding_id encoding,
                          const struct weight_types *types, struct status *status)
{
    bool tensors = false;
    for (int i = 0; i < weight->source_count; i++) tensors |= weight->sources[i].tensor != NULL;
    weight->encoding = tensors ? encoding : ENCODING_F32;
    if (weight->source_count && weight->sources[0].codes != ENCODING_NONE) {
        const enum encoding_id kept = coded_that_splits(weight, weight->sources[0].codes, graph->ranks);
        weight->encoding = kept != ENCODING_NONE ? kept : ENCODING_F32;
    }
    return !types || !weight->source_count || choose_encoding(graph, weight, NULL, types, status);
}

bool assume_weights(struct graph *graph, enum encoding_id encoding, const struct weight_types *types,
                    struct status *status)
{
    if (types && !patterns_match(graph, types, status)) return false;
    for (int w = 0; w < graph->weight_count; w++)
        if (!assume_weight(graph, &graph->weights[w], encoding, types, status)) return false;
    return true;
}

/* ---- joins ---- */

/* Sources [first, end) of a weight as one of their own; its name is that of their first tensor. */
static struct graph_weight part_of(const struct graph_weight *weight, int first, int end)
{
    struct graph_weight part = *weight;
    part.sources += first;
    part.source_count = end - first;
    if (first && part.sources[0].tensor) snprintf(part.name, sizeof part.name, "%s", part.sources[0].tensor);
    return part;
}

/* Sets encoding and keeps_codes of a part as bind_weights would, without a checkpoint as assume_weights would. */
static bool encode_part(const struct graph *graph, struct graph_weight *part, const struct checkpoint *checkpoint,
                        enum encoding_id assumed, const struct weight_types *types)
{
    struct status ignored = {0}; /* what makes a weight impossible is reported where weights are bound */
    if (!checkpoint) return assume_weight(graph, part, assumed, types, &ignored);
    return bind_weight(part, checkpoint, NULL, &part->encoding, &ignored) &&
           choose_encoding(graph, part, checkpoint, types, &ignored);
}

/* The router of a layer has a row for the gate of its shared expert, which is then an expert in any case. */
static bool has_shared_gate(const struct graph *graph, uint32_t layer)
{
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (weight->layer == layer && weight->join == GRAPH_JOIN_SHARED && !weight->experts) return true;
    }
    return false;
}

/* Calibration leaves out matrices of experts, and a shared expert multiplies every row: it stays a matrix that is calibrated. */
static bool loses_calibration(const struct graph *graph, const struct graph_weight *part)
{
    return part->join == GRAPH_JOIN_SHARED && part->experts && !part->keeps_codes &&
           encoding_find(part->encoding)->bits == 4 && !has_shared_gate(graph, part->layer);
}

static bool parts_agree(const struct graph *graph, const struct graph_weight *weight,
                        const struct checkpoint *checkpoint, enum encoding_id assumed, const struct weight_types *types,
                        bool calibrated)
{
    struct graph_weight first = part_of(weight, 0, weight->joined_from),
                        second = part_of(weight, weight->joined_from, weight->source_count);
    for (int k = 0; k < types->kept_count; k++)
        if (weight_types_match(&types->kept[k], &first) != weight_types_match(&types->kept[k], &second)) return false;
    return encode_part(graph, &first, checkpoint, assumed, types) &&
           encode_part(graph, &second, checkpoint, assumed, types) && first.encoding == second.encoding &&
           first.keeps_codes == second.keeps_codes && !(calibrated && loses_calibration(graph, &second));
}

void choose_joins(uint8_t *joins, struct graph *graph, const struct checkpoint *checkpoint, enum encoding_id assumed,
                  const struct weight_types *types, bool calibrated)
{
    if (checkpoint) weights_take_short_names(graph, checkpoint);
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (weight->join && weight->source_count && !parts_agree(graph, weight, checkpoint, assumed, types, calibrated))
            joins[weight->layer] &= (uint8_t)~weight->join;
    }
}

static bool packed_bytes(const struct graph *graph, const struct graph_weight *weight, uint64_t *bytes)
{
    const uint64_t columns = weight->form == WEIGHT_MATRIX ? weight->depth : weight->columns ? weight->columns : 1;
    return weight_layout_bytes(graph_weight_layout(graph, weight), weight->encoding, weight->rows, columns, bytes);
}

bool plan_weights(struct graph *graph, uint64_t *total_bytes, struct status *status)
{
    enum { BIG_BYTES = 64 << 10, BIG_ALIGNMENT = 4096 }; /* big matrices begin on a page of their own */
    uint64_t end = 0;
    for (int w = 0; w < graph->weight_count; w++) {
        struct graph_weight *weight = &graph->weights[w];
        if (!weight->used) continue;
        if (!packed_bytes(graph, weight, &weight->bytes))
            return status_fail(status, STATUS_BAD_INPUT, "weight '%s' does not fit into 64-bit sizes", weight->name);
        /* Devices copy whole 128-byte lines, fastest from the start of one. */
        uint64_t small = graph->target == TARGET_CPU ? PLAN_ALIGNMENT : 4 * PLAN_ALIGNMENT;
        uint64_t alignment = weight->bytes >= BIG_BYTES ? BIG_ALIGNMENT : small;
        if (!checked_align(end, alignment, &weight->offset) || !checked_add(weight->offset, weight->bytes, &end))
            return status_fail(status, STATUS_BAD_INPUT, "the weights do not fit into 64-bit sizes");
    }
    /* Each rank's share is a region of its own: checked and uploaded by itself. */
    uint64_t unit = graph->ranks > 1 ? (uint64_t)ENGINE_REGION_ALIGNMENT : (uint64_t)PLAN_ALIGNMENT;
    if (!checked_align(end, unit, &end) || !checked_mul(end, graph->ranks, total_bytes))
        return status_fail(status, STATUS_BAD_INPUT, "the weights do not fit into 64-bit sizes");
    return true;
}

bool share_encodings(struct graph *to, const struct graph *from, struct status *status)
{
    if (to->weight_count != from->weight_count)
        return status_fail(status, STATUS_INTERNAL, "decode and prefill graphs have different weights");
    for (int w = 0; w < to->weight_count; w++) {
        struct graph_weight *weight = &to->weights[w];
        const struct graph_weight *source = &from->weights[w];
        if (strcmp(weight->name, source->name) != 0 || weight->form != source->form ||
            weight->interleave != source->interleave)
            return status_fail(status, STATUS_INTERNAL, "decode and prefill graphs differ in weight '%s'",
                               source->name);
        weight->encoding = source->encoding;
        weight->keeps_codes = source->keeps_codes;
    }
    return true;
}

bool share_weights(struct graph *to, const struct graph *from, struct status *status)
{
    if (!share_encodings(to, from, status)) return false;
    for (int w = 0; w < to->weight_count; w++) {
        struct graph_weight *weight = &to->weights[w];
        const struct graph_weight *source = &from->weights[w];
        if (weight->used != source->used || weight->experts != source->experts)
            return status_fail(status, STATUS_INTERNAL, "decode and prefill graphs differ in weight '%s'",
                               source->name);
        weight->offset = source->offset;
        weight->bytes = source->bytes;
    }
    return true;
}

uint64_t count_parameters(const struct graph *graph)
{
    uint64_t total = 0;
    for (int w = 0; w < graph->weight_count; w++)
        for (int i = 0; i < graph->weights[w].source_count; i++)
            total += graph->weights[w].sources[i].again ? 0 : source_elements(&graph->weights[w].sources[i]);
    return total;
}
