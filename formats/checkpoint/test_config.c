/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/test_config.h"

#include <string.h>

#include "formats/base/json.h"

bool test_read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const struct {
        const char *key;
        uint64_t *value, absent;
    } sizes[] = {
        {"hidden_size", &config->hidden_size, 64},
        {"intermediate_size", &config->intermediate_size, 96},
        {"layers", &config->layers, 2},
        {"heads", &config->heads, 4},
        {"kv_heads", &config->kv_heads, 2},
        {"head_dim", &config->head_dim, 16},
        {"vocab_size", &config->vocab_size, 0},
        {"max_position", &config->max_position, 2048},
    };
    if (strcmp(config->model_type, "test") != 0)
        return status_fail(status, STATUS_BAD_INPUT, "%s: model_type '%s' is not supported", reader->path,
                           config->model_type);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i].value = sizes[i].absent;
        if (!json_reader_u64(reader, sizes[i].key, !sizes[i].absent, 0, UINT32_MAX, sizes[i].value, status))
            return false;
    }
    config->bos_token = 1;
    config->pad_token = -1;
    config->eos_tokens[config->eos_count++] = 2;
    return rope_config_parse(config, reader, status);
}
