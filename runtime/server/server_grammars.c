/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_grammars.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct server_grammar {
    struct server_grammars *owner;
    struct eng_grammar *compiled; /* NULL: the place is free */
    enum eng_grammar_kind kind;
    char *text; /* owned [size] */
    size_t size;
    unsigned users;
    uint64_t last_use;
};

struct server_grammars {
    pthread_mutex_t lock; /* of all that follows */
    uint64_t uses;
    struct server_grammar places[SERVER_MOST_GRAMMARS];
};

struct server_grammars *server_grammars_open(void)
{
    struct server_grammars *grammars = calloc(1, sizeof *grammars);
    if (!grammars) return NULL;
    if (pthread_mutex_init(&grammars->lock, NULL)) {
        free(grammars);
        return NULL;
    }
    for (size_t i = 0; i < SERVER_MOST_GRAMMARS; i++) grammars->places[i].owner = grammars;
    return grammars;
}

static void empty(struct server_grammar *place)
{
    eng_grammar_destroy(&place->compiled);
    free(place->text);
    *place = (struct server_grammar){.owner = place->owner};
}

void server_grammars_close(struct server_grammars **grammars)
{
    if (!*grammars) return;
    for (size_t i = 0; i < SERVER_MOST_GRAMMARS; i++) empty(&(*grammars)->places[i]);
    pthread_mutex_destroy(&(*grammars)->lock);
    free(*grammars);
    *grammars = NULL;
}

/* ---- with the lock held ---- */

static void use(struct server_grammars *grammars, struct server_grammar *place)
{
    place->users++;
    place->last_use = ++grammars->uses;
}

static struct server_grammar *find(struct server_grammars *grammars, const struct server_format *format)
{
    for (size_t i = 0; i < SERVER_MOST_GRAMMARS; i++) {
        struct server_grammar *place = &grammars->places[i];
        if (place->compiled && place->kind == format->kind && place->size == format->size &&
            (!format->size || memcmp(place->text, format->text, format->size) == 0))
            return place;
    }
    return NULL;
}

/* The least recently used grammar that is idle; NULL: all are in use. */
static struct server_grammar *oldest_idle(struct server_grammars *grammars, size_t *idle)
{
    struct server_grammar *oldest = NULL;
    *idle = 0;
    for (size_t i = 0; i < SERVER_MOST_GRAMMARS; i++) {
        struct server_grammar *place = &grammars->places[i];
        if (!place->compiled || place->users) continue;
        ++*idle;
        if (!oldest || place->last_use < oldest->last_use) oldest = place;
    }
    return oldest;
}

/* NULL: all are in use. */
static struct server_grammar *free_place(struct server_grammars *grammars)
{
    size_t idle;
    for (size_t i = 0; i < SERVER_MOST_GRAMMARS; i++)
        if (!grammars->places[i].compiled) return &grammars->places[i];
    struct server_grammar *place = oldest_idle(grammars, &idle);
    if (place) empty(place);
    return place;
}

/* ---- for users ---- */

static struct server_grammar *take_present(struct server_grammars *grammars, const struct server_format *format)
{
    pthread_mutex_lock(&grammars->lock);
    struct server_grammar *found = find(grammars, format);
    if (found) use(grammars, found);
    pthread_mutex_unlock(&grammars->lock);
    return found;
}

/* Takes `compiled` and `text`, also on failure. NULL: all places are in use. */
static struct server_grammar *add(struct server_grammars *grammars, const struct server_format *format,
                                  struct eng_grammar *compiled, char *text)
{
    pthread_mutex_lock(&grammars->lock);
    /* Another thread may have compiled the same meanwhile. */
    struct server_grammar *place = find(grammars, format);
    if (!place && (place = free_place(grammars))) {
        place->compiled = compiled;
        place->kind = format->kind;
        place->text = text;
        place->size = format->size;
        compiled = NULL;
        text = NULL;
    }
    if (place) use(grammars, place);
    pthread_mutex_unlock(&grammars->lock);
    eng_grammar_destroy(&compiled);
    free(text);
    return place;
}

bool server_grammars_take(struct server_grammars *grammars, const struct eng_engine *engine,
                          const struct server_format *format, struct server_grammar **grammar,
                          struct server_error *error)
{
    struct eng_error cause = {0};
    struct eng_grammar *compiled = NULL;
    const char *source = format->text ? format->text : "";
    *grammar = take_present(grammars, format);
    if (*grammar) return true;
    if (eng_grammar_create(engine, format->kind, source, format->size, &compiled, &cause))
        return server_fail_eng(error, format->field, &cause);
    char *text = malloc(format->size + 1);
    if (!text) {
        eng_grammar_destroy(&compiled);
        return server_fail_memory(error);
    }
    memcpy(text, source, format->size);
    *grammar = add(grammars, format, compiled, text);
    return *grammar ||
           server_fail(error, 429, "too_many_formats", format->field,
                       "%s: requests with %d different formats are being answered, as many as may; try later",
                       format->field, SERVER_MOST_GRAMMARS);
}

void server_grammars_give_back(struct server_grammar *grammar)
{
    size_t idle;
    if (!grammar) return;
    struct server_grammars *grammars = grammar->owner;
    pthread_mutex_lock(&grammars->lock);
    grammar->users--;
    struct server_grammar *oldest = oldest_idle(grammars, &idle);
    if (idle > SERVER_MOST_IDLE_GRAMMARS) empty(oldest);
    pthread_mutex_unlock(&grammars->lock);
}

struct eng_grammar *server_grammar_compiled(const struct server_grammar *grammar)
{
    return grammar ? grammar->compiled : NULL;
}
