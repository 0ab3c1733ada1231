/* SPDX-License-Identifier: Apache-2.0 */
/* From a template's text to its tree: the grammar of text and statements of jinja2, without what needs other templates. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/template/template_parse.h"

/* ---- text and tags ---- */

/* Passes over white space. */
static size_t after_space(const struct parser *parser, size_t at)
{
    return parser->size - string_strip((struct string){parser->text + at, NULL, parser->size - at}, NULL, 1).size;
}

/* Where the text from `begin` to `end` ends before a tag. `sign`: the tag's. `is_block`: white space goes from the start of its
 * line, if the line has nothing else. */
static size_t text_end(const struct parser *parser, size_t begin, size_t end, char sign, bool is_block)
{
    if (sign == '-')
        return begin + string_strip((struct string){parser->text + begin, NULL, end - begin}, NULL, 2).size;
    if (!is_block || sign == '+') return end;
    size_t line = end;
    while (line > begin && parser->text[line - 1] != '\n') line--;
    const bool starts_line = line == 0 || parser->text[line - 1] == '\n';
    return starts_line && !string_strip((struct string){parser->text + line, NULL, end - line}, NULL, 3).size ? line
                                                                                                              : end;
}

/* Text up to the next tag. `*tag`: '{', '%' or '#'; 0: the end. Leaves the position after the tag's opening. */
static struct string read_text(struct parser *parser, char *tag)
{
    const size_t begin = parser->trims ? after_space(parser, parser->at) : parser->at;
    size_t at = begin;
    while (at + 1 < parser->size &&
           !(parser->text[at] == '{' && strchr("{%#", parser->text[at + 1]) && parser->text[at + 1]))
        at++;
    *tag = at + 1 < parser->size ? parser->text[at + 1] : 0;
    const char sign = *tag && at + 2 < parser->size ? parser->text[at + 2] : 0;
    const size_t end = *tag ? text_end(parser, begin, at, sign, *tag != '{') : parser->size;
    const struct string text = {parser->text + begin, NULL, end - begin};
    parser_advance(parser, (*tag ? at + 2 : parser->size) - parser->at);
    if (*tag && (sign == '-' || (*tag != '{' && sign == '+'))) parser_advance(parser, 1);
    parser->trims = false;
    return text;
}

/* What follows a tag's end: white space after "-", one line break after a block or a comment (`trims_line`). */
static void end_tag(struct parser *parser, char sign, bool trims_line)
{
    parser->trims = sign == '-';
    if (sign == '-' || !trims_line || sign == '+') return;
    if (parser->at < parser->size && parser->text[parser->at] == '\n') parser_advance(parser, 1);
}

static void close_tag(struct parser *parser, bool trims_line)
{
    const bool is_block = parser->in_tag;
    const size_t size = parser->token.kind == TOKEN_END ? parser_tag_end(parser, is_block) : 0;
    if (parser_has_failed(parser)) return;
    if (!size) {
        parser_expected(parser, is_block ? "the end of the tag (%})" : "the end of the tag (}})");
        return;
    }
    const char sign = size == 3 ? parser->text[parser->at] : 0;
    parser_advance(parser, size);
    end_tag(parser, sign, trims_line);
}

static void finish_tag(struct parser *parser) { close_tag(parser, parser->in_tag); }

static void skip_comment(struct parser *parser)
{
    const char *end = memmem(parser->text + parser->at, parser->size - parser->at, "#}", 2);
    if (!end) {
        parser_fail(parser, "a comment does not end");
        return;
    }
    const char sign = end > parser->text + parser->at && strchr("-+", end[-1]) ? end[-1] : 0;
    parser_advance(parser, (size_t)(end - parser->text) + 2 - parser->at);
    end_tag(parser, sign, true);
}

static struct node *parse_body(struct parser *parser, const char *const *ends);

static struct node *body_until(struct parser *parser, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *body = parse_body(parser, ends);
    finish_tag(parser);
    return body;
}

static struct node *raw_text(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_TEXT);
    close_tag(parser, false); /* the line break after it is text */
    const size_t begin = parser->trims ? after_space(parser, parser->at) : parser->at;
    for (size_t at = begin; at + 2 <= parser->size; at++) {
        if (parser->text[at] != '{' || parser->text[at + 1] != '%') continue;
        const char sign = at + 2 < parser->size ? parser->text[at + 2] : 0;
        const size_t name = after_space(parser, at + 2 + (sign == '-' || sign == '+'));
        if (parser->size - name < 6 || memcmp(parser->text + name, "endraw", 6) != 0) continue;
        node->text = (struct string){parser->text + begin, NULL, text_end(parser, begin, at, sign, true) - begin};
        parser_advance(parser, name + 6 - parser->at);
        parser->trims = false;
        parser_next(parser);
        finish_tag(parser);
        return node;
    }
    parser_fail(parser, "expected {%% endraw %%}, found the end of the template");
    return node;
}

static struct node *parse_if(struct parser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *node = parser_node(parser, NODE_IF);
    parser_enter(parser);
    node->a = parser_tuple(parser, false);
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : parse_body(parser, ends);
    if (!parser_has_failed(parser)) {
        if (string_is(parser->name, "elif")) {
            node->other = parse_if(parser);
            parser->depth--;
            return node;
        }
        if (string_is(parser->name, "else")) {
            finish_tag(parser);
            node->other = body_until(parser, "endif");
        } else {
            finish_tag(parser);
        }
    }
    parser->depth--;
    return node;
}

static struct node *parse_target(struct parser *parser, bool attributes);

/* A name, an attribute of a namespace (`attributes`), or targets in parentheses. */
static struct node *parse_one_target(struct parser *parser, bool attributes)
{
    struct value value;
    struct node *name = parser_node(parser, NODE_NAME), *attribute;
    if (parser_at_operator(parser, "(")) {
        parser_enter(parser);
        parser_next(parser);
        if (!parser_has_failed(parser)) name = parse_target(parser, attributes);
        parser_expect_operator(parser, ")");
        parser->depth--;
        return name;
    }
    name->text = parser_expect_name(parser);
    if (parser_constant_name(name->text, &value))
        parser_fail(parser, "cannot assign to '%.*s'", (int)name->text.size, name->text.bytes);
    if (!attributes || !parser_accept_operator(parser, ".")) return name;
    attribute = parser_node(parser, NODE_ATTRIBUTE);
    attribute->a = name;
    attribute->text = parser_expect_name(parser);
    return attribute;
}

/* Several with commas between them are a tuple. */
static struct node *parse_target(struct parser *parser, bool attributes)
{
    struct node_chain targets = {0};
    bool several = false;
    do {
        if (several && (parser->token.kind != TOKEN_NAME || parser_at_name(parser, "in")) &&
            !parser_at_operator(parser, "("))
            break;
        node_chain_add(&targets, parse_one_target(parser, attributes));
        several |= parser_at_operator(parser, ",");
    } while (!parser_has_failed(parser) && parser_accept_operator(parser, ","));
    if (!several) return targets.first;
    struct node *tuple = parser_node(parser, NODE_TUPLE);
    tuple->list = targets.first;
    return tuple;
}

/* A loop's variable may not be called loop. */
static bool names_loop(const struct node *target)
{
    bool found = target->kind == NODE_NAME && string_is(target->text, "loop");
    for (const struct node *part = target->kind == NODE_TUPLE ? target->list : NULL; part; part = part->next)
        found |= names_loop(part);
    return found;
}

static struct node *parse_for(struct parser *parser)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *node = parser_node(parser, NODE_FOR);
    const int before = parser->loop_names;
    parser_enter(parser);
    node->a = parse_target(parser, false);
    if (!parser_has_failed(parser) && names_loop(node->a)) parser_fail(parser, "cannot assign to 'loop' in a loop");
    if (!parser_accept_name(parser, "in")) parser_expected(parser, "in");
    node->b = parser_tuple(parser, false);
    if (parser_accept_name(parser, "if")) node->c = parser_expression(parser);
    node->is_recursive = parser_accept_name(parser, "recursive");
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : parse_body(parser, ends);
    node->uses_loop = parser->loop_names != before;
    if (!parser_has_failed(parser) && string_is(parser->name, "else")) {
        finish_tag(parser);
        node->other = body_until(parser, "endfor");
    } else {
        finish_tag(parser);
    }
    parser->depth--;
    return node;
}

static struct node *filters_of(struct parser *parser, struct node *filter)
{
    while (!parser_has_failed(parser) && parser_accept_operator(parser, "|")) filter = parser_filter(parser, filter);
    return filter;
}

static struct node *parse_set(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_SET);
    node->a = parse_target(parser, true);
    if (parser_accept_operator(parser, "=")) {
        node->b = parser_tuple(parser, true);
        finish_tag(parser);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = filters_of(parser, NULL);
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endset");
    return node;
}

static struct node *parse_parameters(struct parser *parser)
{
    struct node_chain parameters = {0};
    bool has_default = false;
    parser_expect_operator(parser, "(");
    while (!parser_at_operator(parser, ")") && !parser_has_failed(parser)) {
        struct node *parameter = parser_node(parser, NODE_PARAMETER);
        parameter->text = parser_expect_name(parser);
        if (parser_accept_operator(parser, "="))
            parameter->a = parser_expression(parser), has_default = true;
        else if (has_default)
            parser_fail(parser, "a parameter without a default follows one with a default");
        node_chain_add(&parameters, parameter);
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, ")");
    return parameters.first;
}

/* The body of a macro or of a call, and which of the names that hold other arguments it uses. */
static void macro_body(struct parser *parser, struct node *node, const char *end)
{
    const int callers = parser->caller_names, varargs = parser->varargs_names, kwargs = parser->kwargs_names;
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, end);
    node->uses_caller = parser->caller_names != callers;
    node->uses_varargs = parser->varargs_names != varargs;
    node->uses_kwargs = parser->kwargs_names != kwargs;
}

static struct node *parse_macro(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_MACRO);
    node->text = parser_expect_name(parser);
    node->list = parse_parameters(parser);
    macro_body(parser, node, "endmacro");
    return node;
}

static struct node *parse_call_block(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_CALL_BLOCK);
    if (parser_at_operator(parser, "(")) node->list = parse_parameters(parser);
    node->text = string_of("caller");
    node->a = parser_expression(parser);
    if (!parser_has_failed(parser) && node->a->kind != NODE_CALL) parser_fail(parser, "expected a call after 'call'");
    macro_body(parser, node, "endcall");
    return node;
}

/* Without other templates that would extend this one, a block is its content. */
static struct node *parse_block(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_BLOCK);
    const struct string name = parser_expect_name(parser);
    if (parser_accept_name(parser, "scoped")) node->kind = NODE_WITH;
    finish_tag(parser);
    const char *const ends[] = {"endblock", NULL};
    node->body = parser_has_failed(parser) ? NULL : parse_body(parser, ends);
    if (parser->token.kind == TOKEN_NAME && string_equal(parser->token.text, name)) parser_next(parser);
    finish_tag(parser);
    return node;
}

/* Only without escaping, as everywhere. */
static struct node *parse_autoescape(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_WITH), *is_on = parser_expression(parser);
    if (!parser_has_failed(parser) && (is_on->kind != NODE_CONSTANT || value_truth(&is_on->constant)))
        parser_fail(parser, "a tag that is not supported: autoescape that is not false");
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endautoescape");
    return node;
}

static struct node *parse_with(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_WITH);
    struct node_chain sets = {0};
    while (parser->token.kind != TOKEN_END && !parser_has_failed(parser)) {
        struct node *set = parser_node(parser, NODE_SET);
        set->a = parse_target(parser, false);
        parser_expect_operator(parser, "=");
        set->b = parser_expression(parser);
        node_chain_add(&sets, set);
        if (!parser_accept_operator(parser, ",")) break;
    }
    finish_tag(parser);
    node->list = sets.first;
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endwith");
    return node;
}

static struct node *parse_statement(struct parser *parser, struct string name)
{
    struct node *node;
    if (string_is(name, "if")) return parse_if(parser);
    if (string_is(name, "for")) return parse_for(parser);
    if (string_is(name, "set")) return parse_set(parser);
    if (string_is(name, "macro")) return parse_macro(parser);
    if (string_is(name, "call")) return parse_call_block(parser);
    if (string_is(name, "with")) return parse_with(parser);
    if (string_is(name, "raw")) return raw_text(parser);
    if (string_is(name, "block")) return parse_block(parser);
    if (string_is(name, "autoescape")) return parse_autoescape(parser);
    if (string_is(name, "filter")) {
        node = parser_node(parser, NODE_FILTER_BLOCK);
        node->a = filters_of(parser, parser_filter(parser, NULL));
        finish_tag(parser);
        node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endfilter");
        return node;
    }
    if (string_is(name, "generation")) { /* marks what a model wrote, for training */
        node = parser_node(parser, NODE_WITH);
        finish_tag(parser);
        node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endgeneration");
        return node;
    }
    if (string_is(name, "print")) {
        node = parser_node(parser, NODE_OUTPUT);
        node->a = parser_tuple(parser, true);
        finish_tag(parser);
        return node;
    }
    if (string_is(name, "break") || string_is(name, "continue")) {
        node = parser_node(parser, string_is(name, "break") ? NODE_BREAK : NODE_CONTINUE);
        finish_tag(parser);
        return node;
    }
    parser_fail(parser, "a tag that is not supported, or stands at the wrong place: '%.*s'",
                (int)(name.size < 60 ? name.size : 60), name.bytes);
    return parser_node(parser, NODE_TEXT);
}

/* Statements up to a tag of one of these names, which is left in `name` with its tag open; `ends` NULL: to the end of the text. */
static struct node *parse_body(struct parser *parser, const char *const *ends)
{
    struct node_chain body = {0};
    parser_enter(parser);
    while (!parser_has_failed(parser)) {
        char tag;
        struct node *text = parser_node(parser, NODE_TEXT);
        text->text = read_text(parser, &tag);
        if (text->text.size) node_chain_add(&body, text);
        if (!tag) {
            while (ends && ends[1]) ends++; /* the last one closes the block */
            if (ends) parser_fail(parser, "expected {%% %s %%}, found the end of the template", *ends);
            break;
        }
        if (tag == '#') {
            skip_comment(parser);
            continue;
        }
        parser->in_tag = tag == '%';
        parser->brackets = 0;
        parser_next(parser);
        if (tag == '{') {
            struct node *output = parser_node(parser, NODE_OUTPUT);
            output->a = parser_tuple(parser, true);
            finish_tag(parser);
            node_chain_add(&body, output);
            continue;
        }
        const struct string name = parser_expect_name(parser);
        bool ended = false;
        for (size_t i = 0; ends && ends[i]; i++) ended |= string_is(name, ends[i]);
        parser->name = name;
        if (ended) break;
        node_chain_add(&body, parse_statement(parser, name));
    }
    parser->depth--;
    return body.first;
}

struct template *template_open(const char *text, size_t size, struct status *status)
{
    if (size > TEMPLATE_MOST_BYTES) {
        status_fail(status, STATUS_BAD_INPUT, "chat template: expected at most %d bytes, found %zu",
                    TEMPLATE_MOST_BYTES, size);
        return NULL;
    }
    struct template *template = calloc(1, sizeof *template);
    char *source = malloc(size + 1);
    if (!template || !source) {
        free(template), free(source);
        status_fail(status, STATUS_MACHINE, "out of memory while a template is read");
        return NULL;
    }
    template->source = source;
    size_t used = 0;
    for (size_t i = 0; i < size; i++) /* all line breaks are one character */
        if (text[i] != '\r')
            source[used++] = text[i];
        else if (i + 1 == size || text[i + 1] != '\n')
            source[used++] = '\n';
    if (used && source[used - 1] == '\n') used--; /* jinja2 drops one at the end */
    source[used] = 0;
    template->memory = (struct render){.status = status};
    struct parser parser = {.memory = &template->memory, .status = status, .text = source, .size = used, .line = 1};
    for (size_t at = 0; at < used;) {
        utf8proc_int32_t character;
        const utf8proc_ssize_t bytes =
            utf8proc_iterate((const utf8proc_uint8_t *)source + at, (utf8proc_ssize_t)(used - at), &character);
        if (bytes <= 0 || character == 0) {
            parser_fail(&parser, "expected UTF-8 text without NUL, found another byte at %zu", at);
            break;
        }
        at += (size_t)bytes;
    }
    if (!template->memory.failed) template->body = parse_body(&parser, NULL);
    template->memory.status = NULL;
    if (!template->memory.failed) return template;
    template_close(template);
    return NULL;
}

const char *template_text(const struct template *template) { return template->source; }

void template_close(struct template *template)
{
    if (!template) return;
    render_free(&template->memory);
    free(template->source);
    free(template);
}
