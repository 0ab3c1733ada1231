/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of models: any text is divided into parts, the same whether it comes at once or in pieces, and none of it is lost where
 * nothing is a call. The first two bytes select the dialect, the tools and the length of the pieces. */
#include "runtime/server/server_answer.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

static const char list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":"
    "{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";

/* Templates that have the signs of a dialect, and of reasoning. */
static const char *const templates[] = {"<tool_call></think>",
                                        "<tool_call><function=<parameter=</think>",
                                        "<tool_call><arg_key>",
                                        "[TOOL_CALLS][ARGS][THINK]",
                                        "<|start_header_id|>ipython",
                                        "<|channel|>analysis<|message|>",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_list_start|>",
                                        "<|tool_call>call:",
                                        ">>>all recipient",
                                        "<tool_calls>",
                                        "\xef\xbd\x9c"
                                        "DSML\xef\xbd\x9c</think>",
                                        "none"};

/* All parts, each with its kind. */
static void describe(const struct server_parts *parts, struct server_buffer *text)
{
    for (size_t i = 0; i < parts->count; i++) {
        const struct server_part *part = &parts->items[i];
        require(part->kind == SERVER_PART_CALL ? part->name && part->id[0] : !part->name);
        require(part->kind == SERVER_PART_CALL || part->text.size);
        require(server_buffer_format(text, "%d%s", (int)part->kind, part->name ? part->name : ""));
        require(server_buffer_add(text, part->text.data, part->text.size));
    }
}

static void divide(const struct server_dialect *dialect, const struct server_tools *tools, bool in_thought,
                   bool is_bound, bool is_cut, const char *text, size_t size, size_t piece, struct server_parts *parts)
{
    struct server_answer answer;
    server_answer_begin(&answer, dialect, tools, in_thought);
    if (is_bound) server_answer_bind(&answer, is_cut);
    for (size_t at = 0; at < size; at += piece)
        require(server_answer_push(&answer, text + at, piece < size - at ? piece : size - at, parts));
    require(server_answer_finish(&answer, is_cut, parts));
    server_answer_free(&answer);
}

/* The whole text and its pieces, with what it is if nothing but content can be in it. */
static void compare(const struct server_dialect *dialect, const struct server_tools *tools, bool in_thought,
                    bool is_bound, bool is_cut, const char *text, size_t size, size_t piece, bool is_plain)
{
    struct server_parts whole = {0}, pieces = {0};
    struct server_buffer first = {0}, second = {0};
    divide(dialect, tools, in_thought, is_bound, is_cut, text, size, size ? size : 1, &whole);
    divide(dialect, tools, in_thought, is_bound, is_cut, text, size, piece, &pieces);
    describe(&whole, &first);
    describe(&pieces, &second);
    require(first.size == second.size && (!first.size || memcmp(first.data, second.data, first.size) == 0));
    if (is_plain)
        require(size ? whole.count == 1 && whole.items[0].text.size == size &&
                           memcmp(whole.items[0].text.data, text, size) == 0
                     : !whole.count);
    server_buffer_free(&first);
    server_buffer_free(&second);
    server_parts_free(&whole);
    server_parts_free(&pieces);
}

/* Text and its description, several times, and a tree of JSON. */
const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 20, .base_bytes = 256 << 10, .bytes_per_byte = 512};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct server_dialect dialect;
    struct server_tools tools = {0};
    struct server_error error = {0};
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    const bool has_tools = data[1] & 1, in_thought = data[1] & 2, is_required = data[1] & 4,
               is_bound = has_tools && !is_required && (data[0] & 0x80);
    const size_t piece = 1 + (data[1] >> 3);
    size -= 2;
    server_dialect_find(templates[data[0] % (sizeof templates / sizeof *templates)], &dialect);
    json_t *read = json_loads(list, 0, NULL);
    require(read && server_tools_read(read, &tools, &error));
    if (is_required) tools.choice = SERVER_TOOLS_REQUIRED;
    const bool is_plain = !has_tools && !dialect.thought && data[0] % (sizeof templates / sizeof *templates) != 9;
    for (int is_cut = 0; is_cut < 2; is_cut++)
        compare(&dialect, has_tools ? &tools : NULL, in_thought && dialect.thought, is_bound, is_cut, text, size, piece,
                is_plain);
    server_tools_free(&tools);
    json_decref(read);
    return 0;
}
