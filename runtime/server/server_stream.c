/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_stream.h"

#include <stdlib.h>

#include "runtime/server/server_reply.h"

bool server_stream_open(struct server_stream *stream, const struct server_job *job)
{
    *stream = (struct server_stream){.begun = calloc(job->choice_count, sizeof *stream->begun),
                                     .ended = calloc(job->choice_count, sizeof *stream->ended),
                                     .answers = calloc(job->choice_count, sizeof *stream->answers)};
    if (!stream->begun || !stream->ended || !stream->answers) return false;
    stream->choice_count = job->choice_count;
    for (size_t i = 0; i < job->choice_count; i++) server_job_begin_answer(job, &stream->answers[i]);
    return true;
}

void server_stream_close(struct server_stream *stream)
{
    for (size_t i = 0; i < stream->choice_count; i++) server_answer_free(&stream->answers[i]);
    free(stream->answers);
    free(stream->begun);
    free(stream->ended);
    *stream = (struct server_stream){0};
}

static bool finished_well(enum server_finish finish)
{
    return finish == SERVER_FINISH_STOP || finish == SERVER_FINISH_LENGTH;
}

/* The new text of a choice as events. */
static bool print_news(struct server_stream *stream, struct server_model *model, const struct server_job *job,
                       size_t index, const struct server_buffer *text, const struct server_logprobs *logprobs,
                       bool ends, struct server_buffer *out)
{
    struct server_answer *answer = &stream->answers[index];
    struct server_parts parts = {0};
    const size_t calls = answer->calls;
    bool ok =
        server_answer_push(answer, text->data, text->size, &parts) && (!ends || server_answer_finish(answer, &parts));
    if (ok && !stream->begun[index] && (parts.count || logprobs->count || ends)) {
        stream->begun[index] = true;
        ok = server_reply_begin(model, job, index, out);
    }
    ok = ok && server_reply_parts(model, job, index, calls, &parts, logprobs, out);
    server_parts_free(&parts);
    return ok;
}

/* Events of one choice since the last call. */
static bool next_of_choice(struct server_stream *stream, struct server_model *model, struct server_job *job,
                           size_t index, struct server_buffer *out)
{
    struct server_choice *choice = &job->choices[index];
    struct server_logprobs logprobs = {0};
    /* Taken as a whole, so that the lock is not held while events are made. */
    server_model_lock(model);
    struct server_buffer text = choice->out;
    const enum server_finish finish = choice->finish;
    bool ok = server_logprobs_take(&choice->logprobs, &logprobs);
    choice->out = (struct server_buffer){0};
    server_model_unlock(model);

    const bool ends = finished_well(finish) && !stream->ended[index];
    ok = ok && print_news(stream, model, job, index, &text, &logprobs, ends, out);
    if (ok && ends) {
        stream->ended[index] = true;
        stream->ended_count++;
        ok = server_reply_end(model, job, index, stream->answers[index].calls, finish, out);
    }
    server_buffer_free(&text);
    server_logprobs_free(&logprobs);
    return ok;
}

static bool print_failure(const struct server_job *job, struct server_buffer *out)
{
    return server_buffer_text(out, "data: ") && server_reply_error(&job->failure, out) &&
           server_buffer_text(out, "\n\n");
}

static bool print_last(struct server_stream *stream, struct server_model *model, const struct server_job *job,
                       struct server_buffer *out)
{
    stream->finished = true;
    const bool has_failed = job->failure.http && stream->ended_count < job->choice_count;
    return (has_failed ? print_failure(job, out) : server_reply_usage(model, job, out)) &&
           server_buffer_text(out, "data: [DONE]\n\n");
}

bool server_stream_next(struct server_stream *stream, struct server_model *model, struct server_job *job,
                        struct server_buffer *out)
{
    if (stream->finished) return true;
    server_model_lock(model);
    const bool done = job->done;
    server_model_unlock(model);
    for (size_t i = 0; i < job->choice_count; i++)
        if (!stream->ended[i] && !next_of_choice(stream, model, job, i, out)) return false;
    return !done || print_last(stream, model, job, out);
}

bool server_stream_has_news(const struct server_stream *stream, const struct server_job *job)
{
    bool news = job->done && !stream->finished;
    for (size_t i = 0; !news && i < job->choice_count; i++)
        news = !stream->ended[i] &&
               (job->choices[i].out.size || job->choices[i].logprobs.ready || finished_well(job->choices[i].finish));
    return news;
}
