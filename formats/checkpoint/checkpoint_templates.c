/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: which files and keys are read, and which come first, as in transformers (PreTrainedTokenizerBase.from_pretrained and
 * special_tokens_map); keys of GGUF as llama.cpp's converter writes them. */
#include "formats/checkpoint/checkpoint_templates.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/json.h"
#include "formats/base/printable.h"
#include "formats/template/chat_templates.h"

enum { MOST_CONFIG_BYTES = 64 << 20 };

static const char *const token_keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};

struct reading {
    const char *folder;
    json_t *document, *templates, *variables;
    struct status *status;
};

static bool out_of_memory(struct reading *reading)
{
    return status_fail(reading->status, STATUS_MACHINE, "out of memory");
}

static bool begin(struct reading *reading)
{
    reading->document = json_object();
    if (reading->document && json_put(reading->document, "templates", json_array()) &&
        json_put(reading->document, "variables", json_object())) {
        reading->templates = json_object_get(reading->document, "templates");
        reading->variables = json_object_get(reading->document, "variables");
        return true;
    }
    return out_of_memory(reading);
}

/* NULL if the reading failed, or found no template. */
static json_t *end(struct reading *reading, bool good)
{
    if (good && json_array_size(reading->templates)) return reading->document;
    json_decref(reading->document);
    return NULL;
}

static json_t *find(const struct reading *reading, const char *name, size_t *index)
{
    for (*index = 0; *index < json_array_size(reading->templates); ++*index) {
        json_t *item = json_array_get(reading->templates, *index);
        if (strcmp(json_string_value(json_object_get(item, "name")), name) == 0) return item;
    }
    return NULL;
}

/* A later template replaces an earlier one of the same name. `key`: "text" or "fault". */
static bool add(struct reading *reading, const char *name, const char *key, json_t *value)
{
    size_t index;
    json_t *item = json_object();
    if (find(reading, name, &index)) json_array_remove(reading->templates, index);
    if (!item || !json_put(item, "name", json_string(name))) {
        json_decref(item);
        json_decref(value);
        return out_of_memory(reading);
    }
    if (!json_put(item, key, value)) {
        json_decref(item);
        return out_of_memory(reading);
    }
    return json_add(reading->templates, item) || out_of_memory(reading);
}

static bool add_fault(struct reading *reading, const char *name, const char *fault)
{
    char text[STATUS_MESSAGE_BYTES];
    size_t size = (size_t)snprintf(text, sizeof text, "%s", fault);
    if (size >= sizeof text) size = sizeof text - 1;
    json_t *value = json_stringn(text, size);
    while (!value && size) value = json_stringn(text, --size); /* not UTF-8, or cut within a character */
    return add(reading, name, "fault", value);
}

static bool add_text(struct reading *reading, const char *name, const char *text, size_t size, const char *source)
{
    char fault[STATUS_MESSAGE_BYTES];
    json_t *value = memchr(text, 0, size) ? NULL : json_stringn(text, size);
    if (value && size <= CHAT_TEMPLATES_MOST_BYTES) return add(reading, name, "text", value);
    json_decref(value);
    if (size > CHAT_TEMPLATES_MOST_BYTES)
        snprintf(fault, sizeof fault, "%s: expected a template of at most %d bytes, found %zu", source,
                 CHAT_TEMPLATES_MOST_BYTES, size);
    else
        snprintf(fault, sizeof fault, "%s: expected UTF-8 text", source);
    return add_fault(reading, name, fault);
}

/* ---- files ---- */

/* False with STATUS_OK: there is no such file, or it cannot be read, which is then the fault of the template `name`. */
static bool read_file(struct reading *reading, const char *file, uint64_t limit, const char *name, char **text,
                      size_t *size)
{
    char *path = NULL;
    struct status found = {0};
    bool present = false;
    if (asprintf(&path, "%s/%s", reading->folder, file) < 0) return out_of_memory(reading);
    bool done = file_find(path, &present, &found) && present && file_read(path, limit, text, size, &found);
    free(path);
    if (found.code == STATUS_MACHINE) return status_fail(reading->status, found.code, "%s", found.message);
    if (found.code != STATUS_OK && found.code != STATUS_NOT_FOUND) add_fault(reading, name, found.message);
    return done;
}

static bool read_template(struct reading *reading, const char *file, const char *name)
{
    char *text = NULL;
    size_t size;
    if (!read_file(reading, file, MOST_CONFIG_BYTES, name, &text, &size)) return reading->status->code == STATUS_OK;
    const bool good = add_text(reading, name, text, size, file);
    free(text);
    return good;
}

static int is_template(const struct dirent *entry)
{
    const char *name = entry->d_name;
    return name[0] != '.' && file_has_suffix(name, ".jinja") && printable_text(name, strlen(name));
}

static bool read_additional(struct reading *reading)
{
    static const char folder[] = "additional_chat_templates", suffix[] = ".jinja";
    char *path = NULL;
    struct dirent **entries = NULL;
    bool good = true;
    if (asprintf(&path, "%s/%s", reading->folder, folder) < 0) return out_of_memory(reading);
    const int count = scandir(path, &entries, is_template, alphasort);
    free(path);
    for (int i = 0; i < count; i++) {
        char file[sizeof folder + 256], name[256];
        snprintf(file, sizeof file, "%s/%s", folder, entries[i]->d_name);
        snprintf(name, sizeof name, "%.*s", (int)(strlen(entries[i]->d_name) - strlen(suffix)), entries[i]->d_name);
        good = good && read_template(reading, file, name);
        free(entries[i]);
    }
    free(entries);
    return good;
}

/* ---- tokenizer_config.json ---- */

/* A string, or an object with the string as its content (AddedToken); else NULL. Borrowed. */
static json_t *token_text(json_t *value)
{
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? value : NULL;
}

static bool put_token(struct reading *reading, const char *key, json_t *value)
{
    json_t *text = token_text(value);
    if (!text || json_object_get(reading->variables, key)) return true;
    return json_object_set(reading->variables, key, text) == 0 || out_of_memory(reading);
}

static bool put_tokens(struct reading *reading, const char *key, json_t *list)
{
    json_t *texts, *item;
    size_t index;
    if (!json_is_array(list) || !json_array_size(list) || json_object_get(reading->variables, key)) return true;
    if (!(texts = json_array())) return out_of_memory(reading);
    json_array_foreach (list, index, item)
        if (token_text(item) && json_array_append(texts, token_text(item)) != 0) {
            json_decref(texts);
            return out_of_memory(reading);
        }
    return json_put(reading->variables, key, texts) || out_of_memory(reading);
}

/* Named tokens of one model, such as image_token. */
static bool put_named(struct reading *reading, json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value)
        if (!put_token(reading, key, value)) return false;
    return true;
}

static bool read_tokens(struct reading *reading, const json_t *config)
{
    json_t *extra = json_object_get(config, "extra_special_tokens");
    for (size_t i = 0; i < sizeof token_keys / sizeof *token_keys; i++)
        if (!put_token(reading, token_keys[i], json_object_get(config, token_keys[i]))) return false;
    return put_tokens(reading, "additional_special_tokens", json_object_get(config, "additional_special_tokens")) &&
           put_tokens(reading, "extra_special_tokens", extra) && put_named(reading, extra) &&
           put_named(reading, json_object_get(config, "model_specific_special_tokens"));
}

static bool read_listed(struct reading *reading, json_t *list)
{
    size_t index;
    json_t *item;
    json_array_foreach (list, index, item) {
        const json_t *name = json_object_get(item, "name"), *text = json_object_get(item, "template");
        if (!json_is_string(name) || !json_is_string(text)) {
            if (!add_fault(reading, "default",
                           "tokenizer_config.json: chat_template: expected objects with name and template"))
                return false;
        } else if (!add_text(reading, json_string_value(name), json_string_value(text), json_string_length(text),
                             "tokenizer_config.json: chat_template")) {
            return false;
        }
    }
    return true;
}

static bool read_config_templates(struct reading *reading, json_t *value)
{
    if (!value || json_is_null(value)) return true;
    if (json_is_array(value)) return read_listed(reading, value);
    if (json_is_string(value))
        return add_text(reading, "default", json_string_value(value), json_string_length(value),
                        "tokenizer_config.json: chat_template");
    return add_fault(reading, "default", "tokenizer_config.json: chat_template: expected a string or an array");
}

/* Owned; NULL with STATUS_OK: there is none, or it is the default template's fault. */
static json_t *read_config(struct reading *reading, const char *file)
{
    char *text = NULL;
    size_t size;
    struct status found = {0};
    if (!read_file(reading, file, MOST_CONFIG_BYTES, "default", &text, &size)) return NULL;
    json_t *config = json_parse(text, size, file, &found);
    free(text);
    if (config) return config;
    if (found.code == STATUS_MACHINE)
        status_fail(reading->status, found.code, "%s", found.message);
    else
        add_fault(reading, "default", found.message);
    return NULL;
}

/* Names that an engine cannot hold, and more templates than it can hold, are left out. */
static void leave_out(struct reading *reading)
{
    for (size_t i = json_array_size(reading->templates); i-- > 0;) {
        const size_t bytes = json_string_length(json_object_get(json_array_get(reading->templates, i), "name"));
        if (bytes == 0 || bytes > CHAT_TEMPLATES_MOST_NAME || i >= CHAT_TEMPLATES_MOST)
            json_array_remove(reading->templates, i);
    }
}

json_t *checkpoint_read_templates(const char *folder, struct status *status)
{
    struct reading reading = {.folder = folder, .status = status};
    size_t index;
    status_clear(status);
    bool good = begin(&reading);
    json_t *config = good ? read_config(&reading, "tokenizer_config.json") : NULL, *map = NULL;
    good = good && status->code == STATUS_OK && read_tokens(&reading, config);
    /* Older checkpoints have their special tokens in a file of their own. */
    if (good && !json_object_get(config, "added_tokens_decoder"))
        map = read_config(&reading, "special_tokens_map.json");
    good = good && status->code == STATUS_OK && read_tokens(&reading, map) &&
           read_template(&reading, "chat_template.jinja", "default");
    if (good && !find(&reading, "default", &index))
        good = read_config_templates(&reading, json_object_get(config, "chat_template"));
    good = good && read_additional(&reading);
    if (good) leave_out(&reading);
    json_decref(config);
    json_decref(map);
    return end(&reading, good);
}

/* ---- GGUF ---- */

static bool put_gguf_token(struct reading *reading, struct gguf *file, const struct gguf_value *tokens,
                           const char *id_key, const char *variable)
{
    uint64_t id = UINT64_MAX;
    const uint8_t *at = tokens->data;
    const char *text = NULL;
    size_t bytes = 0;
    struct status ignored = {0};
    if (!gguf_get_u64(file, id_key, false, &id, &ignored) || id >= tokens->count) return true;
    for (uint64_t i = 0; i <= id; i++) gguf_next_string(&at, &text, &bytes);
    json_t *value = json_stringn(text, bytes);
    if (!value) return true;
    return json_put(reading->variables, variable, value) || out_of_memory(reading);
}

static bool add_gguf_template(struct reading *reading, struct gguf *file, const char *key, const char *name)
{
    const char *text = NULL;
    size_t bytes = 0;
    struct status found = {0};
    if (!gguf_get_string(file, key, false, &text, &bytes, &found)) return add_fault(reading, name, found.message);
    return !text || add_text(reading, name, text, bytes, key);
}

json_t *gguf_read_templates(struct gguf *file, struct status *status)
{
    static const char *const ids[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                                         {"tokenizer.ggml.eos_token_id", "eos_token"},
                                         {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                         {"tokenizer.ggml.padding_token_id", "pad_token"}};
    struct reading reading = {.status = status};
    const struct gguf_value *tokens = NULL, *names = NULL;
    struct status ignored = {0};
    status_clear(status);
    bool good = begin(&reading) && add_gguf_template(&reading, file, "tokenizer.chat_template", "default");
    if (good && gguf_get_array(file, "tokenizer.ggml.tokens", false, GGUF_STRING, &tokens, &ignored) && tokens)
        for (size_t i = 0; good && i < sizeof ids / sizeof *ids; i++)
            good = put_gguf_token(&reading, file, tokens, ids[i][0], ids[i][1]);
    if (good && gguf_get_array(file, "tokenizer.chat_templates", false, GGUF_STRING, &names, &ignored) && names) {
        const uint8_t *at = names->data;
        for (uint64_t i = 0; good && i < names->count && i < CHAT_TEMPLATES_MOST; i++) {
            char key[sizeof "tokenizer.chat_template." + CHAT_TEMPLATES_MOST_NAME], name[CHAT_TEMPLATES_MOST_NAME + 1];
            const char *text;
            size_t bytes;
            gguf_next_string(&at, &text, &bytes);
            if (bytes == 0 || bytes > CHAT_TEMPLATES_MOST_NAME || memchr(text, 0, bytes)) continue;
            snprintf(name, sizeof name, "%.*s", (int)bytes, text);
            snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
            json_t *known = json_string(name); /* NULL: not UTF-8 */
            if (known) good = add_gguf_template(&reading, file, key, name);
            json_decref(known);
        }
    }
    if (good) leave_out(&reading);
    return end(&reading, good);
}
