/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_voice.h"

#include <string.h>

#include "runtime/server/server_pattern.h"

static bool is_special(const struct eng_engine *engine, int32_t token)
{
    size_t size;
    uint32_t special = 0;
    eng_token_bytes(engine, token, NULL, 0, &size, &special, NULL);
    return special;
}

static bool is_marker(const struct server_voice *voice, int32_t token)
{
    for (size_t i = 0; i < voice->marker_count; i++)
        if (voice->markers[i] == token) return true;
    return false;
}

/* Adds the special tokens of a text. */
static bool add_text(const struct eng_engine *engine, const char *text, size_t size, struct server_voice *voice,
                     struct eng_error *error)
{
    enum { MOST_TOKENS = 128 };
    int32_t tokens[MOST_TOKENS];
    size_t count;
    if (eng_tokenize(engine, text, size, 0, tokens, MOST_TOKENS, &count, error)) return false;
    for (size_t i = 0; i < count && voice->marker_count < SERVER_MOST_MARKERS; i++)
        if (is_special(engine, tokens[i]) && !is_marker(voice, tokens[i]))
            voice->markers[voice->marker_count++] = tokens[i];
    return true;
}

static bool add_pattern(const struct eng_engine *engine, const char *pattern, struct server_voice *voice,
                        struct eng_error *error)
{
    for (const char *at = pattern; *at;) {
        const size_t size = server_pattern_literal(at);
        if (size && !add_text(engine, at, size, voice, error)) return false;
        at += size;
        /* What follows '$' is a word or one character. */
        if (*at == '~') at++;
        if (*at != '$') continue;
        const size_t word = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz");
        at += word ? 1 + word : 2;
    }
    return true;
}

bool server_voice_open(const struct eng_engine *engine, struct server_voice *voice, struct eng_error *error)
{
    *voice = (struct server_voice){0};
    struct server_dialect *dialect = &voice->dialect;
    server_dialect_find(eng_chat_template(engine, NULL), dialect);
    bool ok = !dialect->thought || (add_text(engine, dialect->thought, strlen(dialect->thought), voice, error) &&
                                    add_text(engine, dialect->thought_end, strlen(dialect->thought_end), voice, error));
    for (size_t i = 0; ok && dialect->patterns[i]; i++) {
        const char *pattern = dialect->patterns[i];
        ok = add_pattern(engine, pattern[0] == '^' ? pattern + 1 : pattern, voice, error);
    }
    return ok;
}

bool server_voice_drops(const struct server_voice *voice, const struct eng_engine *engine, int32_t token)
{
    return !is_marker(voice, token) && is_special(engine, token);
}

bool server_voice_is_in_thought(const struct server_voice *voice, const struct eng_engine *engine,
                                const int32_t *prompt, size_t count)
{
    enum { MOST_TOKENS = 32, MOST_BYTES = 4096 };
    char text[MOST_BYTES];
    size_t size;
    const size_t taken = count < MOST_TOKENS ? count : MOST_TOKENS;
    if (!voice->dialect.thought ||
        eng_detokenize(engine, prompt + count - taken, taken, ENG_TEXT_KEEP_SPECIAL, text, sizeof text, &size, NULL))
        return false;
    while (size && strchr(" \n", text[size - 1])) size--;
    const size_t length = strlen(voice->dialect.thought);
    return size >= length && memcmp(text + size - length, voice->dialect.thought, length) == 0;
}
