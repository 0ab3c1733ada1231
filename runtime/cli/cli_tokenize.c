/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_tokenize.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "formats/engine/engine_file.h"
#include "formats/base/json.h"
#include "formats/tokenizer/tokenizer.h"
#include "runtime/cli/cli_args.h"

enum { MOST_TOKENIZER_BYTES = 256 << 20 };

struct tokenize_run {
    const struct tokenize_options *options;
    struct engine engine;
    bool engine_open;
    uint8_t *image; /* of a tokenizer.json */
    struct tokenizer *tokenizer;
    struct token_buffer tokens;
    struct text_buffer text;
    struct status status;
};

/* A JSON file begins with a brace, after optional white space or a byte order mark; an engine's magic does not. An
 * unreadable file is reported when it is opened as an engine. */
static bool looks_like_json(const char *path)
{
    char start[64];
    struct file_map map;
    struct status status;
    if (!file_map_open(&map, path, &status)) return false;
    size_t size = map.size < sizeof start ? (size_t)map.size : sizeof start, at = 0;
    bool readable = size > 0 && file_map_read(&map, 0, start, size, &status);
    file_map_close(&map);
    if (!readable) return false;
    if (size >= 3 && !memcmp(start, "\xef\xbb\xbf", 3)) at = 3;
    while (at < size && start[at] && strchr(" \t\r\n", start[at])) at++;
    return at < size && start[at] == '{';
}

static bool open_tokenizer(struct tokenize_run *run)
{
    const char *path = run->options->path;
    const uint8_t *image;
    size_t image_size;
    if (looks_like_json(path)) {
        char *json = NULL;
        size_t size;
        if (!file_read(path, MOST_TOKENIZER_BYTES, &json, &size, &run->status)) return false;
        bool ok = tokenizer_import(json, size, path, &run->image, &image_size, &run->status);
        free(json);
        if (!ok) return false;
        image = run->image;
    } else {
        if (!engine_open(&run->engine, path, &run->status)) return false;
        run->engine_open = true;
        image = run->engine.tokenizer;
        image_size = run->engine.tokenizer_size;
        if (!image) return status_fail(&run->status, STATUS_BAD_INPUT, "%s: the engine has no tokenizer", path);
    }
    run->tokenizer = tokenizer_open(image, image_size, !run->options->no_jit, &run->status);
    return run->tokenizer != NULL;
}

static bool tokenize_value(struct tokenize_run *run, const json_t *value, json_t **result)
{
    if (!json_is_string(value)) return status_fail(&run->status, STATUS_BAD_INPUT, "expected a JSON string");
    const char *text = json_string_value(value);
    size_t size = json_string_length(value);
    bool add_special = run->options->add_special;
    bool encoded =
        run->options->plain
            ? tokenizer_encode_plain(run->tokenizer, text, size, add_special, NULL, 0, &run->tokens, &run->status)
            : tokenizer_encode(run->tokenizer, text, size, add_special, &run->tokens, &run->status);
    if (!encoded) return false;
    *result = json_array();
    for (size_t i = 0; i < run->tokens.count; i++)
        if (json_array_append_new(*result, json_integer(run->tokens.ids[i])))
            return status_fail(&run->status, STATUS_MACHINE, "out of memory");
    return true;
}

static bool detokenize_value(struct tokenize_run *run, const json_t *value, json_t **result)
{
    size_t count = json_array_size(value);
    if (!json_is_array(value)) return status_fail(&run->status, STATUS_BAD_INPUT, "expected a JSON array of ids");
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    bool ok = ids || status_fail(&run->status, STATUS_MACHINE, "out of memory");
    for (size_t i = 0; ok && i < count; i++) {
        const json_t *id = json_array_get(value, i);
        json_int_t number = json_integer_value(id);
        ok = json_is_integer(id) && number >= 0 && number <= INT32_MAX;
        if (!ok)
            status_fail(&run->status, STATUS_BAD_INPUT, "element %zu: expected an id from 0 to %d", i, INT32_MAX);
        else
            ids[i] = (int32_t)number;
    }
    ok = ok && tokenizer_decode(run->tokenizer, ids, count, run->options->skip_special, &run->text, &run->status);
    free(ids);
    if (!ok) return false;
    *result = json_stringn(run->text.size ? run->text.text : "", run->text.size);
    return *result || status_fail(&run->status, STATUS_INTERNAL, "the decoded text is not UTF-8");
}

static bool convert_line(struct tokenize_run *run, const char *line, size_t size)
{
    json_error_t error;
    json_t *result = NULL;
    char *text = NULL;
    json_t *value = json_loadb(line, size, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    bool ok = value || status_fail(&run->status, STATUS_BAD_INPUT, "%s", error.text);
    ok = ok && (run->options->detokenize ? detokenize_value : tokenize_value)(run, value, &result);
    if (ok) {
        text = json_format(result, JSON_ENCODE_ANY | JSON_COMPACT);
        ok = text || status_fail(&run->status, STATUS_MACHINE, "out of memory");
    }
    if (ok) {
        cli_print_text(stdout, text, strlen(text));
        ok = cli_write("\n", 1, &run->status);
    }
    free(text);
    json_decref(value);
    json_decref(result);
    return ok;
}

static bool convert_lines(struct tokenize_run *run)
{
    char *line = NULL;
    size_t capacity = 0;
    uint64_t number = 0;
    bool ok = true;
    ssize_t size;
    while (ok && !cli_caught_signal() && (size = getline(&line, &capacity, stdin)) >= 0) {
        number++;
        ok = convert_line(run, line, (size_t)size);
        if (!ok) status_prefix(&run->status, "line %" PRIu64, number);
    }
    if (ok && ferror(stdin) && !cli_caught_signal())
        ok = status_fail_errno(&run->status, STATUS_BAD_INPUT, errno, "reading from stdin");
    free(line);
    return ok;
}

int tokenize_lines(const struct tokenize_options *options)
{
    struct tokenize_run run = {.options = options};
    int code = CLI_DONE;
    if (!open_tokenizer(&run) || !convert_lines(&run)) code = cli_fail_status(&run.status);
    if (run.tokenizer) tokenizer_close(run.tokenizer);
    if (run.engine_open) engine_close(&run.engine);
    free(run.image);
    token_buffer_free(&run.tokens);
    text_buffer_free(&run.text);
    if (!code && cli_caught_signal()) code = CLI_SIGNAL + cli_caught_signal();
    return code;
}
