/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/base/checked.h"
#include "formats/base/json.h"
#include "formats/checkpoint/checkpoint_index.h"
#include "formats/checkpoint/checkpoint_others.h"
#include "formats/checkpoint/checkpoint_templates.h"
#include "formats/checkpoint/gguf_model.h"
#include "formats/checkpoint/gguf_tokenizer.h"

enum {
    CONFIG_MAX_BYTES = 1 << 22, /* real files have a few KB; parsed JSON takes about 20 times its text */
    INDEX_MAX_BYTES = 1 << 26,  /* real files have about 100 KB */
};

static const char weights_suffix[] = ".safetensors", index_suffix[] = ".index.json", gguf_suffix[] = ".gguf";

struct checkpoint_shard {
    char *path; /* owned */
    struct file_map map;
    struct safetensors header;
};

static bool out_of_memory(struct status *status) { return status_fail(status, STATUS_MACHINE, "out of memory"); }

/* folder/name; owned by the caller, NULL if out of memory */
static char *join(const char *folder, const char *name)
{
    char *path = NULL;
    size_t length = strlen(folder);
    const char *slash = length && folder[length - 1] == '/' ? "" : "/";
    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

static int is_weights_entry(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && file_has_suffix(entry->d_name, weights_suffix);
}

/* Finds the only *.safetensors of a folder without the standard names. */
static char *find_single_weights(const char *folder, struct status *status)
{
    struct dirent **entries = NULL;
    char *path = NULL;
    int count = scandir(folder, &entries, is_weights_entry, alphasort);
    if (count < 0)
        status_fail_errno(status, STATUS_BAD_INPUT, errno, "cannot list folder '%s'", folder);
    else if (count == 0 && !checkpoint_has_other_weights(folder, status))
        status_fail(status, STATUS_NOT_FOUND,
                    "folder '%s' holds no weights: expected model.safetensors, model.safetensors.index.json or one "
                    "*.safetensors (other formats are not read)",
                    folder);
    else if (count > 1)
        status_fail(
            status, STATUS_BAD_INPUT,
            "folder '%s' holds %d .safetensors files ('%.80s', '%.80s', ...) and no model.safetensors.index.json: "
            "name the file or the index to use",
            folder, count, entries[0]->d_name, entries[1]->d_name);
    else if (count == 1 && !(path = join(folder, entries[0]->d_name)))
        out_of_memory(status);
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    return path;
}

/* Finds the file with weights or index in a folder; owned by the caller, NULL with *status filled. */
static char *find_weights(const char *folder, struct status *status)
{
    static const char *const standard[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof standard / sizeof *standard; i++) {
        char *path = join(folder, standard[i]);
        bool present;
        if (!path) {
            out_of_memory(status);
            return NULL;
        }
        bool good = file_find(path, &present, status);
        if (good && present) return path;
        free(path);
        if (!good) return NULL;
    }
    return find_single_weights(folder, status);
}

/* Finds the folder of the given path, and the file with weights or index if the path names one. */
static bool resolve_path(struct checkpoint *checkpoint, const char *path, bool config_only, char **weights,
                         struct status *status)
{
    struct stat information;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool names_file = file_has_suffix(path, weights_suffix) || file_has_suffix(path, index_suffix);
    bool exists = stat(path, &information) == 0;
    if (!exists && (!config_only || !names_file)) {
        bool present;
        if (!file_find(path, &present, status) || checkpoint_is_hub_name(path, status)) return false;
        return status_fail_errno(status, STATUS_BAD_INPUT, ENOENT, "'%s'", path);
    }
    if (exists && S_ISDIR(information.st_mode)) {
        checkpoint->directory = strdup(path);
        return checkpoint->directory ? true : out_of_memory(status);
    }
    checkpoint->directory = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!checkpoint->directory) return out_of_memory(status);
    if (!file_has_suffix(path, gguf_suffix)) {
        if (checkpoint_is_other_weights(checkpoint->directory, name, status)) return false;
        if (!names_file)
            return status_fail(status, STATUS_BAD_INPUT,
                               "'%s': expected a folder, a .safetensors file, an .index.json file or a .gguf file",
                               path);
    }
    *weights = strdup(path);
    return *weights ? true : out_of_memory(status);
}

/* The files in which older writers put the quantization_config. */
static bool read_quantisation(struct checkpoint *checkpoint, struct status *status)
{
    static const struct {
        const char *file, *key, *method; /* the key of the object, and its quant_method unless it has one */
    } files[] = {
        {"quantize_config.json", NULL, "gptq"},
        {"quant_config.json", NULL, "awq"},
        {"hf_quant_config.json", "quantization", "modelopt"},
    };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof files / sizeof *files; i++) {
        char *path = join(checkpoint->directory, files[i].file), *text = NULL;
        size_t size = 0;
        bool present = false;
        json_t *document = NULL;
        ok = path ? file_find(path, &present, status) : out_of_memory(status);
        if (ok && present && checkpoint->config.quantisation.method == QUANT_NONE) {
            ok = file_read(path, CONFIG_MAX_BYTES, &text, &size, status) &&
                 (document = json_parse(text, size, path, status)) != NULL;
            json_t *object = ok && files[i].key ? json_object_get(document, files[i].key) : document;
            if (ok && json_is_object(object) && !json_object_get(object, "quant_method"))
                ok = json_put(object, "quant_method", json_string(files[i].method)) || out_of_memory(status);
            ok = ok && quant_config_parse(&checkpoint->config.quantisation, object, path, status);
        }
        json_decref(document);
        free(text);
        free(path);
    }
    return ok;
}

/* Reads config.json and, if present, generation_config.json; finds tokenizer.json. */
static bool read_configs(struct checkpoint *checkpoint, model_config_reader *read_family, struct status *status)
{
    bool done = false, present;
    char *text = NULL, *generation_text = NULL;
    size_t size = 0;
    char *config = join(checkpoint->directory, "config.json");
    char *generation = join(checkpoint->directory, "generation_config.json");
    checkpoint->tokenizer_path = join(checkpoint->directory, "tokenizer.json");
    if (!config || !generation || !checkpoint->tokenizer_path) {
        out_of_memory(status);
        goto done;
    }
    if (!file_read(config, CONFIG_MAX_BYTES, &text, &size, status)) {
        if (status->code == STATUS_NOT_FOUND && !checkpoint_has_other_weights(checkpoint->directory, status))
            status_fail(status, STATUS_NOT_FOUND, "folder '%s' has no config.json: it must lie beside the weights",
                        checkpoint->directory);
        goto done;
    }
    if (!model_config_parse(&checkpoint->config, text, size, config, read_family, status)) goto done;
    if (!read_quantisation(checkpoint, status)) goto done;
    if (!embedding_config_read(&checkpoint->embedding, checkpoint->directory, status)) goto done;
    if (!file_find(generation, &present, status)) goto done;
    if (present) {
        if (!file_read(generation, CONFIG_MAX_BYTES, &generation_text, &size, status)) goto done;
        if (!generation_config_parse(&checkpoint->config, generation_text, size, generation, status)) goto done;
    }
    if (!file_find(checkpoint->tokenizer_path, &present, status)) goto done;
    if (!present) {
        free(checkpoint->tokenizer_path);
        checkpoint->tokenizer_path = NULL;
        checkpoint->other_tokenizer = checkpoint_find_other_tokenizer(checkpoint->directory);
    }
    checkpoint->chat_templates = checkpoint_read_templates(checkpoint->directory, status);
    if (status->code != STATUS_OK) goto done;
    done = true;
done:
    free(text);
    free(generation_text);
    free(config);
    free(generation);
    return done;
}

/* Maps and parses one more shard; takes ownership of `path`. */
static bool add_shard(struct checkpoint *checkpoint, char *path, struct status *status)
{
    struct checkpoint_shard *shard = &checkpoint->shards[checkpoint->shard_count++];
    shard->path = path;
    if (!path) return out_of_memory(status);
    return file_map_open(&shard->map, path, status) &&
           safetensors_parse(&shard->header, shard->map.data, shard->map.size, path, status);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct tensor_view *)left)->name, ((const struct tensor_view *)right)->name);
}

/* Merges the tensors of all shards into one sorted array; a tensor in two shards is an error. */
static bool merge_tensors(struct checkpoint *checkpoint, struct status *status)
{
    size_t count = 0;
    for (size_t i = 0; i < checkpoint->shard_count; i++) count += checkpoint->shards[i].header.tensor_count;
    if (!count) return status_fail(status, STATUS_BAD_INPUT, "'%s' holds no tensors", checkpoint->shards[0].path);
    checkpoint->tensors = malloc(count * sizeof *checkpoint->tensors);
    if (!checkpoint->tensors) return out_of_memory(status);
    for (size_t i = 0; i < checkpoint->shard_count; i++) {
        const struct safetensors *header = &checkpoint->shards[i].header;
        for (size_t j = 0; j < header->tensor_count; j++) {
            checkpoint->tensors[checkpoint->tensor_count++] = header->tensors[j];
            checkpoint->tensor_bytes += header->tensors[j].bytes; /* each lies in a mapping: no overflow */
        }
    }
    qsort(checkpoint->tensors, count, sizeof *checkpoint->tensors, compare_names);
    for (size_t i = 1; i < count; i++)
        if (compare_names(&checkpoint->tensors[i - 1], &checkpoint->tensors[i]) == 0)
            return status_fail(status, STATUS_BAD_INPUT, "tensor '%.160s' is held by more than one shard of '%s'",
                               checkpoint->tensors[i].name, checkpoint->directory);
    return true;
}

/* Every tensor of weight_map must be in its shard, and every tensor of a shard in weight_map. */
static bool check_index(const struct checkpoint *checkpoint, const struct checkpoint_index *index, const char *name,
                        struct status *status)
{
    const char *tensor;
    json_t *file;
    for (size_t i = 0; i < checkpoint->shard_count; i++) {
        const struct safetensors *header = &checkpoint->shards[i].header;
        for (size_t j = 0; j < header->tensor_count; j++) {
            const char *found = header->tensors[j].name;
            const char *expected = checkpoint_index_shard_of(index, found);
            if (!expected || strcmp(expected, index->shards[i]) != 0)
                return status_fail(status, STATUS_BAD_INPUT,
                                   "%s: tensor '%.140s' lies in '%.80s', weight_map says %s%.80s", name, found,
                                   index->shards[i], expected ? "" : "nothing about it", expected ? expected : "");
        }
    }
    json_object_foreach (index->weight_map, tensor, file)
        if (!checkpoint_find(checkpoint, tensor))
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: weight_map puts tensor '%.160s' into '%.80s', which lacks it", name, tensor,
                               json_string_value(file));
    if (index->has_total_size && index->total_size != checkpoint->tensor_bytes)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: metadata.total_size: expected %" PRIu64 " (the sum over all tensors), found %" PRIu64,
                           name, checkpoint->tensor_bytes, index->total_size);
    return true;
}

static bool open_sharded(struct checkpoint *checkpoint, const char *path, struct status *status)
{
    struct checkpoint_index index = {0};
    char *text = NULL;
    size_t size = 0;
    bool done = false;
    if (!file_read(path, INDEX_MAX_BYTES, &text, &size, status)) goto done;
    if (!checkpoint_index_parse(&index, text, size, path, status)) goto done;
    checkpoint->shards = calloc(index.shard_count, sizeof *checkpoint->shards);
    if (!checkpoint->shards) {
        out_of_memory(status);
        goto done;
    }
    for (size_t i = 0; i < index.shard_count; i++) {
        if (add_shard(checkpoint, join(checkpoint->directory, index.shards[i]), status)) continue;
        if (status->code == STATUS_NOT_FOUND)
            status_prefix(status, "'%s' names %zu shards, and number %zu is missing", path, index.shard_count, i + 1);
        goto done;
    }
    done = merge_tensors(checkpoint, status) && check_index(checkpoint, &index, path, status);
done:
    checkpoint_index_free(&index);
    free(text);
    return done;
}

static bool open_single(struct checkpoint *checkpoint, const char *path, struct status *status)
{
    checkpoint->shards = calloc(1, sizeof *checkpoint->shards);
    if (!checkpoint->shards) return out_of_memory(status);
    return add_shard(checkpoint, strdup(path), status) && merge_tensors(checkpoint, status);
}

/* Matrices of all experts are [experts, in, out]. Where in and out are equal, the shape does not say so. */
static bool is_transposed(const struct tensor_view *tensor, uint64_t in, uint64_t out)
{
    return tensor->rank == 3 && in != out && tensor->shape[1] == in && tensor->shape[2] == out;
}

/* What tensors say of the model, after those of the text part have their own names. */
static void read_tensors(struct checkpoint *checkpoint)
{
    static const char head[] = "lm_head.", up[] = ".mlp.experts.gate_up_proj", down[] = ".mlp.experts.down_proj";
    struct model_config *config = &checkpoint->config;
    const uint64_t hidden = config->hidden_size, inner = config->experts.intermediate_size;
    bool has_head = false;
    for (size_t t = 0; t < checkpoint->tensor_count; t++) {
        const struct tensor_view *tensor = &checkpoint->tensors[t];
        has_head |= strncmp(tensor->name, head, sizeof head - 1) == 0;
        config->fused_experts |= file_has_suffix(tensor->name, up);
        config->fused_transposed |= (file_has_suffix(tensor->name, up) && is_transposed(tensor, hidden, 2 * inner)) ||
                                    (file_has_suffix(tensor->name, down) && is_transposed(tensor, inner, hidden));
    }
    if (config->tied_without_head) config->tie_word_embeddings = !has_head;
    /* Embeddings need no head; what the engine draws then means nothing. */
    if (checkpoint->embedding.kind == EMBEDDING_LAST_TOKEN && !has_head) config->tie_word_embeddings = true;
}

/* A checkpoint of the model without its head, as of embedding models, has the names inside "model.". */
static bool complete_names(struct checkpoint *checkpoint, struct status *status)
{
    static const char embedding[] = "embed_tokens.weight", prefix[] = "model.";
    size_t size = 0, used = 0;
    if (!checkpoint_find(checkpoint, embedding)) return true;
    for (size_t t = 0; t < checkpoint->tensor_count; t++) {
        const char *name = checkpoint->tensors[t].name;
        if (strncmp(name, prefix, sizeof prefix - 1) == 0 || strncmp(name, "lm_head.", 8) == 0) return true;
        size += strlen(name) + sizeof prefix;
    }
    if (!(checkpoint->full_names = malloc(size))) return out_of_memory(status);
    for (size_t t = 0; t < checkpoint->tensor_count; t++) {
        char *name = checkpoint->full_names + used;
        used += 1 + (size_t)snprintf(name, size - used, "%s%s", prefix, checkpoint->tensors[t].name);
        checkpoint->tensors[t].name = name;
    }
    return true;
}

/* Leaves the text part of a checkpoint with other parts. */
static bool unwrap(struct checkpoint *checkpoint, struct status *status)
{
    struct model_config *config = &checkpoint->config;
    if (config->wrapper && !wrapper_unwrap(config, checkpoint->tensors, &checkpoint->tensor_count, checkpoint->towers,
                                           &checkpoint->layer_names, status))
        return false;
    if (!config->wrapper && !complete_names(checkpoint, status)) return false;
    read_tensors(checkpoint);
    return true;
}

/* Puts matrices in the place of the tensors of quantised modules. */
static bool join_quantised(struct checkpoint *checkpoint, struct status *status)
{
    if (!quantised_open(&checkpoint->quantised, &checkpoint->config.quantisation, checkpoint->tensors,
                        checkpoint->tensor_count, status))
        return false;
    free(checkpoint->tensors);
    checkpoint->tensors = checkpoint->quantised.tensors;
    checkpoint->tensor_count = checkpoint->quantised.count;
    return true;
}

/* A GGUF file has configuration and tokenizer in itself: nothing beside it is read. */
static bool open_gguf(struct checkpoint *checkpoint, const char *path, model_config_reader *read_family,
                      struct status *status)
{
    struct gguf file = {0};
    checkpoint->shards = calloc(1, sizeof *checkpoint->shards);
    if (!checkpoint->shards) return out_of_memory(status);
    checkpoint->shard_count = 1;
    struct checkpoint_shard *shard = &checkpoint->shards[0];
    bool ok = (shard->path = strdup(path)) || out_of_memory(status);
    ok = ok && file_map_open(&shard->map, path, status) &&
         gguf_parse(&file, shard->map.data, shard->map.size, path, status) &&
         gguf_read_config(&file, &checkpoint->config, read_family, status) &&
         gguf_read_tensors(&file, checkpoint->config.model_type, &checkpoint->quantised, status);
    ok = ok && gguf_read_tokenizer(&file, &checkpoint->tokenizer_text, &checkpoint->tokenizer_missing, status);
    if (ok) {
        checkpoint->chat_templates = gguf_read_templates(&file, status);
        ok = status->code == STATUS_OK;
    }
    for (size_t i = 0; ok && i < file.tensor_count; i++) checkpoint->tensor_bytes += file.tensors[i].bytes;
    gguf_free(&file);
    checkpoint->tensors = checkpoint->quantised.tensors;
    checkpoint->tensor_count = checkpoint->quantised.count;
    if (ok && checkpoint->quantised.matrix_count) {
        checkpoint->config.quantisation.method = QUANT_GGUF;
        strcpy(checkpoint->config.quantisation.name, "gguf");
    }
    return ok;
}

bool checkpoint_open(struct checkpoint *checkpoint, const char *path, bool config_only,
                     model_config_reader *read_family, struct status *status)
{
    char *weights = NULL;
    bool done = false;
    *checkpoint = (struct checkpoint){0};
    if (!resolve_path(checkpoint, path, config_only, &weights, status)) goto done;
    if (weights && file_has_suffix(weights, gguf_suffix)) {
        done = open_gguf(checkpoint, weights, read_family, status);
        goto done;
    }
    /* Before weights are searched: for an unsupported model, only its type matters. */
    if (!read_configs(checkpoint, read_family, status)) goto done;
    if (!config_only) {
        if (!weights && !(weights = find_weights(checkpoint->directory, status))) goto done;
        if (!(file_has_suffix(weights, index_suffix) ? open_sharded : open_single)(checkpoint, weights, status) ||
            !unwrap(checkpoint, status) || !join_quantised(checkpoint, status))
            goto done;
    }
    done = true;
done:
    free(weights);
    if (!done) checkpoint_close(checkpoint);
    return done;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->shard_count; i++) {
        safetensors_free(&checkpoint->shards[i].header);
        file_map_close(&checkpoint->shards[i].map);
        free(checkpoint->shards[i].path);
    }
    free(checkpoint->shards);
    if (checkpoint->tensors != checkpoint->quantised.tensors) free(checkpoint->tensors);
    quantised_close(&checkpoint->quantised);
    free(checkpoint->layer_names);
    free(checkpoint->full_names);
    free(checkpoint->tokenizer_path);
    free(checkpoint->other_tokenizer);
    free(checkpoint->tokenizer_text);
    free(checkpoint->tokenizer_missing);
    json_decref(checkpoint->chat_templates);
    free(checkpoint->directory);
    *checkpoint = (struct checkpoint){0};
}

const struct tensor_view *checkpoint_find(const struct checkpoint *checkpoint, const char *name)
{
    if (!checkpoint->tensor_count) return NULL;
    struct tensor_view key = {.name = name};
    return bsearch(&key, checkpoint->tensors, checkpoint->tensor_count, sizeof key, compare_names);
}
