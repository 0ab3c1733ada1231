/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: modules.json and 1_Pooling/config.json as sentence-transformers writes them; the pooling step has a flag for each way, later
 * versions its name in one key. */
#include "formats/checkpoint/embedding_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/json.h"

enum { MOST_BYTES = 1 << 20 };

/* *document: of folder/part/name, owned by the caller; NULL: there is no such file. */
static bool read_document(const char *folder, const char *part, const char *name, json_t **document,
                          struct status *status)
{
    char *path = NULL, *text = NULL;
    size_t size;
    bool present;
    *document = NULL;
    if (asprintf(&path, "%s/%s%s%s", folder, part, *part ? "/" : "", name) < 0)
        return status_fail(status, STATUS_MACHINE, "out of memory");
    bool ok = file_find(path, &present, status);
    if (ok && present)
        ok = file_read(path, MOST_BYTES, &text, &size, status) &&
             (*document = json_parse(text, size, path, status)) != NULL;
    free(text);
    free(path);
    return ok;
}

static void set_other(struct embedding_config *config, const char *where, const char *expected, const char *found)
{
    struct status text; /* makes what files say printable */
    status_fail(&text, STATUS_BAD_INPUT, "%s: expected %s, found %.100s", where, expected, found);
    config->kind = EMBEDDING_OTHER;
    memcpy(config->other, text.message, sizeof config->other);
}

/* The class of a module: the last word of its type. */
static const char *class_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type")), *dot = type ? strrchr(type, '.') : NULL;
    return dot ? dot + 1 : type ? type : "nothing";
}

/* The folder of a module lies beside modules.json. */
static const char *folder_of(const json_t *module)
{
    const char *path = json_string_value(json_object_get(module, "path"));
    return path && *path && *path != '.' && !strchr(path, '/') ? path : NULL;
}

static void read_modes(struct embedding_config *config, const json_t *pooling, const char *where)
{
    static const char prefix[] = "pooling_mode_", wanted[] = "last-token pooling";
    const char *found = json_string_value(json_object_get(pooling, "pooling_mode")), *key;
    json_t *value;
    config->kind = EMBEDDING_LAST_TOKEN;
    if (found && strcmp(found, "lasttoken") != 0) set_other(config, where, wanted, found);
    json_object_foreach ((json_t *)(uintptr_t)pooling, key, value) {
        if (strncmp(key, prefix, sizeof prefix - 1) != 0 || !json_is_true(value)) continue;
        found = key + sizeof prefix - 1;
        if (strcmp(found, "lasttoken") != 0) set_other(config, where, wanted, found);
    }
    if (!found) set_other(config, where, wanted, "no pooling mode");
}

static bool read_pooling(struct embedding_config *config, const char *folder, const json_t *module,
                         struct status *status)
{
    const char *part = folder_of(module);
    char where[160];
    if (!part) {
        set_other(config, "modules.json", "the pooling module's folder as its path", "another path");
        return true;
    }
    json_t *pooling;
    if (!read_document(folder, part, "config.json", &pooling, status)) return false;
    snprintf(where, sizeof where, "%.100s/config.json", part);
    if (pooling)
        read_modes(config, pooling, where);
    else
        set_other(config, where, "the configuration of the pooling", "no such file");
    json_decref(pooling);
    return true;
}

/* The steps that the runtime takes: the model, the pooling, and a scale to length 1, which every embedding gets. */
static bool read_modules(struct embedding_config *config, const char *folder, const json_t *modules,
                         struct status *status)
{
    static const char *const steps[] = {"Transformer", "Pooling", "Normalize"};
    const size_t count = json_array_size(modules), most = sizeof steps / sizeof *steps;
    if (!json_is_array(modules))
        return status_fail(status, STATUS_BAD_INPUT, "%s/modules.json: expected an array of modules, found %s", folder,
                           json_type_name(modules));
    for (size_t i = 0; i < count; i++) {
        const char *found = class_of(json_array_get(modules, i));
        if (i < most && strcmp(found, steps[i]) == 0) continue;
        set_other(config, "modules.json", i < most ? steps[i] : "no module after Normalize", found);
        return true;
    }
    if (count >= 2) return read_pooling(config, folder, json_array_get(modules, 1), status);
    set_other(config, "modules.json", "Transformer and Pooling", "fewer modules");
    return true;
}

bool embedding_config_read(struct embedding_config *config, const char *folder, struct status *status)
{
    json_t *modules;
    *config = (struct embedding_config){0};
    const bool ok = read_document(folder, "", "modules.json", &modules, status) &&
                    (!modules || read_modules(config, folder, modules, status));
    json_decref(modules);
    return ok;
}
