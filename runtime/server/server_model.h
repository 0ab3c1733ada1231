/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that is served: its session, and the thread that steps it. Jobs wait in a queue of bounded length, in the
 * order of their arrival, until the session has a sequence for them; those of several choices start one at each turn. */
#ifndef RUNTIME_SERVER_SERVER_MODEL_H
#define RUNTIME_SERVER_SERVER_MODEL_H

#include "runtime/server/server_job.h"

struct server_model;

struct server_model_options {
    const char *name, *path; /* copied */
    const struct eng_open_options *open;
    const struct eng_session_options *session; /* prompt_step and step_ms 0: server_model_prompt_step */
    uint64_t max_queue;                        /* jobs that wait */
    uint64_t max_prompt;                       /* tokens of a prompt; 0: no limit but the context */
    double timeout;                            /* seconds from the arrival of a job to its end */
    bool quiet;                                /* no notes on stderr */
};

/* Tokens of a prompt that one step computes while other sequences decode: a quarter of the engine's largest chunk, so that
 * answers go on while long prompts arrive, but not so few that prompts take much longer. info: as eng_info gives it. */
uint32_t server_model_prompt_step(const char *info);

bool server_model_open(const struct server_model_options *options, struct server_model **model,
                       struct eng_error *error);
/* Ends the thread after all jobs have ended, and releases everything. Requires: no other thread uses the model. */
void server_model_close(struct server_model **model);

const char *server_model_name(const struct server_model *model);
const struct eng_engine *server_model_engine(const struct server_model *model);
/* max_context: no more than the KV pool has room for. */
const struct eng_engine_facts *server_model_facts(const struct server_model *model);
/* What jobs are checked against and prepared with. */
const struct server_target *server_model_target(const struct server_model *model);

/* Queues the job, which then has two references: the caller's, and that of the model until the job is done. 429 if the
 * queue is full, 503 if the engine has failed. */
bool server_model_submit(struct server_model *model, struct server_job *job, struct server_error *error);
/* Ends all jobs as soon as possible, with this failure. */
void server_model_cancel_all(struct server_model *model, const struct server_error *reason);
/* Gives up the caller's reference: the job is cancelled if it is not done, and `wake` is not called any more. */
void server_model_release(struct server_model *model, struct server_job *job);

void server_model_lock(struct server_model *model);
void server_model_unlock(struct server_model *model);

bool server_model_is_busy(struct server_model *model);
/* False: the engine has failed; fills *error. */
bool server_model_is_healthy(struct server_model *model, struct server_error *error);
void server_model_metrics(struct server_model *model, struct server_metrics *metrics);

struct server_slot_facts {
    enum eng_state state; /* IDLE: free */
    char id[SERVER_ID_BYTES];
    size_t choice;
    uint64_t prompt_tokens, generated_tokens;
    double seconds; /* since the arrival of the request */
};
/* Number of sequences that the session can have. */
size_t server_model_slots(const struct server_model *model);
void server_model_slot(struct server_model *model, size_t index, struct server_slot_facts *facts);

#endif
