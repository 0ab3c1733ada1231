/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_render.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/json.h"
#include "formats/cli/cli_args.h"
#include "formats/engine/engine_layout.h"
#include "formats/template/chat_templates.h"

struct render_run {
    const struct render_options *options;
    struct engine engine;
    bool engine_open;
    struct chat_templates *own;             /* of a template's file */
    const struct chat_templates *templates; /* own, or the engine's */
    struct tm now;
    struct status status;
};

/* An engine begins with its magic. An unreadable file is reported when it is opened. */
static bool is_engine(const char *path)
{
    static const uint8_t magic[ENGINE_MAGIC_BYTES] = ENGINE_MAGIC;
    uint8_t start[ENGINE_MAGIC_BYTES];
    struct file_map map;
    struct status status;
    if (!file_map_open(&map, path, &status)) return false;
    const bool found = map.size >= sizeof start && file_map_read(&map, 0, start, sizeof start, &status) &&
                       memcmp(start, magic, sizeof start) == 0;
    file_map_close(&map);
    return found;
}

static bool open_templates(struct render_run *run)
{
    const char *path = run->options->path;
    char *text = NULL;
    size_t size;
    if (is_engine(path)) {
        if (!engine_open(&run->engine, path, &run->status)) return false;
        run->engine_open = true;
        run->templates = run->engine.chat_templates;
        return run->templates ||
               status_fail(&run->status, STATUS_BAD_INPUT, "%s: the engine has no chat template", path);
    }
    if (!file_read(path, TEMPLATE_MOST_BYTES, &text, &size, &run->status)) return false;
    run->templates = run->own = chat_templates_of_text(text, size, path, &run->status);
    free(text);
    return run->templates != NULL;
}

/* {"error": reason}; a reason that is cut within a character is cut before it. */
static json_t *error_object(struct status *reason)
{
    size_t size = strlen(reason->message);
    json_t *text = json_string(reason->message), *object;
    while (!text && size) text = json_stringn(reason->message, --size);
    object = json_object();
    if (json_put(object, "error", text)) return object;
    json_decref(object);
    return NULL;
}

static json_t *render_value(const struct render_run *run, const char *line, size_t size)
{
    struct status reason = {0};
    struct template_result result = {0};
    json_t *variables = json_parse(line, size, "variables", &reason), *value = NULL;
    if (variables &&
        chat_templates_render(run->templates, variables, run->options->now ? &run->now : NULL, &result, &reason)) {
        value = json_stringn(result.text, result.size);
        if (!value) status_fail(&reason, STATUS_BAD_INPUT, "the rendered text is not UTF-8");
    }
    template_result_free(&result);
    json_decref(variables);
    return value ? value : error_object(&reason);
}

static bool render_line(struct render_run *run, const char *line, size_t size)
{
    json_t *value = render_value(run, line, size);
    char *text = value ? json_format(value, JSON_ENCODE_ANY) : NULL;
    bool ok = text || status_fail(&run->status, STATUS_MACHINE, "out of memory");
    if (ok) {
        cli_print_text(stdout, text, strlen(text));
        ok = cli_write("\n", 1, &run->status);
    }
    free(text);
    json_decref(value);
    return ok;
}

static bool render_all(struct render_run *run)
{
    char *line = NULL;
    size_t capacity = 0;
    bool ok = true;
    ssize_t size;
    while (ok && !cli_caught_signal() && (size = getline(&line, &capacity, stdin)) >= 0)
        ok = render_line(run, line, (size_t)size);
    if (ok && ferror(stdin) && !cli_caught_signal())
        ok = status_fail_errno(&run->status, STATUS_BAD_INPUT, errno, "reading from stdin");
    free(line);
    return ok;
}

int render_lines(const struct render_options *options)
{
    struct render_run run = {.options = options};
    if (options->now && !chat_templates_read_time(options->now, &run.now))
        return cli_usage("--now: expected a time such as 2026-01-02T03:04:05, found '%s'", options->now);
    int code = open_templates(&run) && render_all(&run) ? CLI_DONE : cli_fail_status(&run.status);
    chat_templates_close(run.own);
    if (run.engine_open) engine_close(&run.engine);
    if (!code && cli_caught_signal()) code = CLI_SIGNAL + cli_caught_signal();
    return code;
}
