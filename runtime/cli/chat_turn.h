/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a model in a conversation. When the context is full, the oldest turns leave it, in the conversation, too; the
 * system message stays. */
#ifndef RUNTIME_CLI_CHAT_TURN_H
#define RUNTIME_CLI_CHAT_TURN_H

#include "runtime/cli/chat_conversation.h"
#include "runtime/cli/chat_style.h"
#include "runtime/cli/cli_generation.h"

struct chat_model {
    struct generation run;
    struct conversation conversation;
    const struct chat_style *style;
    int32_t *context; /* ids of the sequence [held], owned, room for a whole context */
    size_t held;
    bool is_stale;  /* the sequence cannot be continued and must be made anew */
    bool can_go_on; /* after a failure of chat_answer: the conversation is as before the question, or has its answer */
};

/* Both return an exit code, after a message if it is not CLI_DONE. */
int chat_model_open(struct chat_model *model, const struct generate_options *options, const struct chat_style *style);
/* Asks the question and prints the answer, which a signal ends. */
int chat_answer(struct chat_model *model, const char *question);

/* Releases everything; `code` as in generation_end. */
int chat_model_end(struct chat_model *model, int code);

#endif
