/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_echo.h"

#include <math.h>
#include <string.h>

static bool add_token(const struct eng_sequence *sequence, const struct server_prompt *prompt, size_t index,
                      uint64_t begin, struct server_logprobs *logprobs, struct eng_error *error)
{
    struct eng_logprob own = {prompt->tokens[0], NAN}, top[ENG_MAX_LOGPROBS] = {{-1, NAN}};
    if (index && eng_sequence_prompt_logprobs(sequence, index, &own, top, logprobs->top_count, error)) return false;
    if (server_logprobs_add(logprobs, &own, top, begin)) return true;
    *error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
    return false;
}

/* Which part of the echo a token is. */
struct place {
    struct eng_text *plain, *whole; /* without special tokens, and with them */
    bool skips_special;             /* the echo of a prompt that was given as tokens */
    const char *text; /* the echo of one that was given as text, which is that text; NULL: the other kind */
    size_t size;      /* of the rest of it */
};

/* A special token is a part of a text that has it there; one that the tokenizer adds is not. Another token may, with a few
 * tokenizers, have another text than the prompt has there: its length counts. */
static bool find_width(struct place *place, int32_t token, uint64_t *characters, struct eng_error *error)
{
    const char *piece, *plain;
    size_t size, plain_size;
    if (eng_text_push(place->whole, token, &piece, &size, error) ||
        eng_text_push(place->plain, token, &plain, &plain_size, error))
        return false;
    const bool is_special = size > 0 && plain_size == 0;
    const bool is_there = place->text && size <= place->size && !memcmp(place->text, piece, size);
    *characters = 0;
    if (is_special && !(place->text ? is_there : !place->skips_special)) return true;
    *characters = server_count_characters(piece, size);
    if (!place->text) return true;
    if (size > place->size) size = place->size;
    place->text += size;
    place->size -= size;
    return true;
}

static bool add_tokens(const struct eng_sequence *sequence, const struct server_prompt *prompt, struct place *place,
                       struct server_choice *choice, struct eng_error *error)
{
    const uint64_t end = choice->characters;
    uint64_t characters = 0, width;
    for (size_t i = 0; i < prompt->count; i++) {
        if (!add_token(sequence, prompt, i, characters, &choice->logprobs, error) ||
            !find_width(place, prompt->tokens[i], &width, error))
            return false;
        characters = width < end - characters ? characters + width : end;
        server_logprobs_text(&choice->logprobs, characters, end);
    }
    return true;
}

bool server_echo_logprobs(const struct eng_engine *engine, const struct eng_sequence *sequence,
                          const struct server_prompt *prompt, bool skips_special, struct server_choice *choice,
                          struct eng_error *error)
{
    struct place place = {.skips_special = skips_special, .text = prompt->text, .size = prompt->size};
    const bool ok = !eng_text_create(engine, ENG_TEXT_KEEP_SPECIAL, &place.whole, error) &&
                    !eng_text_create(engine, 0, &place.plain, error) &&
                    add_tokens(sequence, prompt, &place, choice, error);
    eng_text_destroy(&place.whole);
    eng_text_destroy(&place.plain);
    return ok;
}
