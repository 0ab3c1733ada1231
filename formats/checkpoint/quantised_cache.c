/* SPDX-License-Identifier: Apache-2.0 */
/* Static scales of a KV cache in a quantised checkpoint. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/checkpoint/quantised_module.h"

enum { OF_K = 1, OF_V = 2 };

/* The parts of a KV cache whose scales a tensor with this name has: bits OF_K and OF_V. */
static unsigned part_of(const char *name)
{
    static const struct {
        const char *suffix;
        unsigned parts;
    } kinds[] = {{".k_scale", OF_K},
                 {".v_scale", OF_V},
                 {".kv_scale", OF_K | OF_V},
                 {".k_proj.output_scale", OF_K},
                 {".v_proj.output_scale", OF_V}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (file_has_suffix(name, kinds[i].suffix)) return kinds[i].parts;
    return 0;
}

/* The layer is the first part of the name that is a number. False: there is none. */
static bool layer_of(const char *name, uint64_t *layer)
{
    enum { MOST_DIGITS = 9 };
    while (name) {
        const size_t length = strcspn(name, "."), digits = strspn(name, "0123456789");
        if (length && digits == length && length <= MOST_DIGITS) {
            *layer = strtoull(name, NULL, 10);
            return true;
        }
        name = name[length] ? name + length + 1 : NULL;
    }
    return false;
}

bool quantised_is_cache_scale(const char *name)
{
    uint64_t layer;
    return part_of(name) && layer_of(name, &layer);
}

/* Notes a tensor as that of a part. */
static bool note(const struct tensor_view *tensor, const struct tensor_view **part, struct status *status)
{
    if (*part)
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensors '%.200s' and '%.200s' are both the scale of one part of a KV cache; "
                           "expected one of them",
                           (*part)->name, tensor->name);
    *part = tensor;
    return true;
}

bool quantised_find_cache_scales(const struct quantised_tensors *tensors, uint64_t layers, const bool *used,
                                 const char *ignored, struct quantised_cache_scales *scales, struct status *status)
{
    uint64_t layer;
    memset(scales, 0, layers * sizeof *scales);
    for (size_t i = 0; i < tensors->cache_scale_count; i++) {
        const struct tensor_view *tensor = &tensors->cache_scales[i];
        const unsigned parts = part_of(tensor->name);
        if (!layer_of(tensor->name, &layer) || layer >= layers || (used && !used[layer])) continue;
        if (ignored && strncmp(tensor->name, ignored, strlen(ignored)) == 0) continue;
        if ((parts & OF_K && !note(tensor, &scales[layer].k, status)) ||
            (parts & OF_V && !note(tensor, &scales[layer].v, status)))
            return false;
    }
    for (layer = 0; layer < layers; layer++) {
        const struct tensor_view *k = scales[layer].k, *v = scales[layer].v;
        if (!k != !v)
            return status_fail(status, STATUS_BAD_INPUT,
                               "checkpoint: tensor '%.200s' is a scale of the KV cache's %s, but layer %" PRIu64
                               " has none of its %s; expected both or none",
                               (k ? k : v)->name, k ? "keys" : "values", layer, k ? "values" : "keys");
    }
    return true;
}

static float number_at(const struct tensor_view *tensor, uint64_t index)
{
    const uint8_t *at = (const uint8_t *)tensor->data + index * dtype_bytes(tensor->dtype);
    uint32_t bits;
    uint16_t half;
    if (tensor->dtype == DTYPE_F32) {
        memcpy(&bits, at, sizeof bits);
        return float_from_bits(bits);
    }
    memcpy(&half, at, sizeof half);
    return tensor->dtype == DTYPE_F16 ? f16_to_float(half) : bf16_to_float(half);
}

bool quantised_read_cache_scales(const struct tensor_view *tensor, uint64_t kv_heads, uint64_t step, float least,
                                 float most, float *scales, struct status *status)
{
    const uint64_t count = quantised_elements(tensor);
    if (!(QUANTISED_ANY_FLOAT >> tensor->dtype & 1) || (count != 1 && count != kv_heads)) {
        char found[128];
        quantised_shape_text(tensor, found, sizeof found);
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%.200s': expected scales of a KV cache, 1 or %" PRIu64
                           " numbers in F32, F16 or BF16, found %s",
                           tensor->name, kv_heads, found);
    }
    for (uint64_t i = 0; i < kv_heads; i++) {
        const float scale = number_at(tensor, count == 1 ? 0 : i);
        if (!(scale >= least && scale <= most))
            return status_fail(status, STATUS_BAD_INPUT,
                               "checkpoint: tensor '%.200s': expected scales of a KV cache, from %g to %g, found %g; "
                               "another --kv-dtype than fp8 does without them",
                               tensor->name, (double)least, (double)most, (double)scale);
        scales[i * step] = scale;
    }
    return true;
}
