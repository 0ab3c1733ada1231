/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_answer.h"

#include <string.h>

static const char array_of_calls[] = "^$calls$!";

static bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

void server_answer_begin(struct server_answer *answer, const struct server_dialect *dialect,
                         const struct server_tools *tools, bool in_thought)
{
    *answer = (struct server_answer){.dialect = dialect, .tools = tools};
    if (tools && server_tools_are_forced(tools)) {
        answer->state = tools->choice == SERVER_TOOLS_NAMED ? SERVER_ANSWER_NAMED : SERVER_ANSWER_TEXT;
        answer->is_required = tools->choice == SERVER_TOOLS_REQUIRED;
    } else if (dialect && (dialect->thought || dialect->patterns[0])) {
        answer->state = in_thought ? SERVER_ANSWER_THOUGHT : SERVER_ANSWER_TEXT;
        answer->skip_space = in_thought;
    }
}

void server_answer_bind(struct server_answer *answer, bool is_json)
{
    answer->is_bound = true;
    answer->is_json = is_json;
    answer->skip_space = false;
    if (answer->state == SERVER_ANSWER_THOUGHT) answer->state = SERVER_ANSWER_TEXT;
}

void server_answer_free(struct server_answer *answer)
{
    server_buffer_free(&answer->held);
    server_buffer_free(&answer->space);
    *answer = (struct server_answer){0};
}

/* ---- text ---- */

static const char *rest(const struct server_answer *answer)
{
    return answer->held.data ? answer->held.data + answer->used : "";
}

static size_t rest_size(const struct server_answer *answer) { return answer->held.size - answer->used; }

static bool flush_space(struct server_answer *answer, enum server_part_kind kind, struct server_parts *parts)
{
    bool ok = server_parts_text(parts, kind, answer->space.data, answer->space.size);
    answer->space.size = 0;
    return ok;
}

/* Uses the next bytes as text of a kind. White space at their end waits for what follows it. */
static bool use_text(struct server_answer *answer, enum server_part_kind kind, size_t size, struct server_parts *parts)
{
    const char *text = rest(answer);
    size_t begin = 0, end = size;
    while (end && is_space(text[end - 1])) end--;
    while (answer->skip_space && begin < end && is_space(text[begin])) begin++;
    bool ok = true;
    if (end) {
        answer->skip_space = answer->after_call = false;
        if (kind == SERVER_PART_CONTENT) answer->has_content = answer->start_is_past = true;
        ok = flush_space(answer, kind, parts) && server_parts_text(parts, kind, text + begin, end - begin);
    }
    if (ok && !answer->skip_space) ok = server_buffer_add(&answer->space, text + end, size - end);
    answer->used += size;
    return ok;
}

/* ---- what begins within content ---- */

/* A place where reasoning or a pattern begins. */
struct beginning {
    size_t at, size;     /* in the rest of the text */
    const char *pattern; /* NULL: reasoning */
};

static bool takes_pattern(const struct server_answer *answer, const char *pattern)
{
    const bool has_call = strstr(pattern, "$!") != NULL;
    if (answer->start_is_past && pattern[0] == '^') return false;
    return !has_call || answer->tools;
}

/* The patterns of the dialect; NULL: there are no more. */
static const char *pattern_of(const struct server_answer *answer, size_t index)
{
    if (answer->is_required) return index ? NULL : array_of_calls;
    return answer->dialect->patterns[index];
}

/* Such a marker begins reasoning anywhere; another one, within content, may be what the content is about. */
static bool is_special_marker(const char *marker) { return marker[0] == '<' && marker[1] == '|'; }

static bool takes_thought(const struct server_answer *answer)
{
    if (answer->is_required || answer->is_bound || !answer->dialect->thought) return false;
    return !answer->has_content || is_special_marker(answer->dialect->thought);
}

/* Finds the first of the markers in the rest; if there is none, *kept is the length of the end with which one may begin. */
static void find_marker(const struct server_answer *answer, const char *marker, size_t length, const char *pattern,
                        struct beginning *first, size_t *kept)
{
    const char *text = rest(answer);
    const size_t size = rest_size(answer);
    const char *found = memmem(text, size, marker, length);
    if (found) {
        const size_t at = (size_t)(found - text);
        if (!first->size || at < first->at) *first = (struct beginning){at, length, pattern};
        return;
    }
    size_t end = length - 1 < size ? length - 1 : size;
    while (end > *kept && memcmp(text + size - end, marker, end) != 0) end--;
    if (end > *kept) *kept = end;
}

static void find_beginning(const struct server_answer *answer, struct beginning *first, size_t *kept)
{
    *first = (struct beginning){0};
    *kept = 0;
    if (takes_thought(answer))
        find_marker(answer, answer->dialect->thought, strlen(answer->dialect->thought), NULL, first, kept);
    for (size_t i = 0; pattern_of(answer, i); i++) {
        const char *pattern = pattern_of(answer, i);
        if (pattern[0] != '^' && takes_pattern(answer, pattern))
            find_marker(answer, pattern, server_pattern_literal(pattern), pattern, first, kept);
    }
}

static void drop_rest(struct server_answer *answer)
{
    answer->has_dropped = true;
    answer->used = answer->held.size;
    answer->space.size = 0;
}

static void drop_space(struct server_answer *answer)
{
    answer->space.size = 0;
    answer->skip_space = true;
}

static void begin_pattern(struct server_answer *answer, const char *pattern, bool is_start)
{
    answer->state = SERVER_ANSWER_PATTERN;
    answer->is_start = is_start;
    server_match_begin(&answer->match, pattern);
}

/* ---- the states; each sets *more if there may be more to decide ---- */

/* Begins the next pattern that matches only the beginning of an answer. */
static bool try_start(struct server_answer *answer)
{
    size_t space = 0;
    while (space < rest_size(answer) && is_space(rest(answer)[space])) space++;
    if (space == rest_size(answer)) return false;
    for (const char *pattern; (pattern = pattern_of(answer, answer->next_start)); answer->next_start++) {
        if (pattern[0] != '^' || !takes_pattern(answer, pattern)) continue;
        answer->next_start++;
        begin_pattern(answer, pattern + 1, true);
        answer->match.at = space;
        return true;
    }
    answer->start_is_past = true;
    return false;
}

/* All that comes is content. */
static bool use_rest(struct server_answer *answer, struct server_parts *parts)
{
    bool ok = flush_space(answer, SERVER_PART_CONTENT, parts) &&
              server_parts_text(parts, SERVER_PART_CONTENT, rest(answer), rest_size(answer));
    answer->used += rest_size(answer);
    answer->state = SERVER_ANSWER_PLAIN;
    return ok;
}

static bool go_on_in_text(struct server_answer *answer, struct server_parts *parts, bool *more)
{
    struct beginning first;
    size_t kept;
    if (!answer->start_is_past && try_start(answer)) return *more = true;
    find_beginning(answer, &first, &kept);
    if (answer->is_bound && !answer->after_call && (first.size ? first.at > 0 : kept < rest_size(answer)))
        return use_rest(answer, parts);
    if (!first.size) return use_text(answer, SERVER_PART_CONTENT, rest_size(answer) - kept, parts);
    *more = true;
    if (!use_text(answer, SERVER_PART_CONTENT, first.at, parts)) return false;
    if (!first.pattern && !takes_thought(answer)) return use_text(answer, SERVER_PART_CONTENT, first.size, parts);
    if (first.pattern) {
        begin_pattern(answer, first.pattern, false);
        return true;
    }
    answer->state = SERVER_ANSWER_THOUGHT;
    answer->used += first.size;
    drop_space(answer);
    return true;
}

static bool go_on_in_thought(struct server_answer *answer, struct server_parts *parts, bool *more)
{
    struct beginning end = {0};
    size_t kept = 0;
    const char *marker = answer->dialect->thought_end;
    find_marker(answer, marker, strlen(marker), NULL, &end, &kept);
    if (!end.size) return use_text(answer, SERVER_PART_REASONING, rest_size(answer) - kept, parts);
    if (!use_text(answer, SERVER_PART_REASONING, end.at, parts)) return false;
    answer->used += end.size;
    answer->state = SERVER_ANSWER_TEXT;
    drop_space(answer);
    return *more = true;
}

/* Appends the calls that were matched in the text. */
static enum server_calls take_calls(struct server_answer *answer, const char *text, struct server_parts *parts)
{
    const size_t before = parts->count;
    const enum server_calls added = server_calls_add(&answer->match.found, text, answer->tools, parts);
    if (added != SERVER_CALLS_ADDED) return added;
    size_t keep = parts->count;
    if (answer->tools->one_call) keep = before + (answer->calls ? 0 : 1);
    answer->calls += parts->count - before;
    server_parts_truncate(parts, keep);
    return added;
}

/* Without parts, what was matched passes for a call whatever its arguments are: they are not parsed. */
static bool add_call(struct server_answer *answer, struct server_parts *parts, bool *is_call)
{
    const enum server_calls added = parts ? take_calls(answer, rest(answer), parts) : SERVER_CALLS_ADDED;
    *is_call = added == SERVER_CALLS_ADDED;
    if (!*is_call) return added == SERVER_CALLS_NONE;
    answer->used += answer->match.at;
    answer->space.size = 0;
    answer->after_call = answer->start_is_past = true;
    answer->is_start = false;
    server_match_next(&answer->match);
    return true;
}

/* Begins the pattern after the one that failed which begins with the same text. */
static bool try_other(struct server_answer *answer)
{
    bool is_later = false;
    for (size_t i = 0; !answer->after_call && pattern_of(answer, i); i++) {
        const char *pattern = pattern_of(answer, i);
        const size_t length = server_pattern_literal(pattern);
        const bool is_same = rest_size(answer) >= length && memcmp(rest(answer), pattern, length) == 0;
        if (is_later && is_same && takes_pattern(answer, pattern)) {
            begin_pattern(answer, pattern, false);
            return true;
        }
        is_later = is_later || pattern == answer->match.pattern;
    }
    return false;
}

static bool ends_header(const char *pattern)
{
    static const char end[] = "<|message|>";
    const size_t size = strlen(pattern), end_size = sizeof end - 1;
    return size >= end_size && strcmp(pattern + size - end_size, end) == 0;
}

static bool go_on_in_pattern(struct server_answer *answer, struct server_parts *parts, bool *more)
{
    enum server_matched matched = server_match_step(&answer->match, rest(answer), rest_size(answer));
    bool is_call = false;
    if (matched == SERVER_MATCH_MORE) return true;
    *more = true;
    if (matched == SERVER_MATCH_CALL) {
        if (!add_call(answer, parts, &is_call)) return false;
        if (is_call) return true;
        matched = SERVER_MATCH_NONE;
    }
    answer->state = SERVER_ANSWER_TEXT;
    if (matched == SERVER_MATCH_NONE && (answer->is_start || try_other(answer))) return true;
    if (matched == SERVER_MATCH_NONE && answer->is_bound && !answer->after_call) return use_rest(answer, parts);
    if (matched == SERVER_MATCH_NONE) return use_text(answer, SERVER_PART_CONTENT, answer->match.at, parts);
    answer->used += answer->match.at;
    answer->in_message = ends_header(answer->match.pattern);
    if (!answer->after_call) drop_space(answer);
    return true;
}

static bool add_arguments(struct server_answer *answer, const char *text, size_t size, struct server_parts *parts)
{
    server_partial_push(&answer->named, text, size);
    if (answer->calls) return server_parts_text(parts, SERVER_PART_ARGUMENTS, text, size);
    answer->calls = 1;
    return server_parts_call(parts, answer->tools->named, "", text, size);
}

bool server_answer_push(struct server_answer *answer, const char *text, size_t size, struct server_parts *parts)
{
    if (!size) return true;
    if (answer->state == SERVER_ANSWER_PLAIN) return server_parts_text(parts, SERVER_PART_CONTENT, text, size);
    if (answer->state == SERVER_ANSWER_NAMED) return add_arguments(answer, text, size, parts);
    bool ok = server_buffer_add(&answer->held, text, size), more = true;
    while (ok && more && rest_size(answer)) {
        more = false;
        if (answer->state == SERVER_ANSWER_TEXT)
            ok = go_on_in_text(answer, parts, &more);
        else if (answer->state == SERVER_ANSWER_THOUGHT)
            ok = go_on_in_thought(answer, parts, &more);
        else
            ok = go_on_in_pattern(answer, parts, &more);
    }
    server_buffer_drop(&answer->held, answer->used);
    answer->used = 0;
    return ok;
}

/* Whether all calls of a pattern are complete, so that the rest is a part of its end. */
static bool is_end_of_calls(const struct server_answer *answer)
{
    const struct server_match *match = &answer->match;
    const char *left = match->pattern + match->element;
    /* Nothing more has come of what may be repeated. */
    if (strncmp(left, "$(", 2) == 0 && match->at == rest_size(answer))
        left = match->pattern + server_pattern_other_bracket(match->pattern, match->element) + 2;
    return answer->after_call && !strstr(left, "$!") && !strstr(left, "$)");
}

/* Appends the complete calls of a list that is cut. If they are none, all is content. */
static bool take_whole_calls(struct server_answer *answer, struct server_parts *parts)
{
    struct server_buffer list = {0};
    struct server_match *match = &answer->match;
    struct server_span *span = answer->state == SERVER_ANSWER_PATTERN ? server_match_list(match) : NULL;
    if (!span || !match->whole) return true;
    bool ok =
        server_buffer_add(&list, rest(answer) + match->at, match->whole - match->at) && server_buffer_text(&list, "]");
    if (ok) {
        *span = (struct server_span){0, list.size};
        const enum server_calls added = take_calls(answer, list.data, parts);
        answer->after_call = answer->after_call || added == SERVER_CALLS_ADDED;
        answer->is_start = answer->is_start && added != SERVER_CALLS_ADDED;
        if (added == SERVER_CALLS_NONE) answer->state = SERVER_ANSWER_PLAIN;
        ok = added != SERVER_CALLS_NO_MEMORY;
    }
    server_buffer_free(&list);
    return ok;
}

static bool has_prefix(const struct server_answer *answer, const char *prefix)
{
    return rest_size(answer) >= strlen(prefix) && memcmp(rest(answer), prefix, strlen(prefix)) == 0;
}

/* Whether the rest, with which a marker may begin, is no text: it has a special token, follows calls or other markers, or is no JSON where
 * a text would be that. */
static bool is_part_of_marker(const struct server_answer *answer)
{
    static const char bar[] = "\xef\xbd\x9c"; /* of DeepSeek's special tokens */
    const char *text = rest(answer);
    const size_t size = rest_size(answer);
    if (!size) return false;
    const bool has_token =
        (has_prefix(answer, "<|") && memchr(text, '>', size)) || memmem(text, size, bar, strlen(bar));
    /* " to=functions." of gpt-oss, which no other pattern begins like. */
    const bool is_header =
        has_prefix(answer, " t") && !answer->in_message && (answer->skip_space || !answer->has_content);
    return has_token || is_header || answer->after_call || (answer->is_json && text[0] == '<');
}

/* Whether the rest is a part of a marker or of a call. */
static bool is_markup(const struct server_answer *answer)
{
    const struct server_match *match = &answer->match;
    if (answer->state == SERVER_ANSWER_TEXT && is_part_of_marker(answer)) return true;
    return answer->is_required || (answer->state == SERVER_ANSWER_PATTERN && !answer->is_start &&
                                   server_calls_may_be(match, rest(answer), rest_size(answer), answer->tools));
}

bool server_answer_finish(struct server_answer *answer, bool is_cut, struct server_parts *parts)
{
    const enum server_part_kind kind =
        answer->state == SERVER_ANSWER_THOUGHT ? SERVER_PART_REASONING : SERVER_PART_CONTENT;
    if (is_cut && !take_whole_calls(answer, parts)) return false;
    if (is_cut && is_markup(answer))
        drop_rest(answer);
    else if (answer->state == SERVER_ANSWER_PATTERN && is_end_of_calls(answer))
        answer->used = answer->held.size;
    bool ok = use_text(answer, kind, rest_size(answer), parts);
    if (ok && kind == SERVER_PART_CONTENT && !answer->after_call) ok = flush_space(answer, kind, parts);
    answer->held.size = answer->used = answer->space.size = 0;
    return ok;
}

size_t server_answer_calls(const struct server_answer *answer)
{
    return answer->state == SERVER_ANSWER_NAMED && !answer->named.is_whole ? 0 : answer->calls;
}

/* Whether it is in reasoning, or some may begin yet. */
static bool may_think(const struct server_answer *answer)
{
    return answer->state == SERVER_ANSWER_THOUGHT ||
           ((answer->state == SERVER_ANSWER_TEXT || answer->state == SERVER_ANSWER_PATTERN) && takes_thought(answer));
}

bool server_answer_follow(struct server_answer *answer, const char *text, size_t size, bool *is_thought)
{
    *is_thought = answer->state == SERVER_ANSWER_THOUGHT;
    if (!may_think(answer)) {
        server_answer_free(answer);
        return true;
    }
    const bool ok = server_answer_push(answer, text, size, NULL);
    *is_thought = *is_thought || answer->state == SERVER_ANSWER_THOUGHT;
    return ok;
}
