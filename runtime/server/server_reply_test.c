/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_reply.h"

#include "runtime/server/server_stream.h"

#include "formats/base/test_support.h"

static struct server_buffer out;

static void expect(const char *text)
{
    assert_true(server_buffer_add(&out, "", 1));
    assert_string_equal(out.data, test_json(text));
    server_buffer_free(&out);
}

TEST(test_errors)
{
    struct server_error error;
    server_fail(&error, 400, "invalid_value", "n", "a 'quoted' \"text\"\n");
    assert_true(server_reply_error(&error, SERVER_OPENAI, &out));
    assert_true(server_buffer_add(&out, "", 1));
    assert_string_equal(
        out.data,
        "{\"error\":{\"message\":\"a 'quoted' \\\"text\\\"\\n\",\"type\":\"invalid_request_error\",\"param\":\"n\","
        "\"code\":\"invalid_value\"}}");
    server_buffer_free(&out);
    server_fail(&error, 500, NULL, NULL, "bytes \xff\xc3");
    assert_true(server_reply_error(&error, SERVER_OPENAI, &out));
    expect("{'error':{'message':'bytes ?"
           "?','type':'server_error','param':null,'code':null}}");
    assert_true(server_reply_error(&error, SERVER_MESSAGES, &out));
    expect("{'type':'error','error':{'type':'api_error','message':'bytes ?"
           "?'}}");
    server_fail(&error, 400, "thread_unsupported_request", "thread", "none");
    assert_true(server_reply_error(&error, SERVER_MESSAGES, &out));
    expect("{'type':'error','error':{'type':'invalid_request_error','message':'none','details':{'error_code':"
           "'thread_unsupported_request'}}}");
    server_fail(&error, 429, NULL, NULL, "full");
    assert_true(server_reply_error(&error, SERVER_MESSAGES, &out));
    expect("{'type':'error','error':{'type':'rate_limit_error','message':'full'}}");
    assert_string_equal(server_error_type(401), "authentication_error");
    assert_string_equal(server_error_type(429), "rate_limit_error");
    assert_string_equal(server_error_type(503), "server_error");
    assert_string_equal(server_error_type(413), "invalid_request_error");
}

TEST(test_errors_of_the_library)
{
    static const struct {
        enum eng_status status;
        unsigned http;
    } cases[] = {{ENG_BAD_INPUT, 400}, {ENG_TOO_LONG, 400}, {ENG_FULL, 429},    {ENG_VERSION, 400},
                 {ENG_MACHINE, 503},   {ENG_CORRUPT, 503},  {ENG_INTERNAL, 500}};
    struct server_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct eng_error cause = {.status = (int32_t)cases[i].status, .message = "eng_chat_tokens: the reason"};
        assert_false(server_fail_eng(&error, "p", &cause));
        assert_int_equal(error.http, cases[i].http);
        assert_string_equal(error.message, "the reason");
        assert_string_equal(error.param, "p");
    }
}

TEST(test_tokens)
{
    int32_t ids[] = {3, 0, 77};
    const struct server_prompt prompt = {.tokens = ids, .count = 3}, none = {.tokens = ids};
    assert_true(server_reply_tokens(&prompt, 1024, &out));
    expect("{'count':3,'max_model_len':1024,'tokens':[3,0,77],'token_strs':null}");
    assert_true(server_reply_tokens(&none, 8, &out));
    expect("{'count':0,'max_model_len':8,'tokens':[],'token_strs':null}");
    assert_true(server_reply_text("a\0b", 3, &out));
    expect("{'prompt':'a\\u0000b'}");
}

/* A job of two choices, as the thread of a model leaves it. */
static struct server_choice choices[2];
static struct server_job job;

static void make_job(bool is_chat)
{
    memset(choices, 0, sizeof choices);
    job = (struct server_job){.id = "id-1", .created = 5, .choices = choices, .choice_count = 2, .prompt_tokens = 3};
    job.request.n = 2;
    job.request.is_chat = is_chat;
    assert_true(server_buffer_text(&choices[0].out, "one"));
    choices[0].tokens = 1;
    choices[0].finish = SERVER_FINISH_STOP;
    choices[1].tokens = 4;
    choices[0].cached_tokens = 2;
    choices[1].reasoning_tokens = 1;
    choices[1].cached_tokens = 3; /* of the same prompt, which the first choice has computed */
    choices[1].finish = SERVER_FINISH_LENGTH;
}

static void free_job(void)
{
    for (int i = 0; i < 2; i++) server_buffer_free(&choices[i].out);
}

TEST(test_whole_answers)
{
    make_job(false);
    assert_true(server_reply_job("m", NULL, &job, &out));
    expect("{'id':'id-1','object':'text_completion','created':5,'model':'m','choices':[{'index':0,'text':'one','"
           "logprobs':null,"
           "'finish_reason':'stop'},{'index':1,'text':'','logprobs':null,'finish_reason':'length'}],'usage':{'prompt_"
           "tokens':3,"
           "'completion_tokens':5,'total_tokens':8,'prompt_tokens_details':{'cached_tokens':2}}}");
    free_job();
    make_job(true);
    assert_true(server_reply_job("m", NULL, &job, &out));
    expect(
        "{'id':'id-1','object':'chat.completion','created':5,'model':'m','choices':[{'index':0,'message':{'role':'"
        "assistant',"
        "'content':'one','refusal':null},'logprobs':null,'finish_reason':'stop'},{'index':1,'message':{'role':'"
        "assistant','content':'',"
        "'refusal':null},'logprobs':null,'finish_reason':'length'}],'usage':{'prompt_tokens':3,'completion_tokens':5,"
        "'total_tokens':8,'prompt_tokens_details':{'cached_tokens':2},'completion_tokens_details':{'reasoning_tokens':"
        "1}}}");
    free_job();
}

TEST(test_news_of_streams)
{
    struct server_stream stream;
    make_job(false);
    choices[0].finish = choices[1].finish = SERVER_FINISH_NONE;
    assert_true(server_stream_open(&stream, &job));
    server_buffer_free(&choices[0].out);
    /* The first events wait for nothing. */
    assert_true(server_stream_has_news(&stream, &job));
    stream.has_begun = true;
    assert_false(server_stream_has_news(&stream, &job));
    assert_true(server_buffer_text(&choices[0].out, "one"));
    assert_true(server_stream_has_news(&stream, &job));
    server_buffer_free(&choices[0].out);
    assert_false(server_stream_has_news(&stream, &job));
    choices[0].logprobs.ready = 1;
    assert_true(server_stream_has_news(&stream, &job));
    choices[0].logprobs.ready = 0;
    choices[1].finish = SERVER_FINISH_STOP;
    assert_true(server_stream_has_news(&stream, &job));
    stream.ended[1] = true;
    assert_false(server_stream_has_news(&stream, &job));
    /* A failed choice is told of with the whole job. */
    choices[0].finish = SERVER_FINISH_ERROR;
    assert_false(server_stream_has_news(&stream, &job));
    job.done = true;
    assert_true(server_stream_has_news(&stream, &job));
    stream.finished = true;
    assert_false(server_stream_has_news(&stream, &job));
    server_stream_close(&stream);
    free_job();
}

int main(void) { return test_run(); }
