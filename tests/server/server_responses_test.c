/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of responses: each message has those of its own tokens, in a stream as in a whole response, however the stream is cut. */
#include "runtime/server/server_responses.h"

#include <stdio.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "tests/test_fables.h"

enum { FIRST_TOKEN = 20, TOP = 1, MOST_TOKENS = 16 };

/* The texts of tokens: reasoning, its end as two of them, a message that begins with half of a character and ends with tokens of no text
 * and of white space. */
static const char *const thought[] = {"Let",       " me ", "</thi", "nk>", "\n\n", "",
                                      "H\xc3\xa9", "llo",  " wolf", "",    " ",    NULL};
enum { MESSAGE = 5 };
static const char *const plain[] = {"<th", "", "H\xc3\xa9", NULL};

static struct server_voice voice;
static struct server_choice choice;
static struct server_job job;

/* Those of the tokens whose texts end after more than `after` characters and at most `end`; `after` 0: of all before it, too. */
static struct server_logprobs logprobs_before(const char *const *texts, uint64_t after, uint64_t end)
{
    struct server_logprobs made = {.top_count = TOP};
    uint64_t begin = 0;
    for (size_t i = 0; texts[i]; i++) {
        const uint64_t next = begin + server_count_characters(texts[i], strlen(texts[i]));
        const struct eng_logprob drawn = {.token = FIRST_TOKEN + (int32_t)i, .logprob = -(float)i};
        if (next <= end && (next > after || after == 0)) {
            assert_true(server_logprobs_add(&made, &drawn, &drawn, begin));
            made.tokens[made.count - 1].end = next;
        }
        begin = next;
    }
    made.ready = made.count;
    return made;
}

static void begin(const char *const *texts, bool reasons)
{
    voice = (struct server_voice){0};
    server_dialect_find("<think></think>", &voice.dialect);
    job = (struct server_job){.id = "resp_0123456789abcdef",
                              .choices = &choice,
                              .choice_count = 1,
                              .in_thought = reasons};
    job.voice = reasons ? &voice : NULL;
    job.request.n = 1;
    job.request.shape = SERVER_RESPONSES;
    job.request.wants_logprobs = true;
    /* A client cannot have its own texts replaced. */
    job.request.echo_body = json_pack("{s:{s:s}}", "metadata", "logprobs", "resp_0123456789abcde:0:1");
    job.prompt_tokens = 5;
    choice =
        (struct server_choice){.finish = SERVER_FINISH_STOP, .cached_tokens = 2, .tokens = 9, .reasoning_tokens = 4};
    for (size_t i = 0; texts[i]; i++) assert_true(server_buffer_text(&choice.out, texts[i]));
    choice.logprobs = logprobs_before(texts, 0, UINT64_MAX);
}

static void end(void)
{
    server_buffer_free(&choice.out);
    server_logprobs_free(&choice.logprobs);
    json_decref(job.request.echo_body);
}

static void expect_tokens(const json_t *list, size_t first, size_t count)
{
    assert_int_equal(json_array_size(list), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i), *top = json_array_get(json_object_get(one, "top_logprobs"), 0);
        assert_true(json_number_value(json_object_get(one, "logprob")) == -(double)(first + i));
        assert_true(json_equal(json_object_get(one, "token"), json_object_get(top, "token")));
    }
}

/* Takes the reference. The last item is the message. */
static void expect_response(json_t *response, size_t items, size_t first, size_t count)
{
    const json_t *output = json_object_get(response, "output"), *last = json_array_get(output, items - 1);
    const json_t *content = json_array_get(json_object_get(last, "content"), 0);
    assert_int_equal(json_array_size(output), items);
    assert_string_equal(json_string_value(json_object_get(content, "type")), "output_text");
    expect_tokens(json_object_get(content, "logprobs"), first, count);
    assert_string_equal(json_string_value(json_object_get(json_object_get(response, "metadata"), "logprobs")),
                        "resp_0123456789abcde:0:1");
    json_t *usage = json_pack("{s:i, s:{s:i, s:i}, s:i, s:{s:i}, s:i}", "input_tokens", 5, "input_tokens_details",
                              "cached_tokens", 2, "cache_write_tokens", 0, "output_tokens", 9, "output_tokens_details",
                              "reasoning_tokens", 4, "total_tokens", 14);
    assert_true(json_equal(json_object_get(response, "usage"), usage));
    json_decref(usage);
    json_decref(response);
}

static void check_whole(size_t items, size_t first, size_t count)
{
    struct server_buffer out = {0};
    assert_true(server_responses_reply("m", fables, &job, &out));
    expect_response(json_loadb(out.data, out.size, 0, NULL), items, first, count);
    server_buffer_free(&out);
}

/* The stream, in two pieces, of which the first one has `cut` characters. */
static void check_stream(const char *const *texts, uint64_t cut, size_t items, size_t first, size_t count)
{
    struct server_response_items stream = {.engine = fables};
    struct server_answer answer;
    struct server_buffer out = {0};
    json_t *deltas = json_array();
    size_t bytes = 0;
    for (uint64_t left = cut; left; left--)
        for (bytes++; ((unsigned char)choice.out.data[bytes] & 0xc0) == 0x80;) bytes++;
    server_job_begin_answer(&job, &answer);
    assert_true(server_responses_begin(&stream, "m", &job, &out));
    for (int piece = 0; piece < 2; piece++) {
        struct server_logprobs ready = logprobs_before(texts, piece ? cut : 0, piece ? UINT64_MAX : cut);
        const struct server_buffer text = {.data = choice.out.data + (piece ? bytes : 0),
                                           .size = piece ? choice.out.size - bytes : bytes};
        assert_true(server_responses_tokens(&stream, &job, &answer, &text, piece ? choice.finish : SERVER_FINISH_NONE,
                                            &ready, &out));
        server_logprobs_free(&ready);
    }
    assert_true(server_responses_end(&stream, "m", &job, choice.finish, &out) && server_buffer_add(&out, "", 1));
    json_t *last = NULL;
    for (const char *at = out.data; (at = strstr(at, "data: "));) {
        const char *line = at += strlen("data: ");
        json_decref(last);
        last = json_loadb(line, (size_t)(strchr(line, '\n') - line), 0, NULL);
        assert_non_null(last);
        if (strcmp(json_string_value(json_object_get(last, "type")), "response.output_text.delta") == 0)
            json_array_extend(deltas, json_object_get(last, "logprobs"));
    }
    expect_response(json_incref(json_object_get(last, "response")), items, first, count);
    /* Tokens without a text at the end of an answer come with its last events. */
    assert_in_range(json_array_size(deltas), count - 2, count);
    expect_tokens(deltas, first, json_array_size(deltas));
    json_decref(last);
    json_decref(deltas);
    server_answer_free(&answer);
    server_responses_free(&stream);
    server_buffer_free(&out);
}

static void check(const char *const *texts, bool reasons, size_t items, size_t first, size_t count)
{
    begin(texts, reasons);
    check_whole(items, first, count);
    const uint64_t characters = server_count_characters(choice.out.data, choice.out.size);
    for (uint64_t cut = 1; cut < characters; cut++) check_stream(texts, cut, items, first, count);
    end();
}

/* A message, a call whose markers are one token or several, and a message: the call's tokens are of no message, white space between it and
 * a message is of the second one. */
static const char *const called[] =
    {"I",  " see.", "\n",  "<tool", "_call>", "\n{\"name\": \"get\", ", "\"arguments\": {}}", "\n</tool_call>",
     "\n", "D",     "one", "",      NULL};
enum { FIRST_COUNT = 2, SECOND = 8, SECOND_COUNT = 4 };

/* Markers of channels are of no message, either. */
static const char *const channels[] = {"<|channel|>", "analysis",  "<|message|>", "Hm",    "<|end|>",
                                       "<|start|>",   "assistant", "<|channel|>", "final", "<|message|>",
                                       "H",           "i",         NULL};
enum { FINAL = 10, FINAL_COUNT = 2 };

static void use_dialect(const char *signs)
{
    struct server_error failure = {0};
    json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function", "function", "name", "get");
    server_dialect_find(signs, &voice.dialect);
    job.voice = &voice;
    assert_true(server_tools_read(tools, &job.request.tools, &failure));
    assert_true(server_tools_choose(NULL, &job.request.tools, &failure));
    json_decref(tools);
}

static void expect_first_message(size_t first, size_t count)
{
    struct server_buffer out = {0};
    assert_true(server_responses_reply("m", fables, &job, &out));
    json_t *response = json_loadb(out.data, out.size, 0, NULL);
    const json_t *item = json_array_get(json_object_get(response, "output"), 0);
    expect_tokens(json_object_get(json_array_get(json_object_get(item, "content"), 0), "logprobs"), first, count);
    json_decref(response);
    server_buffer_free(&out);
}

TEST(test_messages_around_a_call)
{
    begin(called, false);
    use_dialect("<tool_call>");
    expect_first_message(0, FIRST_COUNT);
    check_whole(3, SECOND, SECOND_COUNT);
    server_tools_free(&job.request.tools);
    end();
}

/* The limit cuts the call: the message has its own tokens alone. */
static const char *const cut_call[] = {"I", " see.", "\n", "<tool", "_call>", "\n{\"name\": \"get\", ", "\"arg", NULL};

TEST(test_message_before_a_call_that_is_cut)
{
    begin(cut_call, false);
    choice.finish = SERVER_FINISH_LENGTH;
    use_dialect("<tool_call>");
    check_whole(1, 0, FIRST_COUNT);
    const uint64_t characters = server_count_characters(choice.out.data, choice.out.size);
    for (uint64_t cut = 1; cut < characters; cut++) check_stream(cut_call, cut, 1, 0, FIRST_COUNT);
    server_tools_free(&job.request.tools);
    end();
}

TEST(test_channels)
{
    begin(channels, false);
    use_dialect("<|channel|>analysis<|message|>");
    check_whole(2, FINAL, FINAL_COUNT);
    server_tools_free(&job.request.tools);
    end();
}

TEST(test_message_after_reasoning) { check(thought, true, 2, MESSAGE, 6); }
TEST(test_message_alone) { check(plain, false, 1, 0, 3); }

/* A call of a tool: there is no message. */
TEST(test_reasoning_alone)
{
    static const char *const texts[] = {"Let", " me", NULL};
    struct server_buffer out = {0};
    begin(texts, true);
    assert_true(server_responses_reply("m", fables, &job, &out) && server_buffer_add(&out, "", 1));
    assert_null(strstr(out.data, "top_logprobs\":["));
    assert_non_null(strstr(out.data, "reasoning_text"));
    server_buffer_free(&out);
    end();
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
