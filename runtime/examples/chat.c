/* SPDX-License-Identifier: Apache-2.0 */
/* Answers one conversation: chat ENGINE VARIABLES
 * VARIABLES is JSON, such as '{"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": true}'. */
#include <eng.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The ids of the conversation [*count], of any length; the caller frees them. NULL: *error says why. */
static int32_t *conversation(const struct eng_engine *engine, const char *variables, size_t *count,
                             struct eng_error *error)
{
    if (eng_chat_tokens(engine, variables, NULL, 0, NULL, 0, count, error) != ENG_TOO_LONG) return NULL;
    int32_t *tokens = malloc(*count * sizeof *tokens);
    if (!tokens) {
        error->status = ENG_MACHINE;
        strcpy(error->message, "out of memory");
    } else if (eng_chat_tokens(engine, variables, NULL, 0, tokens, *count, count, error)) {
        free(tokens);
        tokens = NULL;
    }
    return tokens;
}

int main(int argc, char **argv)
{
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_sequence *sequence = NULL;
    struct eng_text *stream = NULL;
    struct eng_error error = {0};
    struct eng_engine_facts facts;
    struct eng_sequence_options options;
    int32_t *tokens = NULL, token;
    const char *text;
    size_t count = 0, size;

    if (argc != 3) return 2;
    eng_engine_facts_init(&facts);
    eng_sequence_options_init(&options);
    if (eng_open(argv[1], NULL, &engine, &error) || eng_engine_get_facts(engine, &facts, &error) ||
        !(tokens = conversation(engine, argv[2], &count, &error)))
        goto done;
    options.max_new_tokens = 200;
    options.stop_tokens = &facts.chat_end_token; /* ends an answer, where the engine's end tokens do not */
    options.stop_count = facts.chat_end_token >= 0;
    if (eng_session_create(engine, NULL, &session, &error) || eng_text_create(engine, 0, &stream, &error) ||
        eng_sequence_create(session, &options, &sequence, &error) ||
        eng_sequence_submit(sequence, tokens, count, &error))
        goto done;
    while (eng_sequence_state(sequence) != ENG_STATE_DONE && !eng_step(session, NULL, &error)) {
        while (eng_sequence_poll(sequence, &token, 1))
            if (!eng_text_push(stream, token, &text, &size, &error)) fputs(text, stdout);
        fflush(stdout);
    }
    if (!error.status && !eng_text_finish(stream, &text, &size, &error)) puts(text);
done:
    if (error.status || !tokens) fprintf(stderr, "%s\n", error.status ? error.message : "the conversation is empty");
    free(tokens);
    eng_session_destroy(&session);
    eng_text_destroy(&stream);
    eng_close(&engine);
    return error.status != 0 || !tokens;
}
