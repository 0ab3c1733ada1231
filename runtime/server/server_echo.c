/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_echo.h"

#include <math.h>

static bool add_token(const struct eng_sequence *sequence, const struct server_prompt *prompt, size_t index,
                      uint64_t begin, struct server_logprobs *logprobs, struct eng_error *error)
{
    struct eng_logprob own = {prompt->tokens[0], NAN}, top[ENG_MAX_LOGPROBS] = {{-1, NAN}};
    if (index && eng_sequence_prompt_logprobs(sequence, index, &own, top, logprobs->top_count, error)) return false;
    if (server_logprobs_add(logprobs, &own, top, begin)) return true;
    *error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
    return false;
}

/* The prompt's own text is returned, which for a few tokenizers is not exactly the text of its tokens: places end where it ends. */
static bool add_tokens(const struct eng_sequence *sequence, const struct server_prompt *prompt, struct eng_text *text,
                       struct server_choice *choice, struct eng_error *error)
{
    const uint64_t end = choice->characters;
    uint64_t characters = 0;
    for (size_t i = 0; i < prompt->count; i++) {
        const char *piece;
        size_t size;
        if (!add_token(sequence, prompt, i, characters, &choice->logprobs, error) ||
            eng_text_push(text, prompt->tokens[i], &piece, &size, error))
            return false;
        characters += server_count_characters(piece, size);
        if (characters > end) characters = end;
        server_logprobs_text(&choice->logprobs, characters, end);
    }
    return true;
}

bool server_echo_logprobs(const struct eng_engine *engine, const struct eng_sequence *sequence,
                          const struct server_prompt *prompt, uint32_t text_flags, struct server_choice *choice,
                          struct eng_error *error)
{
    struct eng_text *text = NULL;
    const bool ok =
        !eng_text_create(engine, text_flags, &text, error) && add_tokens(sequence, prompt, text, choice, error);
    eng_text_destroy(&text);
    return ok;
}
