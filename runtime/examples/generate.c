/* SPDX-License-Identifier: Apache-2.0 */
/* Continues a prompt: generate ENGINE PROMPT */
#include <eng.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_sequence *sequence = NULL;
    struct eng_text *stream = NULL;
    struct eng_error error = {0};
    struct eng_sequence_options options;
    int32_t tokens[1024];
    const char *text;
    size_t count, size;

    if (argc != 3) return 2;
    eng_sequence_options_init(&options);
    options.max_new_tokens = 100;
    if (eng_open(argv[1], NULL, &engine, &error) || eng_session_create(engine, NULL, &session, &error) ||
        eng_tokenize(engine, argv[2], strlen(argv[2]), ENG_TEXT_ADD_SPECIAL, tokens, 1024, &count, &error) ||
        eng_text_create(engine, 0, &stream, &error) || eng_sequence_create(session, &options, &sequence, &error) ||
        eng_sequence_submit(sequence, tokens, count, &error))
        goto done;
    for (size_t i = 0; i < count; i++) eng_text_push(stream, tokens[i], &text, &size, NULL);
    fputs(argv[2], stdout);
    while (eng_sequence_state(sequence) != ENG_STATE_DONE && !eng_step(session, NULL, &error)) {
        while (eng_sequence_poll(sequence, tokens, 1))
            if (!eng_text_push(stream, tokens[0], &text, &size, &error)) fputs(text, stdout);
        fflush(stdout);
    }
    if (!error.status && !eng_text_finish(stream, &text, &size, &error)) puts(text);
done:
    if (error.status) fprintf(stderr, "%s\n", error.message);
    eng_session_destroy(&session);
    eng_text_destroy(&stream);
    eng_close(&engine);
    return error.status != 0;
}
