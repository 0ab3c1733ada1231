/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_turn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"

/* The tokens to submit. */
struct chat_prompt {
    int32_t *tokens; /* owned */
    size_t count;
};

int chat_model_open(struct chat_model *model, const struct generate_options *options, const struct chat_style *style)
{
    struct generation *run = &model->run;
    *model = (struct chat_model){.style = style};
    int code = generation_open(run, options);
    if (!code) generation_note_ids(run);
    if (!code && !cli_caught_signal()) code = generation_open_session(run, run->facts.max_context);
    if (!code && run->session) code = generation_open_outputs(run);
    if (code || !run->session) return code;
    run->answer = malloc(run->facts.max_context * sizeof *run->answer);
    model->context = malloc(run->facts.max_context * sizeof *model->context);
    if (!run->answer || !model->context) return generation_fail_memory(run);
    if (options->system && !conversation_set_system(&model->conversation, options->system, &run->status))
        return generation_fail_status(run);
    return CLI_DONE;
}

int chat_model_end(struct chat_model *model, int code)
{
    conversation_free(&model->conversation);
    free(model->context);
    return generation_end(&model->run, code);
}

/* ---- prompts ---- */

/* The conversation without its oldest turns, and the beginning of an answer. A template may take more steps or memory for it than
 * it may: it is then longer than any context. */
static int chat_tokens(struct chat_model *model, size_t dropped, struct chat_prompt *prompt)
{
    struct generation *run = &model->run;
    const struct conversation *conversation = &model->conversation;
    const size_t first = conversation->first, count = conversation->count - 2 * dropped;
    const uint32_t flags = ENG_CHAT_ANSWER | (run->options->plain ? 0u : ENG_CHAT_CONTENT_SPECIAL);
    free(prompt->tokens);
    *prompt = (struct chat_prompt){0};
    struct eng_message *messages = malloc(count * sizeof *messages);
    if (!messages) return generation_fail_memory(run);
    memcpy(messages, conversation->messages, first * sizeof *messages);
    memcpy(messages + first, conversation->messages + first + 2 * dropped, (count - first) * sizeof *messages);
    enum eng_status status = eng_chat(run->engine, messages, count, flags, NULL, 0, &prompt->count, &run->error);
    if (status == ENG_OK || status == ENG_TOO_LONG) {
        prompt->tokens = malloc((prompt->count + 1) * sizeof *prompt->tokens);
        status = prompt->tokens ? eng_chat(run->engine, messages, count, flags, prompt->tokens, prompt->count,
                                           &prompt->count, &run->error)
                                : ENG_MACHINE;
    }
    free(messages);
    if (!prompt->tokens && status == ENG_MACHINE) return generation_fail_memory(run);
    if (status == ENG_TOO_LONG && dropped + 1 < conversation_turns(conversation)) {
        prompt->count = SIZE_MAX;
        return CLI_DONE;
    }
    model->can_go_on = status == ENG_BAD_INPUT || status == ENG_TOO_LONG;
    return status ? generation_fail_error(run) : CLI_DONE;
}

/* Tokens reserved for an answer that has `begun` tokens, unless the question alone leaves fewer. */
static size_t answer_room(const struct generation *run, size_t begun)
{
    const size_t quarter = run->facts.max_context / 4, most = run->options->max_new_tokens;
    return begun + (most && most - begun < quarter ? most - begun : quarter);
}

static bool fits(const struct chat_model *model, const struct chat_prompt *prompt, size_t room)
{
    const size_t context = model->run.facts.max_context;
    return prompt->count <= context && room <= context - prompt->count;
}

/* Leaves out as few of the oldest turns as make room for so many tokens after the prompt, `least` or more; all but the last one
 * if that is not enough. Prompts become shorter with each turn, so the number is found by halves. */
static int fit_prompt(struct chat_model *model, size_t least, size_t room, struct chat_prompt *prompt, size_t *dropped)
{
    size_t low = least, high = conversation_turns(&model->conversation) - 1, built = low;
    int code = chat_tokens(model, built, prompt);
    if (code || fits(model, prompt, room))
        high = low;
    else
        low++;
    while (!code && low < high) {
        built = low + (high - low) / 2;
        code = chat_tokens(model, built, prompt);
        if (!code && fits(model, prompt, room))
            high = built;
        else
            low = built + 1;
    }
    *dropped = high;
    return code || built == high ? code : chat_tokens(model, high, prompt);
}

static int create_sequence(struct chat_model *model, uint32_t max_new_tokens)
{
    model->held = 0;
    model->is_stale = false;
    return generation_create_sequence(&model->run, max_new_tokens);
}

static void note_dropped(const struct chat_model *model, size_t dropped)
{
    if (dropped)
        chat_note(model->style, "the context of %" PRIu32 " tokens is full: the oldest %zu turn%s left out",
                  model->run.facts.max_context, dropped, dropped == 1 ? " was" : "s were");
}

/* Builds the tokens to submit for the question, which is the last message: the part of the conversation that follows the
 * sequence's tokens. If these are not how the conversation begins, it is computed anew: a template may write earlier messages in
 * another way once others follow, and the text of an answer may have other ids than were drawn. */
static int first_prompt(struct chat_model *model, struct chat_prompt *prompt)
{
    struct generation *run = &model->run;
    size_t dropped = 0;
    int code = fit_prompt(model, 0, answer_room(run, 0), prompt, &dropped);
    if (code) return code;
    code = generation_check_prompt(run, prompt->count);
    model->can_go_on = run->is_too_long;
    if (code) return code;
    const bool continues = !model->is_stale && prompt->count > model->held &&
                           !memcmp(prompt->tokens, model->context, model->held * sizeof *prompt->tokens);
    if (continues) {
        prompt->count -= model->held;
        memmove(prompt->tokens, prompt->tokens + model->held, prompt->count * sizeof *prompt->tokens);
    } else {
        code = create_sequence(model, run->options->max_new_tokens);
    }
    note_dropped(model, dropped);
    conversation_drop(&model->conversation, dropped);
    return code;
}

/* ---- answers ---- */

/* The sequence has so many tokens more. */
static void hold(struct chat_model *model, const int32_t *tokens, size_t count)
{
    const size_t room = model->run.facts.max_context - model->held;
    memcpy(model->context + model->held, tokens, (count < room ? count : room) * sizeof *tokens);
    model->held += count < room ? count : room;
}

/* Whether the answer was ended by the context, and can go on without older turns. What a grammar has of the answer cannot be
 * given to another sequence. */
static bool can_slide(const struct chat_model *model)
{
    const struct generation *run = &model->run;
    const uint32_t most = run->options->max_new_tokens;
    return eng_sequence_end(run->sequence) == ENG_END_CONTEXT && conversation_turns(&model->conversation) > 1 &&
           !run->grammar && (!most || run->answer_count < most);
}

/* Builds the tokens of the conversation without its oldest turns and of the answer so far, for another sequence. *dropped 0: the last
 * question and the answer fill the context. */
static int next_prompt(struct chat_model *model, struct chat_prompt *prompt, size_t *dropped)
{
    struct generation *run = &model->run;
    const size_t begun = run->answer_count;
    int code = fit_prompt(model, 1, answer_room(run, begun), prompt, dropped);
    if (code) return code;
    if (!fits(model, prompt, begun + 1)) {
        *dropped = 0;
        return CLI_DONE;
    }
    int32_t *tokens = realloc(prompt->tokens, (prompt->count + begun) * sizeof *tokens);
    if (!tokens) return generation_fail_memory(run);
    memcpy(tokens + prompt->count, run->answer, begun * sizeof *tokens);
    *prompt = (struct chat_prompt){tokens, prompt->count + begun};
    conversation_drop(&model->conversation, *dropped);
    const uint32_t most = run->options->max_new_tokens;
    return create_sequence(model, most ? most - (uint32_t)begun : 0);
}

/* Runs the model until the answer ends, with as many sequences as that takes. */
static int run_answer(struct chat_model *model, struct chat_prompt *prompt, size_t *dropped)
{
    struct generation *run = &model->run;
    size_t more = 1;
    int code = CLI_DONE;
    for (bool is_first = true; !code && more && !cli_caught_signal(); is_first = false) {
        const size_t begun = run->answer_count;
        code = generation_steps(run, prompt->tokens, prompt->count);
        hold(model, prompt->tokens, prompt->count);
        hold(model, run->answer + begun, run->answer_count - begun);
        /* The next question's answer has another limit. */
        model->is_stale = !is_first && run->options->max_new_tokens;
        more = 0;
        if (!code && !cli_caught_signal() && can_slide(model)) code = next_prompt(model, prompt, &more);
        *dropped += more;
    }
    return code;
}

/* The answer as text; NULL after a failure. */
static char *answer_text(struct generation *run)
{
    size_t size;
    eng_detokenize(run->engine, run->answer, run->answer_count, 0, NULL, 0, &size, &run->error);
    if (run->error.status != ENG_OK && run->error.status != ENG_TOO_LONG) return NULL;
    char *text = malloc(size + 1);
    if (!text) run->error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
    if (!text || !eng_detokenize(run->engine, run->answer, run->answer_count, 0, text, size + 1, &size, &run->error))
        return text;
    free(text);
    return NULL;
}

static int remember_answer(struct chat_model *model)
{
    struct generation *run = &model->run;
    char *text = answer_text(run);
    if (!text) return generation_fail_error(run);
    return conversation_answer(&model->conversation, text, &run->status) ? CLI_DONE : generation_fail_status(run);
}

static void note_end(struct chat_model *model, size_t dropped)
{
    const struct generation *run = &model->run;
    note_dropped(model, dropped);
    if (eng_sequence_end(run->sequence) == ENG_END_CONTEXT && !cli_caught_signal())
        chat_note(model->style, "the answer ends here: with its question it fills the context of %" PRIu32 " tokens",
                  run->facts.max_context);
}

/* Ends the printed answer and adds it to the conversation. */
static int finish_answer(struct chat_model *model, size_t dropped)
{
    struct generation *run = &model->run;
    const int code = generation_finish(run);
    const bool is_lost = eng_sequence_end(run->sequence) == ENG_END_NOT_FINITE;
    if (code && !is_lost) return code;
    const int failure = remember_answer(model);
    if (failure) return failure;
    /* A sequence without finite logits, or that a signal stopped, cannot be continued. */
    model->is_stale = model->is_stale || is_lost || cli_caught_signal();
    model->can_go_on = is_lost;
    if (!code) note_end(model, dropped);
    return code;
}

int chat_answer(struct chat_model *model, const char *question)
{
    struct generation *run = &model->run;
    struct chat_prompt prompt = {0};
    size_t dropped = 0;
    model->can_go_on = run->is_too_long = false;
    if (!conversation_ask(&model->conversation, question, &run->status)) return generation_fail_status(run);
    int code = first_prompt(model, &prompt);
    if (code) {
        conversation_take_back(&model->conversation);
    } else {
        run->answer_count = 0;
        code = run_answer(model, &prompt, &dropped);
        if (!code) code = finish_answer(model, dropped);
    }
    free(prompt.tokens);
    return code;
}
