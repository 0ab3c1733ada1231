/* SPDX-License-Identifier: Apache-2.0 */
/* Mllama (Llama 3.2 Vision): a Llama between whose layers are others, in which text attends to an image. Without an image
 * transformers 5.17 passes over them, so that text alone runs through the layers of a Llama. */
#include "builder/arch/wrappers.h"
#include "formats/base/json.h"

/* The embedding has them after those of the vocabulary, for tokens that stand for images. */
enum { IMAGE_TOKENS = 8 };

/* cross_attention_layers, or those of the class. */
static bool read_layers(struct json_reader *reader, struct model_unused *unused, uint64_t *count, struct status *status)
{
    enum { FIRST = 3, STEP = 5, LAST = 38 };
    const json_t *list = json_reader_get(reader, "cross_attention_layers");
    for (uint64_t i = FIRST; !list && i <= LAST && i < unused->layers; i += STEP, ++*count) unused->layer[i] = true;
    if (!list) return true;
    if (!json_is_array(list))
        return json_reader_fail(reader, "cross_attention_layers", "an array of layers", list, status);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        const json_int_t index = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (index < 0 || (uint64_t)index >= unused->layers || unused->layer[index])
            return json_reader_fail(reader, "cross_attention_layers", "different layers, below num_hidden_layers",
                                    layer, status);
        unused->layer[index] = true;
        ++*count;
    }
    return true;
}

bool wrapper_drop_cross_attention(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_unused *unused = &config->unused;
    uint64_t count = 0;
    if (!json_reader_u64(reader, "num_hidden_layers", true, 1, MODEL_MAX_LAYERS, &unused->layers, status) ||
        !read_layers(reader, unused, &count, status))
        return false;
    if (count == unused->layers)
        return json_reader_fail(reader, "cross_attention_layers", "fewer layers than num_hidden_layers",
                                json_object_get(reader->object, "cross_attention_layers"), status);
    unused->embedding_rows = IMAGE_TOKENS;
    json_object_del(reader->object, "cross_attention_layers");
    return json_put(reader->object, "num_hidden_layers", json_integer((json_int_t)(unused->layers - count))) ||
           status_fail(status, STATUS_MACHINE, "out of memory");
}
