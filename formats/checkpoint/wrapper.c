/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/wrapper.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model[] = "model.", head[] = "lm_head.";

static const char *after(const char *name, const char *prefix)
{
    const size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 ? name + length : NULL;
}

/* What follows the module and its dot; for the module itself "". NULL: the name is of another module. */
static const char *in_module(const char *name, const char *module)
{
    const char *rest = after(name, module);
    return !rest || (*rest && *rest != '.') ? NULL : *rest ? rest + 1 : rest;
}

/* The index of the tower that has the tensor, -1: none. */
static int tower_of(const struct model_wrapper *wrapper, const char *name)
{
    const char *inner = after(name, model);
    for (int i = 0; i < WRAPPER_MAX_TOWERS && wrapper->towers[i]; i++)
        if (in_module(name, wrapper->towers[i]) || (inner && in_module(inner, wrapper->towers[i]))) return i;
    return -1;
}

/* module.model.x and module.lm_head.x without the module; (model.)module.x becomes model.x, which the name of the module ends with. */
static const char *text_name(const struct model_wrapper *wrapper, const char *name)
{
    const char *inner = after(name, model);
    const char *rest = in_module(name, wrapper->module);
    /* transformers 5.17 writes "model." twice for Qwen 2 Audio. */
    if (rest && after(rest, model) && after(after(rest, model), model)) return after(rest, model);
    if (rest && (after(rest, model) || after(rest, head))) return rest;
    if (!rest && inner) rest = in_module(inner, wrapper->module);
    return rest && *rest ? rest - (sizeof model - 1) : name;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct tensor_view *)left)->name, ((const struct tensor_view *)right)->name);
}

/* The layer of "model.layers.LAYER.rest", with what follows the number in *rest; -1: the name is none of a layer that the checkpoint
 * is said to have. */
static int layer_of(const struct model_unused *unused, const char *name, const char **rest)
{
    const char *digits = after(name, "model.layers.");
    const size_t length = digits ? strspn(digits, "0123456789") : 0;
    uint64_t layer = 0;
    if (!length || length > 4 || digits[length] != '.' || (digits[0] == '0' && length > 1)) return -1;
    for (size_t i = 0; i < length; i++) layer = 10 * layer + (uint64_t)(digits[i] - '0');
    *rest = digits + length + 1;
    return layer < unused->layers ? (int)layer : -1;
}

static void leave_out(struct model_tower *tower, const char *name, uint64_t bytes)
{
    tower->name = name;
    tower->tensors++;
    tower->bytes += bytes; /* each lies in a mapping: no overflow */
}

/* The last rows of the embedding, those for tokens of other input, are no longer part of it. */
static void cut_embedding(const struct model_config *config, struct tensor_view *tensor, struct model_tower *tower,
                          const char *name)
{
    const uint64_t rows = config->vocab_size + config->unused.embedding_rows;
    if (!config->unused.embedding_rows || tensor->rank != 2 || tensor->shape[0] != rows || tensor->bytes % rows ||
        strcmp(tensor->name, "model.embed_tokens.weight") != 0)
        return;
    const uint64_t kept = tensor->bytes / rows * config->vocab_size;
    leave_out(tower, name, tensor->bytes - kept);
    tensor->shape[0] = config->vocab_size;
    tensor->bytes = kept;
}

/* Layers that text passes over are taken out, and the numbers of later ones become smaller. */
static bool drop_layers(const struct model_config *config, struct tensor_view *tensors, size_t *count,
                        struct model_tower *tower, const char *tower_name, char **names, struct status *status)
{
    const struct model_unused *unused = &config->unused;
    size_t size = 1, used = 0, kept = 0;
    uint64_t now[MODEL_MAX_LAYERS], next = 0;
    const char *rest = NULL;
    for (uint64_t i = 0; i < unused->layers; i++) now[i] = unused->layer[i] ? 0 : next++;
    for (size_t t = 0; t < *count; t++)
        size += strlen(tensors[t].name) + 1; /* a new name is no longer than the old one */
    if (!(*names = malloc(size))) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (size_t t = 0; t < *count; t++) {
        const int layer = layer_of(unused, tensors[t].name, &rest);
        if (layer >= 0 && unused->layer[layer]) {
            if (after(rest, "self_attn."))
                return status_fail(status, STATUS_BAD_INPUT,
                                   "checkpoint: tensor '%.160s' is of layer %d, which config.json has among its "
                                   "cross_attention_layers; expected no self_attn there",
                                   tensors[t].name, layer);
            leave_out(tower, tower_name, tensors[t].bytes);
            continue;
        }
        tensors[kept] = tensors[t];
        cut_embedding(config, &tensors[kept], tower, tower_name);
        if (layer >= 0) {
            tensors[kept].name = *names + used;
            used += 1 + (size_t)snprintf(*names + used, size - used, "model.layers.%" PRIu64 ".%s", now[layer], rest);
        }
        kept++;
    }
    *count = kept;
    return true;
}

bool wrapper_unwrap(const struct model_config *config, struct tensor_view *tensors, size_t *count,
                    struct model_tower *towers, char **names, struct status *status)
{
    const struct model_wrapper *wrapper = config->wrapper;
    struct model_tower all[WRAPPER_MAX_TOWERS] = {0};
    size_t kept = 0, found = 0, last = 0;
    while (last + 1 < WRAPPER_MAX_TOWERS && wrapper->towers[last + 1]) last++;
    for (size_t t = 0; t < *count; t++) {
        const int tower = tower_of(wrapper, tensors[t].name);
        if (tower >= 0) {
            leave_out(&all[tower], wrapper->towers[tower], tensors[t].bytes);
            continue;
        }
        tensors[kept] = tensors[t];
        tensors[kept].name = text_name(wrapper, tensors[t].name);
        kept++;
    }
    if (config->unused.layers && !drop_layers(config, tensors, &kept, &all[last], wrapper->towers[last], names, status))
        return false;
    *count = kept;
    for (size_t i = 0; i < WRAPPER_MAX_TOWERS; i++)
        if (all[i].name) towers[found++] = all[i];
    if (!kept)
        return status_fail(
            status, STATUS_BAD_INPUT,
            "checkpoint: all tensors are of parts that are left out (%s); expected those of a text part, "
            "too",
            found ? towers[0].name : "there are none");
    qsort(tensors, kept, sizeof *tensors, compare_names);
    for (size_t t = 1; t < kept; t++)
        if (compare_names(&tensors[t - 1], &tensors[t]) == 0)
            return status_fail(status, STATUS_BAD_INPUT,
                               "checkpoint: tensor '%.160s' of the text part is there twice, with '%s' before its name "
                               "and without",
                               tensors[t].name, wrapper->module);
    return true;
}
