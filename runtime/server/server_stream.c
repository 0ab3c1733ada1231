/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_stream.h"

#include <stdlib.h>

#include "runtime/server/server_reply.h"

bool server_stream_open(struct server_stream *stream, const struct server_job *job)
{
    *stream = (struct server_stream){.ended = calloc(job->choice_count, sizeof *stream->ended),
                                     .answers = calloc(job->choice_count, sizeof *stream->answers)};
    if (!stream->ended || !stream->answers) return false;
    stream->choice_count = job->choice_count;
    for (size_t i = 0; i < job->choice_count; i++) server_job_begin_answer(job, &stream->answers[i]);
    return true;
}

void server_stream_close(struct server_stream *stream)
{
    for (size_t i = 0; i < stream->choice_count; i++) server_answer_free(&stream->answers[i]);
    server_responses_free(&stream->items);
    free(stream->answers);
    free(stream->ended);
    *stream = (struct server_stream){0};
}

static bool finished_well(enum server_finish finish)
{
    return finish == SERVER_FINISH_STOP || finish == SERVER_FINISH_LENGTH;
}

/* What a choice has gained. */
struct news {
    size_t index; /* of the choice */
    struct server_buffer text;
    struct server_logprobs logprobs;
    enum server_finish finish; /* NONE: it goes on */
    const char *stop;          /* the stop string before which it has ended */
    bool is_cut;               /* it may have ended within a call */
};

static bool print_begin(struct server_stream *stream, const struct server_model *model, const struct server_job *job,
                        size_t index, struct server_buffer *out)
{
    switch (job->request.shape) {
    case SERVER_MESSAGES: return server_messages_begin(server_model_name(model), job, out);
    case SERVER_RESPONSES:
        stream->items.engine = server_model_engine(model);
        return server_responses_begin(&stream->items, server_model_name(model), job, out);
    default: return server_reply_begin(model, job, index, out);
    }
}

static bool print_parts(struct server_stream *stream, const struct server_model *model, const struct server_job *job,
                        const struct news *news, size_t calls, const struct server_parts *parts,
                        struct server_buffer *out)
{
    switch (job->request.shape) {
    case SERVER_MESSAGES: return server_messages_parts(&stream->blocks, parts, out);
    case SERVER_RESPONSES: return server_responses_parts(&stream->items, job, parts, out);
    default: return server_reply_parts(model, job, news->index, calls, parts, &news->logprobs, out);
    }
}

static bool print_end(struct server_stream *stream, const struct server_model *model, const struct server_job *job,
                      const struct news *news, struct server_buffer *out)
{
    const size_t calls = server_answer_calls(&stream->answers[news->index]);
    switch (job->request.shape) {
    case SERVER_MESSAGES: return server_messages_end(&stream->blocks, job, news->finish, calls, news->stop, out);
    case SERVER_RESPONSES:
        return server_responses_end(&stream->items, server_model_name(model), job, news->finish, out);
    default: return server_reply_end(model, job, news->index, calls, news->finish, out);
    }
}

static bool print_news(struct server_stream *stream, const struct server_model *model, const struct server_job *job,
                       const struct news *news, struct server_buffer *out)
{
    struct server_answer *answer = &stream->answers[news->index];
    struct server_parts parts = {0};
    const size_t calls = answer->calls;
    /* Log-probabilities are divided with the text of their tokens. */
    const bool by_token = job->request.shape == SERVER_RESPONSES && job->request.wants_logprobs;
    bool ok = by_token || (server_answer_push(answer, news->text.data, news->text.size, &parts) &&
                           (!news->finish || server_answer_finish(answer, news->is_cut, &parts)));
    ok = ok && (by_token ? server_responses_tokens(&stream->items, job, answer, &news->text, news->finish,
                                                   &news->logprobs, out)
                         : print_parts(stream, model, job, news, calls, &parts, out));
    server_parts_free(&parts);
    return ok;
}

/* Events of one choice since the last call. */
static bool next_of_choice(struct server_stream *stream, struct server_model *model, struct server_job *job,
                           size_t index, struct server_buffer *out)
{
    struct server_choice *choice = &job->choices[index];
    struct news news = {.index = index};
    /* Taken as a whole, so that the lock is not held while events are made. */
    server_model_lock(model);
    news.text = choice->out;
    if (finished_well(choice->finish)) {
        news.finish = choice->finish;
        news.stop = stop_strings_found(&choice->stop);
        news.is_cut = server_job_is_cut(choice);
    }
    bool ok = server_logprobs_take(&choice->logprobs, &news.logprobs);
    choice->out = (struct server_buffer){0};
    server_model_unlock(model);

    ok = ok && print_news(stream, model, job, &news, out);
    if (ok && news.finish) {
        stream->ended[index] = true;
        stream->ended_count++;
        ok = print_end(stream, model, job, &news, out);
    }
    server_buffer_free(&news.text);
    server_logprobs_free(&news.logprobs);
    return ok;
}

static bool print_failure(struct server_stream *stream, const struct server_job *job, struct server_buffer *out)
{
    if (job->request.shape == SERVER_RESPONSES) return server_responses_fail(&stream->items, job, out);
    return server_buffer_text(out, job->request.shape == SERVER_MESSAGES ? "event: error\ndata: " : "data: ") &&
           server_reply_error(&job->failure, job->request.shape, out) && server_buffer_text(out, "\n\n");
}

static bool print_last(struct server_stream *stream, struct server_model *model, const struct server_job *job,
                       struct server_buffer *out)
{
    stream->finished = true;
    const bool has_failed = job->failure.http && stream->ended_count < job->choice_count;
    if (has_failed && !print_failure(stream, job, out)) return false;
    if (job->request.shape != SERVER_OPENAI) return true;
    return (has_failed || server_reply_usage(model, job, out)) && server_buffer_text(out, "data: [DONE]\n\n");
}

bool server_stream_next(struct server_stream *stream, struct server_model *model, struct server_job *job,
                        struct server_buffer *out)
{
    if (stream->finished) return true;
    for (size_t i = 0; !stream->has_begun && i < job->choice_count; i++)
        if (!print_begin(stream, model, job, i, out)) return false;
    stream->has_begun = true;
    server_model_lock(model);
    const bool done = job->done;
    server_model_unlock(model);
    for (size_t i = 0; i < job->choice_count; i++)
        if (!stream->ended[i] && !next_of_choice(stream, model, job, i, out)) return false;
    return !done || print_last(stream, model, job, out);
}

bool server_stream_ping(enum server_shape shape, struct server_buffer *out)
{
    /* OpenAI's API has no such event: a line that begins with a colon is a comment. */
    return shape == SERVER_MESSAGES ? server_messages_ping(out) : server_buffer_text(out, ": ping\n\n");
}

bool server_stream_has_news(const struct server_stream *stream, const struct server_job *job)
{
    bool news = !stream->has_begun || (job->done && !stream->finished);
    for (size_t i = 0; !news && i < job->choice_count; i++)
        news = !stream->ended[i] &&
               (job->choices[i].out.size || job->choices[i].logprobs.ready || finished_well(job->choices[i].finish));
    return news;
}
