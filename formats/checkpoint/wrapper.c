/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/wrapper.h"

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

bool wrapper_unwrap(const struct model_wrapper *wrapper, struct tensor_view *tensors, size_t *count,
                    struct model_tower *towers, struct status *status)
{
    struct model_tower all[WRAPPER_MAX_TOWERS] = {0};
    size_t kept = 0, found = 0;
    for (size_t t = 0; t < *count; t++) {
        const int tower = tower_of(wrapper, tensors[t].name);
        if (tower >= 0) {
            all[tower].name = wrapper->towers[tower];
            all[tower].tensors++;
            all[tower].bytes += tensors[t].bytes; /* each lies in a mapping: no overflow */
            continue;
        }
        tensors[kept] = tensors[t];
        tensors[kept].name = text_name(wrapper, tensors[t].name);
        kept++;
    }
    *count = kept;
    for (size_t i = 0; i < WRAPPER_MAX_TOWERS; i++)
        if (all[i].name) towers[found++] = all[i];
    if (!kept)
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: all tensors are of parts that are left out (%s, ..); expected those of a text "
                           "part, too",
                           towers[0].name);
    qsort(tensors, kept, sizeof *tensors, compare_names);
    for (size_t t = 1; t < kept; t++)
        if (compare_names(&tensors[t - 1], &tensors[t]) == 0)
            return status_fail(status, STATUS_BAD_INPUT,
                               "checkpoint: tensor '%.160s' of the text part is there twice, with '%s' before its name "
                               "and without",
                               tensors[t].name, wrapper->module);
    return true;
}
