/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/soak_case.h"

#include <string.h>

#include "tests/bench/bench_session.h"

uint64_t soak_draw(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t soak_draw_between(uint64_t *random, uint32_t least, uint32_t most)
{
    return least + (uint32_t)(soak_draw(random) % (most - least + 1));
}

bool soak_draw_one_of(uint64_t *random, uint32_t count) { return soak_draw(random) % count == 0; }

/* ---- one sequence ---- */

static struct eng_sequence_options options_of(const struct soak_spec *spec)
{
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.sampling = spec->is_sampled ? &spec->sampling : NULL;
    options.stop_tokens = &spec->stop;
    options.stop_count = spec->stop_count;
    options.max_new_tokens = spec->max_new;
    options.flags = spec->flags;
    options.grammar = spec->grammar;
    options.prompt_logprobs = spec->prompt_logprobs;
    return options;
}

static void open_stream(const struct soak_source *source, struct soak_sequence *one)
{
    const char *stop = one->spec->stop_string;
    if (!source->facts.has_tokenizer) return;
    CHECK(eng_text_create(source->engine, 0, &one->stream, &error));
    if (*stop) CHECK(eng_text_set_stops(one->stream, &stop, 1, &error));
}

void soak_start(const struct soak_source *source, struct eng_session *session, const struct soak_spec *spec,
                struct soak_sequence *one)
{
    const struct eng_sequence_options options = options_of(spec);
    *one = (struct soak_sequence){.spec = spec};
    open_stream(source, one);
    CHECK(eng_sequence_create(session, &options, &one->sequence, &error));
    soak_submit(one);
}

void soak_submit(struct soak_sequence *one)
{
    const struct soak_spec *spec = one->spec;
    CHECK(
        eng_sequence_submit(one->sequence, spec->prompts[one->submitted], spec->prompt_counts[one->submitted], &error));
    one->submitted++;
}

static void add_text(struct soak_text *text, const char *bytes, size_t size)
{
    if (size > SOAK_TEXT_BYTES - text->size) size = SOAK_TEXT_BYTES - text->size;
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
}

static void add_token(struct soak_sequence *one, int32_t token)
{
    const char *bytes;
    size_t size;
    one->tokens[one->count++] = token;
    if (!one->stream) return;
    CHECK(eng_text_push(one->stream, token, &bytes, &size, &error));
    add_text(&one->text, bytes, size);
    one->is_stopped = eng_text_stopped(one->stream) >= 0;
}

/* The text that the stream has held back, once the answer is complete. */
static void finish_text(struct soak_sequence *one)
{
    const char *bytes;
    size_t size;
    if (!one->stream) return;
    CHECK(eng_text_finish(one->stream, &bytes, &size, &error));
    add_text(&one->text, bytes, size);
}

void soak_poll(struct soak_sequence *one)
{
    int32_t token;
    while (!one->is_stopped && !one->has_more && eng_sequence_poll(one->sequence, &token, 1)) {
        one->has_more = one->count == SOAK_MOST_TOKENS;
        if (!one->has_more) add_token(one, token);
    }
    if (one->is_stopped) eng_sequence_cancel(one->sequence);
    /* Text that a cancelled answer holds back may be the beginning of its stop string. */
    if (soak_is_done(one) && one->submitted == one->spec->submits &&
        (one->is_stopped || eng_sequence_end(one->sequence) != ENG_END_CANCELLED))
        finish_text(one);
}

bool soak_is_done(const struct soak_sequence *one)
{
    return one->is_stopped || one->has_more || eng_sequence_state(one->sequence) == ENG_STATE_DONE;
}

static enum eng_end end_of(const struct soak_sequence *one)
{
    return one->is_stopped ? ENG_END_CANCELLED : eng_sequence_end(one->sequence);
}

const char *soak_difference(const struct soak_sequence *one, bool is_done)
{
    const struct soak_spec *spec = one->spec;
    const uint32_t s = one->submitted - 1;
    if (one->has_more) return "more tokens than may be";
    if (one->count > spec->answer_counts[spec->submits - 1] ||
        memcmp(one->tokens, spec->answer, one->count * sizeof *one->tokens))
        return "other tokens";
    if (one->text.size > spec->text.size || memcmp(one->text.bytes, spec->text.bytes, one->text.size))
        return "another text";
    if (!is_done) return NULL;
    if (one->count != spec->answer_counts[s]) return "another number of tokens";
    if (end_of(one) != spec->ends[s]) return "another end";
    return one->submitted == spec->submits && one->text.size != spec->text.size ? "another length of its text" : NULL;
}

bool soak_fork(const struct soak_source *source, struct soak_sequence *one, bool has_own_options,
               struct soak_sequence *fork)
{
    const struct soak_spec *spec = has_own_options ? one->spec->fork : one->spec;
    struct eng_sequence_options options = options_of(spec);
    struct eng_sampling greedy;
    struct eng_error error;
    eng_sampling_init(&greedy);
    if (!spec->is_sampled) options.sampling = &greedy; /* none would mean that of the sequence */
    options.max_new_tokens += one->count;              /* counted from the beginning of the answer */
    *fork = (struct soak_sequence){.spec = spec, .submitted = has_own_options ? 1 : one->submitted};
    if (eng_sequence_fork(one->sequence, has_own_options ? &options : NULL, &fork->sequence, &error)) {
        fork->spec = NULL;
        if (error.status == ENG_FULL || eng_sequence_state(one->sequence) == ENG_STATE_DONE) return false;
        bench_end(BENCH_MACHINE, "%s", error.message);
    }
    const uint32_t count = one->count;
    soak_poll(one);
    if (one->is_stopped || one->has_more || (has_own_options && one->count != count)) {
        /* A step that was queued ahead has ended it, or added a token that the other specification does not begin with. */
        eng_sequence_destroy(&fork->sequence);
        fork->spec = NULL;
        return false;
    }
    open_stream(source, fork);
    for (uint32_t i = 0; !has_own_options && i < one->count; i++) add_token(fork, one->tokens[i]);
    return true;
}

void soak_save(struct soak_sequence *one, const char *path)
{
    CHECK(eng_sequence_save(one->sequence, path, &error));
    eng_sequence_destroy(&one->sequence);
}

bool soak_restore(struct eng_session *session, struct soak_sequence *one, const char *path)
{
    struct eng_sequence_options options = options_of(one->spec);
    struct eng_error error;
    options.sampling = NULL; /* its draws go on where they were */
    if (!eng_sequence_restore(session, path, &options, &one->sequence, &error)) return true;
    if (error.status != ENG_FULL) bench_end(BENCH_MACHINE, "%s", error.message);
    return false;
}

void soak_destroy(struct soak_sequence *one)
{
    eng_sequence_destroy(&one->sequence);
    eng_text_destroy(&one->stream);
    one->spec = NULL;
}

/* ---- specifications ---- */

void soak_prepare(struct soak_source *source, uint64_t *random)
{
    static const struct {
        enum eng_grammar_kind kind;
        const char *text;
    } grammars[SOAK_GRAMMARS] = {{ENG_GRAMMAR_REGEX, "[A-Z][a-z ,]{8,60}[.!?]"},
                                 {ENG_GRAMMAR_JSON_SCHEMA,
                                  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},"
                                  "\"age\":{\"type\":\"integer\"}},\"required\":[\"name\",\"age\"]}"},
                                 {ENG_GRAMMAR_CHOICES, "[\"the wolf and the lamb\", \"the wolf\", \"a fox\"]"}};
    for (int o = 0; o < SOAK_OPENINGS; o++)
        for (int i = 0; i < SOAK_MOST_PROMPT; i++)
            source->openings[o][i] = (int32_t)soak_draw_between(random, 0, source->facts.vocab_size - 1);
    if (!source->facts.has_tokenizer) return;
    for (int g = 0; g < SOAK_GRAMMARS; g++)
        CHECK(eng_grammar_create(source->engine, grammars[g].kind, grammars[g].text, strlen(grammars[g].text),
                                 &source->grammars[g], &error));
    source->grammar_count = SOAK_GRAMMARS;
}

void soak_release(struct soak_source *source)
{
    for (uint32_t g = 0; g < source->grammar_count; g++) eng_grammar_destroy(&source->grammars[g]);
    source->grammar_count = 0;
}

static void run_alone(const struct soak_source *source, struct soak_spec *spec)
{
    struct soak_sequence one;
    soak_start(source, source->session, spec, &one);
    for (uint32_t s = 0; s < spec->submits; s++) {
        if (s > 0) soak_submit(&one);
        while (!soak_is_done(&one)) {
            CHECK(eng_step(source->session, NULL, &error));
            soak_poll(&one);
        }
        if (one.has_more) bench_end(BENCH_DIFFERS, "a sequence alone has more than %d tokens", SOAK_MOST_TOKENS);
        spec->answer_counts[s] = one.count;
        spec->ends[s] = end_of(&one);
    }
    memcpy(spec->answer, one.tokens, sizeof spec->answer);
    spec->text = one.text;
    soak_destroy(&one);
}

static void draw_sampling(const struct soak_source *source, uint64_t *random, struct soak_spec *spec)
{
    eng_sampling_init(&spec->sampling);
    spec->is_sampled = soak_draw_one_of(random, 2);
    spec->sampling.temperature = 0.5f + (float)soak_draw_between(random, 0, 100) * 0.01f;
    spec->sampling.top_p = soak_draw_one_of(random, 2) ? 0.9f : 0;
    spec->sampling.top_k = soak_draw_one_of(random, 2) ? 40 : 0;
    spec->sampling.min_p = soak_draw_one_of(random, 4) ? 0.05f : 0;
    spec->sampling.repetition_penalty = soak_draw_one_of(random, 3) ? 1.2f : 0;
    spec->sampling.seed = soak_draw(random);
    /* Files hold no biases. */
    if ((spec->flags & ENG_SEQUENCE_KEEP) || !soak_draw_one_of(random, 4)) return;
    spec->bias = (struct eng_logit_bias){.token = (int32_t)soak_draw_between(random, 0, source->facts.vocab_size - 1),
                                         .bias = 3};
    spec->sampling.logit_bias = &spec->bias;
    spec->sampling.logit_bias_count = 1;
}

static void draw_prompt(const struct soak_source *source, uint64_t *random, struct soak_spec *spec, uint32_t s)
{
    const uint32_t quarter = source->facts.max_context / 4, longest = SOAK_MOST_PROMPT - SOAK_MOST_NEW;
    uint32_t most = quarter < longest ? quarter : longest, opened = 0;
    /* As often short as long. */
    if (soak_draw_one_of(random, 2)) most /= 8;
    spec->prompt_counts[s] = soak_draw_between(random, 1, most ? most : 1);
    if (s == 0 && soak_draw_one_of(random, 2)) {
        opened = soak_draw_between(random, 0, spec->prompt_counts[s]);
        memcpy(spec->prompts[s], source->openings[soak_draw(random) % SOAK_OPENINGS],
               opened * sizeof *spec->prompts[s]);
    }
    const uint32_t period = soak_draw_one_of(random, 3) ? soak_draw_between(random, 1, 12) : SOAK_MOST_PROMPT;
    for (uint32_t i = opened; i < spec->prompt_counts[s]; i++)
        spec->prompts[s][i] = i - opened >= period
                                  ? spec->prompts[s][i - period]
                                  : (int32_t)soak_draw_between(random, 0, source->facts.vocab_size - 1);
}

/* A part of the answer's text, of whole characters. */
static void draw_stop_string(uint64_t *random, struct soak_spec *spec)
{
    const struct soak_text *text = &spec->text;
    size_t from = text->size ? soak_draw(random) % text->size : 0, to;
    while (from > 0 && ((unsigned char)text->bytes[from] & 0xc0) == 0x80) from--;
    to = from + soak_draw_between(random, 1, SOAK_STOP_BYTES);
    if (to > text->size) to = text->size;
    while (to > from && to < text->size && ((unsigned char)text->bytes[to] & 0xc0) == 0x80) to--;
    if (text->size < SOAK_TEXT_BYTES && !memchr(text->bytes + from, 0, to - from))
        memcpy(spec->stop_string, text->bytes + from, to - from);
}

static void make_spec(const struct soak_source *source, uint64_t *random, struct soak_spec *spec)
{
    const uint32_t eighth = source->facts.max_context / 8, most_new = eighth < SOAK_MOST_NEW ? eighth : SOAK_MOST_NEW;
    *spec = (struct soak_spec){.submits = soak_draw_one_of(random, 4) ? 2 : 1,
                               .max_new = soak_draw_between(random, 1, most_new)};
    for (uint32_t s = 0; s < spec->submits; s++) draw_prompt(source, random, spec, s);
    if (spec->submits > 1) spec->flags |= ENG_SEQUENCE_KEEP;
    draw_sampling(source, random, spec);
    if (soak_draw_one_of(random, 5)) spec->prompt_logprobs = soak_draw_one_of(random, 2) ? -1 : 3;
    if (source->grammar_count && soak_draw_one_of(random, 6))
        spec->grammar = source->grammars[soak_draw(random) % source->grammar_count];
    else if (soak_draw_one_of(random, 2))
        spec->flags |= ENG_SEQUENCE_IGNORE_EOS;
    if (soak_draw_one_of(random, 4)) { /* not in make_fork: the fork's would count tokens that are the other's prompt */
        spec->sampling.presence_penalty = 0.5f;
        spec->sampling.frequency_penalty = 0.3f;
    }
    run_alone(source, spec);
    if (spec->answer_counts[0] == 0) return;
    if (soak_draw_one_of(random, 4)) { /* a token that it draws stops it */
        spec->stop_count = 1;
        spec->stop = spec->answer[soak_draw_between(random, 0, spec->answer_counts[0] - 1)];
    } else if (spec->submits == 1 && soak_draw_one_of(random, 3)) {
        draw_stop_string(random, spec);
    }
    if (spec->stop_count || *spec->stop_string) run_alone(source, spec);
}

/* One that begins as `first` and a part of its answer. */
static void make_fork(const struct soak_source *source, uint64_t *random, struct soak_spec *first,
                      struct soak_spec *spec)
{
    const uint32_t at = soak_draw_between(random, 1, first->answer_counts[0] - 1), prompt = first->prompt_counts[0];
    *spec = (struct soak_spec){.submits = 1, .max_new = first->max_new, .prompt_counts = {prompt + at}};
    memcpy(spec->prompts[0], first->prompts[0], prompt * sizeof **spec->prompts);
    memcpy(spec->prompts[0] + prompt, first->answer, at * sizeof **spec->prompts);
    draw_sampling(source, random, spec);
    run_alone(source, spec);
    first->fork = spec;
    first->fork_at = at;
}

void soak_make_specs(const struct soak_source *source, uint64_t *random, struct soak_spec *specs, uint32_t count)
{
    struct soak_spec *first = NULL; /* the one before, unless it is a fork itself */
    for (uint32_t i = 0; i < count; i++) {
        if (first && first->answer_counts[0] > 1 && soak_draw_one_of(random, 3)) {
            make_fork(source, random, first, &specs[i]);
            first = NULL;
        } else {
            make_spec(source, random, &specs[i]);
            first = &specs[i];
        }
    }
}
