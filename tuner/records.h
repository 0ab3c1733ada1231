/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning records of a build: those that its engine carries, and the cache that is consulted before anything is
 * measured. */
#ifndef TUNER_RECORDS_H
#define TUNER_RECORDS_H

#include "formats/tuning/tuning_record.h"

enum tune_level { TUNE_OFF, TUNE_QUICK, TUNE_FULL };
const char *tune_level_name(enum tune_level level); /* as written in records; TUNE_OFF: "model", not measured */
/* Whether a record answers a request of this level. A full record answers all levels, a quick one all but full. An
 * unmeasured one (a tactic of an engine, merged by hand) answers none. */
bool tune_level_answers(const struct tuning_record *record, enum tune_level level);

/* The records that an engine carries; launches refer to them by index. */
struct tactics {
    struct tuning_record *records; /* owned */
    size_t count, capacity, measured, cached;
    struct tuning_cache *cache; /* borrowed; NULL: none */
    size_t unsaved;             /* measured, but not written to the cache file; cache_status gives the reason */
    struct status cache_status;
};

/* The cached record of the key; NULL: none. */
const struct tuning_record *tactics_cached(const struct tactics *tactics, const char *key);
/* Likewise, but only if it answers a request of this level. */
const struct tuning_record *tactics_answer(const struct tactics *tactics, const char *key, enum tune_level level);
/* Reserves room for `capacity` records in all; that many never move. */
bool tactics_reserve(struct tactics *tactics, size_t capacity, struct status *status);
bool tactics_add(struct tactics *tactics, const struct tuning_record *record, struct status *status);
/* Puts a measured record into the cache, if there is one. After a write error of its file the records are counted as
 * unsaved; the build goes on. */
void tactics_save(struct tactics *tactics, const struct tuning_record *record);

/* Adds a record with any number of values. Values beyond TUNING_MAX_VALUES go to continuation records; the last value
 * of each record is a hash of the content of the next. `is_new`: also saves them to the cache. */
bool tactics_add_long(struct tactics *tactics, struct tuning_record *record, const struct tuning_value *values,
                      int count, bool is_new, struct status *status);
/* The `count` values of such a record, to be freed by the caller; NULL: it has another number of values, or the cache
 * lacks a continuation. */
struct tuning_value *tactics_long_values(const struct tactics *tactics, const struct tuning_record *record, int count);

/* All records as lines of text, allocated with malloc. */
bool tactics_format(const struct tactics *tactics, char **text, size_t *size, struct status *status);
void tactics_free(struct tactics *tactics);

#endif
