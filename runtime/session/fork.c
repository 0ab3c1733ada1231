/* SPDX-License-Identifier: Apache-2.0 */
/* Forks: a second sequence goes on from the tokens of a first one, with pages that both share. */
#include <string.h>

#include "runtime/session/session.h"

static const char function[] = "eng_sequence_fork";

static bool check_source(const struct eng_sequence *source, struct status *status)
{
    if (!source->exists) return status_fail(status, STATUS_USAGE, "%s: the sequence was destroyed", function);
    if (source->state == ENG_STATE_IDLE)
        return status_fail(status, STATUS_USAGE, "%s: the sequence has no tokens; submit a prompt first", function);
    if (source->state == ENG_STATE_DONE && source->slot == SESSION_NO_SLOT)
        return status_fail(
            status, STATUS_USAGE,
            "%s: the sequence has ended and has no KV pages; create it with ENG_SEQUENCE_KEEP, or fork it "
            "before it ends",
            function);
    return true;
}

/* Options of the fork where the caller gives none: those of the sequence. */
static struct eng_sequence_options options_of(const struct eng_sequence *source)
{
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.stop_tokens = source->stop_tokens;
    options.stop_count = source->stop_count;
    options.max_new_tokens = source->max_new_tokens;
    options.context_tokens = source->context_tokens;
    options.flags = source->flags;
    options.grammar = source->grammar;
    options.prompt_logprobs = source->prompt_logprobs;
    return options;
}

/* The sampler of the source, with its count of draws. */
static void copy_sampler(const struct eng_sequence *source, struct eng_sequence *fork)
{
    fork->sampling.state = source->sampling.state;
    if (source->slot != SESSION_NO_SLOT) fork->sampling.state = source->session->samplers[source->slot];
    fork->sampling.state.options &= ~(uint32_t)SAMPLER_ALLOWS; /* sequence_fill_slot sets it */
    fork->sampling.bias_count = source->sampling.bias_count;
    if (source->sampling.bias_count)
        memcpy(fork->biases, source->biases, source->sampling.bias_count * sizeof *fork->biases);
}

/* The fork's place in its grammar after the tokens of the answer. */
static bool follow_grammar(struct eng_sequence *fork, struct status *status)
{
    bool ok = grammar_start(fork->grammar, fork->place, fork->allowed, status);
    for (uint32_t i = fork->prompt_end; ok && i < fork->count; i++) {
        const uint32_t token = (uint32_t)fork->tokens[i];
        if (!(fork->allowed[token / 32] >> token % 32 & 1))
            return status_fail(status, STATUS_USAGE,
                               "%s: the grammar does not allow token %u, which is number %u of the answer", function,
                               token, i - fork->prompt_end);
        ok = grammar_follow(fork->grammar, fork->place, fork->tokens[i], fork->allowed, status);
    }
    fork->mask = MASK_SOME;
    return ok || status_prefix(status, "%s", function);
}

/* All tokens of the source, with what may be drawn next. */
static bool copy_tokens(const struct eng_sequence *source, struct eng_sequence *fork, struct status *status)
{
    memcpy(fork->tokens, source->tokens, source->count * sizeof *fork->tokens);
    fork->count = fork->polled = source->count;
    fork->prompt_end = source->prompt_end;
    fork->reached = source->reached;
    fork->cached = source->cached;
    if (source->state == ENG_STATE_DONE) return true; /* the next answer begins anew */
    if (!sequence_check_room(fork, function, status)) return false;
    if (fork->grammar) return follow_grammar(fork, status);
    if (!(fork->flags & source->flags & ENG_SEQUENCE_ALLOWED)) return true;
    fork->mask = source->mask;
    memcpy(fork->allowed, source->allowed,
           plan_allowed_words(source->session->geometry->vocab_size) * sizeof *fork->allowed);
    return true;
}

/* STATUS_FULL: no slot or too few pages are free; the fork has no slot then. */
static bool take_slot(const struct eng_sequence *source, struct eng_sequence *fork, struct status *status)
{
    struct eng_session *session = source->session;
    const bool is_done = source->state == ENG_STATE_DONE;
    const int32_t slot = slots_take(session, SLOT_SEQUENCE);
    if (slot == SESSION_NO_SLOT) return status_fail(status, STATUS_FULL, "%s: all slots are in use", function);
    if (!slots_copy_pages(session, source->slot, slot, (uint64_t)source->computed + !is_done, status)) {
        slots_give_back(session, slot);
        return status_prefix(status, "%s", function);
    }
    fork->slot = slot;
    fork->computed = source->computed;
    fork->sound = source->sound;
    fork->is_private = source->is_private;
    fork->blocks = source->blocks;
    fork->block = source->block;
    fork->checkpoint = source->checkpoint;
    fork->branch = source->branch;
    fork->end = source->end;
    sequence_fill_slot(fork);
    return true;
}

/* Goes on at once if it can, else when its turn comes: its tokens are computed again then. */
static bool begin(const struct eng_sequence *source, struct eng_sequence *fork, struct status *status)
{
    struct status full = {0};
    enum eng_state state = source->state;
    const bool may_go_on = state == ENG_STATE_DONE || (state != ENG_STATE_WAITING && !source->session->waiting_count);
    if (!may_go_on) {
        state = ENG_STATE_WAITING;
    } else if (!take_slot(source, fork, &full)) {
        if (state == ENG_STATE_DONE || full.code != STATUS_FULL) {
            *status = full;
            return false;
        }
        state = ENG_STATE_WAITING;
    }
    sequence_join(fork, state);
    return true;
}

static bool fork_sequence(struct eng_sequence *source, const struct eng_sequence_options *given,
                          struct eng_sequence **handle, struct status *status)
{
    if (!report_not_null(source, function, "sequence", status) ||
        !report_not_null((const void *)handle, function, "fork", status) || !check_source(source, status) ||
        !session_usable(source->session, status) || !scheduler_drain(source->session, status) ||
        !check_source(source, status)) /* the step that was queued ahead may have ended it */
        return false;
    struct eng_sequence_options options = options_of(source);
    struct eng_sequence *fork = NULL;
    if ((given && !report_read_options(&options, sizeof options, given, "eng_sequence_options", status)) ||
        !sequence_make(source->session, &options, &fork, status))
        return false;
    if (!options.sampling) copy_sampler(source, fork);
    if (copy_tokens(source, fork, status) && begin(source, fork, status)) {
        *handle = fork;
        return true;
    }
    eng_sequence_destroy(&fork);
    return false;
}

enum eng_status eng_sequence_fork(struct eng_sequence *sequence, const struct eng_sequence_options *options,
                                  struct eng_sequence **fork, struct eng_error *error)
{
    struct status status = {0};
    return report_result(fork_sequence(sequence, options, fork, &status), &status, error);
}
