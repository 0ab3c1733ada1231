/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning records of a build: those that its engine carries, and the cache that answers before anything is measured. */
#ifndef TUNER_RECORDS_H
#define TUNER_RECORDS_H

#include "formats/tuning/tuning_record.h"

enum tune_level { TUNE_OFF, TUNE_QUICK, TUNE_FULL };
const char *tune_level_name(enum tune_level level); /* as records have it; TUNE_OFF: "model", not measured */
/* Whether a record answers a request of this level: a full one answers all, a quick one all but full, one that was never
 * measured (a tactic of an engine, merged by hand) nothing. */
bool tune_level_answers(const struct tuning_record *record, enum tune_level level);

/* The records an engine carries; launches name them by index. */
struct tactics {
    struct tuning_record *records; /* owned */
    size_t count, capacity, measured, cached;
    struct tuning_cache *cache; /* borrowed; NULL: none */
    size_t unsaved;             /* measured, but the cache file would not take them: cache_status says why */
    struct status cache_status;
};

/* What the cache knows of the key; NULL: nothing. */
const struct tuning_record *tactics_cached(const struct tactics *tactics, const char *key);
/* Likewise, where it answers a request of this level. */
const struct tuning_record *tactics_answer(const struct tactics *tactics, const char *key, enum tune_level level);
/* Room for `capacity` records in all, so that so many stay where they are. */
bool tactics_reserve(struct tactics *tactics, size_t capacity, struct status *status);
bool tactics_add(struct tactics *tactics, const struct tuning_record *record, struct status *status);
/* Puts a measured record into the cache, if there is one. The cache saves time and nothing else: once its file fails, the
 * records are counted as unsaved. */
void tactics_save(struct tactics *tactics, const struct tuning_record *record);

/* Of any number of values: what is beyond TUNING_MAX_VALUES stands in further records, each named by a hash of its content in
 * the last value of the one before. Adds them and `record` with these values; `is_new`: saves them, too. */
bool tactics_add_long(struct tactics *tactics, struct tuning_record *record, const struct tuning_value *values,
                      int count, bool is_new, struct status *status);
/* The `count` values of a record that was so saved, to be freed; NULL: it has not so many, or the cache lacks some. */
struct tuning_value *tactics_long_values(const struct tactics *tactics, const struct tuning_record *record, int count);

/* All records as lines, malloc'd. */
bool tactics_format(const struct tactics *tactics, char **text, size_t *size, struct status *status);
void tactics_free(struct tactics *tactics);

#endif
