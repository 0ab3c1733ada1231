/* SPDX-License-Identifier: Apache-2.0 */
/* eng_chat against the texts that published chat templates render: the ids are those of the whole text. */

#include "runtime/load/load.h"
#include "formats/base/test_program.h"

enum { MOST_TOKENS = 512, MOST_BYTES = 1 << 20 };

static struct eng_engine engine;
static uint8_t *image;

/* The shipped tokenizer with the special tokens of all formats added after its vocabulary. */
static int set_up(void **state)
{
    static const char *const names[] =
        {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|end_header_id|>", "[INST]",
         "[/INST]",      "</s>"};
    static const char key[] = "\"added_tokens\"";
    struct status status;
    size_t size, image_size;
    char *json = NULL, *larger = calloc(1, MOST_BYTES);
    if (!larger || !file_read("tests/models/fables/tokenizer.json", MOST_BYTES, &json, &size, &status)) return -1;
    const char *list = strstr(json, key);
    const char *bracket = list ? strchr(list, '[') : NULL;
    if (!bracket) return -1;
    size_t used = (size_t)(bracket + 1 - json);
    memcpy(larger, json, used);
    /* Ids of added entries must increase, but the list need not be sorted. */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        used += (size_t)snprintf(larger + used, MOST_BYTES - used,
                                 "{\"id\": %zu, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                                 "\"rstrip\": false, \"normalized\": false, \"special\": true},\n",
                                 1536 + i, names[i]);
    used += (size_t)snprintf(larger + used, MOST_BYTES - used, "%s", bracket + 1);
    if (!tokenizer_import(larger, used, "tokenizer.json", &image, &image_size, &status) ||
        !(engine.tokenizer = tokenizer_open(image, image_size, true, &status))) {
        fprintf(stderr, "%s\n", status.message);
        return -1;
    }
    engine.file.manifest.bos_token = 0;
    free(json);
    free(larger);
    return 0;
}

static int tear_down(void **state)
{
    tokenizer_close(engine.tokenizer);
    free(image);
    return 0;
}

static void check(enum chat_format format, const struct eng_message *messages, size_t message_count, uint32_t flags,
                  const char *expected)
{
    int32_t tokens[MOST_TOKENS];
    size_t count;
    struct eng_error error;
    struct status status;
    struct token_buffer whole = {0};
    engine.file.manifest.chat_format = format;
    if (eng_chat(&engine, messages, message_count, flags, tokens, MOST_TOKENS, &count, &error))
        fail_msg("%s", error.message);
    assert_true(tokenizer_encode(engine.tokenizer, expected, strlen(expected), false, &whole, &status));
    assert_int_equal(count, whole.count);
    assert_memory_equal(tokens, whole.ids, count * sizeof *tokens);
    token_buffer_free(&whole);
}

static const struct eng_message conversation[] = {{"system", " Be kind.\n"},
                                                  {"user", "Tell me a tale. "},
                                                  {"assistant", " Once upon a time."},
                                                  {"user", "More!"}};

TEST(test_chatml)
{
    check(CHAT_CHATML, conversation, 4, ENG_CHAT_ANSWER,
          "<|im_start|>system\n Be kind.\n<|im_end|>\n<|im_start|>user\nTell me a tale. <|im_end|>\n"
          "<|im_start|>assistant\n Once upon a time.<|im_end|>\n<|im_start|>user\nMore!<|im_end|>\n"
          "<|im_start|>assistant\n");
    check(CHAT_CHATML, conversation + 3, 1, ENG_CHAT_CONTINUE | ENG_CHAT_ANSWER,
          "\n<|im_start|>user\nMore!<|im_end|>\n<|im_start|>assistant\n");
    check(CHAT_CHATML, conversation + 3, 1, ENG_CHAT_CONTINUE | ENG_CHAT_CLOSE,
          "<|im_end|>\n<|im_start|>user\nMore!<|im_end|>\n");
}

TEST(test_llama3)
{
    check(CHAT_LLAMA3, conversation, 2, ENG_CHAT_ANSWER,
          "<|begin|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nTell me a tale.<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check(CHAT_LLAMA3, conversation + 3, 1, ENG_CHAT_CONTINUE | ENG_CHAT_CLOSE | ENG_CHAT_ANSWER,
          "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nMore!<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(test_mistral)
{
    check(CHAT_MISTRAL, conversation, 4, ENG_CHAT_ANSWER,
          "<|begin|>[INST] Be kind.\n\nTell me a tale.[/INST] Once upon a time.</s>[INST] More![/INST]");
    check(CHAT_MISTRAL, conversation + 3, 1, ENG_CHAT_CONTINUE | ENG_CHAT_CLOSE, "</s>[INST] More![/INST]");
}

TEST(test_refusals)
{
    struct eng_error error;
    int32_t tokens[4];
    size_t count = 0;
    const struct eng_message odd = {"narrator", "x"}, empty = {"user", NULL};
    engine.file.manifest.chat_format = CHAT_CHATML;
    assert_int_equal(eng_chat(&engine, &odd, 1, 0, tokens, 4, &count, &error), ENG_BAD_INPUT);
    assert_non_null(strstr(error.message, "narrator"));
    assert_int_equal(eng_chat(&engine, &empty, 1, 0, tokens, 4, &count, &error), ENG_USAGE);
    assert_int_equal(eng_chat(&engine, conversation, 4, 1u << 9, tokens, 4, &count, &error), ENG_USAGE);
    assert_int_equal(eng_chat(&engine, conversation, 4, 0, tokens, 4, &count, &error), ENG_TOO_LONG);
    assert_true(count > 4);
    engine.file.manifest.chat_format = CHAT_NONE;
    assert_int_equal(eng_chat(&engine, conversation, 4, 0, tokens, 4, &count, &error), ENG_BAD_INPUT);
}

int main(void) { return test_run_with(set_up, NULL, NULL, tear_down); }
