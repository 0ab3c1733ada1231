/* SPDX-License-Identifier: Apache-2.0 */
/* eng_chat and its kin against the texts that the templates of three families make, in templates of our own: the ids are those of the
 * whole text. */

#include "formats/base/test_program.h"
#include "runtime/load/load.h"

enum { MOST_TOKENS = 512, MOST_BYTES = 1 << 20 };

#define DOCUMENT(templates) \
    "{\"templates\":[" templates "],\"variables\":{\"bos_token\":\"<|begin|>\",\"eos_token\":\"</s>\"}}"
#define TEMPLATE(name, text) "{\"name\":\"" name "\",\"text\":\"" text "\"}"

static const char chatml[] = DOCUMENT(
    TEMPLATE("default", "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"
                        "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}") "," TEMPLATE("tool_use",
                                                                                                          "{{ tools | "
                                                                                                          "tojson }}"));
static const char llama3[] = DOCUMENT(
    TEMPLATE("default",
             "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + "
             "m.content | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
             "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"));
static const char mistral[] = DOCUMENT(
    TEMPLATE("default", "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
                        "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}"
                        "{{ raise_exception('Only user and assistant.') }}{% endif %}{% endfor %}"));

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
    chat_templates_close(engine.file.chat_templates);
    tokenizer_close(engine.tokenizer);
    free(image);
    return 0;
}

static void use(const char *document)
{
    struct status status = {0};
    chat_templates_close(engine.file.chat_templates);
    engine.file.chat_templates = document ? chat_templates_open(document, strlen(document), "section", &status) : NULL;
    if (document && !engine.file.chat_templates) fail_msg("%s", status.message);
}

static void check(const struct eng_message *messages, size_t message_count, uint32_t flags, const char *expected)
{
    int32_t tokens[MOST_TOKENS];
    size_t count;
    struct eng_error error;
    struct status status;
    struct token_buffer whole = {0};
    if (eng_chat(&engine, messages, message_count, flags, tokens, MOST_TOKENS, &count, &error))
        fail_msg("%s", error.message);
    assert_true(tokenizer_encode(engine.tokenizer, expected, strlen(expected), false, &whole, &status));
    assert_int_equal(count, whole.count);
    if (count) assert_memory_equal(tokens, whole.ids, count * sizeof *tokens);
    token_buffer_free(&whole);
}

static const struct eng_message conversation[] = {{"user", "Tell me a tale. "},
                                                  {"assistant", " Once upon \xc3\xa9 time."},
                                                  {"user", "More!"}};

TEST(three_templates)
{
    use(chatml);
    check(conversation, 3, ENG_CHAT_ANSWER,
          "<|im_start|>user\nTell me a tale. <|im_end|>\n<|im_start|>assistant\n Once upon \xc3\xa9 time.<|im_end|>\n"
          "<|im_start|>user\nMore!<|im_end|>\n<|im_start|>assistant\n");
    check(conversation, 1, 0, "<|im_start|>user\nTell me a tale. <|im_end|>\n");
    check(NULL, 0, 0, "");
    use(llama3);
    check(conversation, 2, ENG_CHAT_ANSWER,
          "<|begin|><|start_header_id|>user<|end_header_id|>\n\nTell me a tale.<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\nOnce upon \xc3\xa9 time.<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    use(mistral);
    check(conversation, 3, ENG_CHAT_ANSWER,
          "<|begin|>[INST] Tell me a tale. [/INST]  Once upon \xc3\xa9 time.</s>[INST] More![/INST]");
}

/* Variables in JSON: text and ids, named templates, the clock. */
TEST(variables)
{
    static const char given[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"add_generation_prompt\":true}",
                      expected[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    char text[256];
    int32_t tokens[MOST_TOKENS], same[MOST_TOKENS];
    size_t size, count, same_count;
    struct eng_error error;
    use(chatml);
    if (eng_chat_render(&engine, given, NULL, text, sizeof text, &size, &error)) fail_msg("%s", error.message);
    assert_string_equal(text, expected);
    assert_int_equal(size, strlen(expected));
    assert_int_equal(eng_chat_render(&engine, given, NULL, text, size, &size, &error), ENG_TOO_LONG);
    assert_int_equal(eng_chat_render(&engine, given, NULL, NULL, 0, &size, &error), ENG_TOO_LONG);
    assert_int_equal(size, strlen(expected));
    const struct eng_message message = {"user", "Hi"};
    assert_int_equal(eng_chat_tokens(&engine, given, NULL, 0, tokens, MOST_TOKENS, &count, &error), ENG_OK);
    assert_int_equal(eng_chat(&engine, &message, 1, ENG_CHAT_ANSWER, same, MOST_TOKENS, &same_count, &error), ENG_OK);
    assert_int_equal(count, same_count);
    assert_memory_equal(tokens, same, count * sizeof *tokens);
    if (eng_chat_render(&engine, "{\"tools\":[{\"a\":1}]}", NULL, text, sizeof text, &size, &error))
        fail_msg("%s", error.message);
    assert_string_equal(text, "[{\"a\": 1}]");
    use(DOCUMENT(TEMPLATE("default", "{{ strftime_now('%Y-%m-%d') }}")));
    assert_int_equal(eng_chat_render(&engine, "{}", "2026-01-02T03:04:05", text, sizeof text, &size, &error), ENG_OK);
    assert_string_equal(text, "2026-01-02");
    assert_int_equal(eng_chat_render(&engine, "{}", "today", text, sizeof text, &size, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "today"));
}

static void expect_refusal(enum eng_status code, enum eng_status found, const struct eng_error *error,
                           const char *words)
{
    if (found != code || !strstr(error->message, words)) fail_msg("%d: %s", found, error->message);
}

TEST(template_texts)
{
    use(chatml);
    assert_string_equal(eng_chat_template(&engine, NULL), "{{ tools | tojson }}");
    assert_string_equal(eng_chat_template(&engine, "tool_use"), "{{ tools | tojson }}");
    assert_non_null(strstr(eng_chat_template(&engine, "default"), "<|im_start|>{{ m.role }}\n"));
    assert_null(eng_chat_template(&engine, "other"));
    use(mistral);
    assert_ptr_equal(eng_chat_template(&engine, NULL), eng_chat_template(&engine, "default"));
    use(NULL);
    assert_null(eng_chat_template(&engine, NULL));
    assert_null(eng_chat_template(NULL, NULL));
}

TEST(refusals)
{
    struct eng_error error;
    int32_t tokens[4];
    size_t count = 0;
    const struct eng_message odd = {"narrator", "x"}, empty = {"user", NULL}, broken = {"user", "\xff"};
    use(mistral);
#define CHAT(messages, number, flags) eng_chat(&engine, messages, number, flags, tokens, 4, &count, &error)
    expect_refusal(ENG_BAD_INPUT, CHAT(&odd, 1, 0), &error, "Only user and assistant.");
    expect_refusal(ENG_BAD_INPUT, CHAT(&broken, 1, 0), &error, "UTF-8");
    expect_refusal(ENG_USAGE, CHAT(&empty, 1, 0), &error, "content");
    expect_refusal(ENG_USAGE, CHAT(NULL, 1, 0), &error, "messages");
    expect_refusal(ENG_USAGE, CHAT(conversation, 3, 1u << 9), &error, "flags");
    expect_refusal(ENG_TOO_LONG, CHAT(conversation, 3, 0), &error, "room for 4");
    assert_true(count > 4);
    expect_refusal(ENG_BAD_INPUT, eng_chat_tokens(&engine, "{", NULL, 0, tokens, 4, &count, &error), &error, "JSON");
    expect_refusal(ENG_BAD_INPUT, eng_chat_tokens(&engine, "[]", NULL, 0, tokens, 4, &count, &error), &error, "object");
    expect_refusal(ENG_USAGE, eng_chat_tokens(&engine, "{}", NULL, 1, tokens, 4, &count, &error), &error, "flags");
    expect_refusal(ENG_USAGE, eng_chat_tokens(&engine, NULL, NULL, 0, tokens, 4, &count, &error), &error, "variables");
    use(DOCUMENT(TEMPLATE("default", "{% no such %}")));
    expect_refusal(ENG_BAD_INPUT, CHAT(conversation, 1, 0), &error, "cannot be used");
    use(NULL);
    expect_refusal(ENG_BAD_INPUT, CHAT(conversation, 1, 0), &error, "its checkpoint has none");
    engine.file.manifest.chat_format = CHAT_LLAMA3; /* an engine before 2.2 */
    expect_refusal(ENG_BAD_INPUT, CHAT(conversation, 1, 0), &error, "build it again");
    expect_refusal(ENG_BAD_INPUT, eng_chat_render(&engine, "{}", NULL, NULL, 0, &count, &error), &error,
                   "build it again");
    engine.file.manifest.chat_format = CHAT_NONE;
}

int main(void) { return test_run_with(set_up, NULL, NULL, tear_down); }
