/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/checkpoint_index.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/json.h"

static const char shard_suffix[] = ".safetensors";

static bool plain_shard_name(const char *file)
{
    return file_has_suffix(file, shard_suffix) && strcmp(file, shard_suffix) != 0 && !strpbrk(file, "/\\");
}

static int compare_strings(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* metadata is free-form except total_size, which some writers store as a float. */
static bool parse_metadata(struct checkpoint_index *index, json_t *metadata, struct status *status)
{
    if (!metadata) return true;
    if (!json_is_object(metadata))
        return status_fail(status, STATUS_BAD_INPUT, "metadata: expected an object, found %s",
                           json_type_name(metadata));
    const json_t *total = json_object_get(metadata, "total_size");
    if (!total || json_is_null(total)) return true;
    double value = json_number_value(total);
    if (!json_is_number(total) || value < 0 || value > 0x1p53 || value != floor(value)) {
        char found[80];
        json_value_text(total, found, sizeof found);
        return status_fail(status, STATUS_BAD_INPUT, "metadata.total_size: expected a number of bytes, found %s",
                           found);
    }
    index->has_total_size = true;
    index->total_size = (uint64_t)value;
    return true;
}

static bool parse_weight_map(struct checkpoint_index *index, json_t *weight_map, struct status *status)
{
    const char *tensor;
    json_t *file;
    size_t count = 0;
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        return status_fail(status, STATUS_BAD_INPUT, "weight_map: expected an object with tensors, found %s",
                           json_is_object(weight_map) ? "an empty one" : json_type_name(weight_map));
    index->weight_map = weight_map;
    index->shards = malloc(json_object_size(weight_map) * sizeof *index->shards);
    if (!index->shards) return status_fail(status, STATUS_MACHINE, "out of memory");
    json_object_foreach (weight_map, tensor, file) {
        if (!json_is_string(file))
            return status_fail(status, STATUS_BAD_INPUT, "weight_map: tensor '%s': expected a file name, found %s",
                               tensor, json_type_name(file));
        if (!plain_shard_name(json_string_value(file)))
            return status_fail(status, STATUS_BAD_INPUT,
                               "weight_map: tensor '%.160s': expected the name of a .safetensors file in the same "
                               "folder, found '%s'",
                               tensor, json_string_value(file));
        index->shards[count++] = json_string_value(file);
    }
    qsort(index->shards, count, sizeof *index->shards, compare_strings);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(index->shards[i], index->shards[index->shard_count - 1]) != 0)
            index->shards[index->shard_count++] = index->shards[i];
    return true;
}

bool checkpoint_index_parse(struct checkpoint_index *index, const char *text, size_t size, const char *name,
                            struct status *status)
{
    struct json_reader reader = {0};
    bool done = false;
    *index = (struct checkpoint_index){0};
    index->document = json_parse(text, size, name, status);
    if (!index->document) goto done;
    if (!json_reader_open(&reader, index->document, name, status)) goto done;
    if (!parse_metadata(index, json_reader_get(&reader, "metadata"), status) ||
        !parse_weight_map(index, json_reader_get(&reader, "weight_map"), status)) {
        status_prefix(status, "%s", name);
        goto done;
    }
    done = json_reader_all_consumed(&reader, status);
done:
    json_reader_close(&reader);
    if (!done) checkpoint_index_free(index);
    return done;
}

void checkpoint_index_free(struct checkpoint_index *index)
{
    free(index->shards);
    json_decref(index->document);
    *index = (struct checkpoint_index){0};
}

const char *checkpoint_index_shard_of(const struct checkpoint_index *index, const char *tensor)
{
    return json_string_value(json_object_get(index->weight_map, tensor));
}
