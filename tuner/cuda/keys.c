/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/hash.h"

/* Raised whenever the measurement changes: older records are then measured again. */
enum { TUNER_REVISION = 10 };

/* ---- keys ---- */

static bool fits(int length, struct status *status)
{
    return length < TUNING_KEY_BYTES || status_fail(status, STATUS_INTERNAL, "a tuning key is too long");
}

void key_parts_describe(struct key_parts *parts, const struct gpus *gpus)
{
    const char *name = gpus->devices[0].facts.name;
    uint64_t hash = 0;
    for (size_t i = 0; i < device_source_count; i++) {
        const uint64_t both[2] = {hash, hash64(device_sources[i].text, strlen(device_sources[i].text))};
        hash = hash64(both, sizeof both);
    }
    snprintf(parts->code, sizeof parts->code, "code %08" PRIx32 ", tuner %d", (uint32_t)(hash >> 32), TUNER_REVISION);
    snprintf(parts->gpu, sizeof parts->gpu, "%s", name);
    if (gpus->ranks > 1)
        snprintf(parts->gpus, sizeof parts->gpus, "%" PRIu32 " x %s, %s", gpus->ranks, name,
                 cuda_link_name(gpus->link));
    else
        snprintf(parts->gpus, sizeof parts->gpus, "%s", name);
}

bool key_of_problem(const struct key_parts *parts, const struct device_launch *launch, char key[TUNING_KEY_BYTES],
                    struct status *status)
{
    int used = snprintf(key, TUNING_KEY_BYTES, "%s; %s;", parts->gpu, plan_op_name(launch->op));
    for (int i = 0; i < device_problem_count(launch->tactic.kernel) && used < TUNING_KEY_BYTES; i++)
        used += snprintf(key + used, TUNING_KEY_BYTES - (size_t)used, " %" PRId64, launch->tactic.params[i]);
    if (used < TUNING_KEY_BYTES) used += snprintf(key + used, TUNING_KEY_BYTES - (size_t)used, "; %s", parts->code);
    return fits(used, status);
}

bool key_of_library(const char *problem, enum plan_library library, uint32_t version, char key[TUNING_KEY_BYTES],
                    struct status *status)
{
    return fits(snprintf(key, TUNING_KEY_BYTES, "%s; %s %" PRIu32, problem, plan_library_name(library), version),
                status);
}

bool key_of_tactic(const char *problem, const struct device_tactic *tactic, char key[TUNING_KEY_BYTES])
{
    return fits(snprintf(key, TUNING_KEY_BYTES, "%s; %s %016" PRIx64, problem, tactic->kernel->name,
                         (uint64_t)tunables_name(tactic)),
                NULL);
}

bool key_of_plan(const struct key_parts *parts, const struct plan_header *header, const char *kind, uint64_t hash,
                 char key[TUNING_KEY_BYTES], struct status *status)
{
    return fits(snprintf(key, TUNING_KEY_BYTES, "%s; %s of %" PRIu32 " rows%s; plans %016" PRIx64 "; %s", parts->gpus,
                         plan_kind_name(header->kind), header->rows, kind, hash, parts->code),
                status);
}

/* ---- tactics ---- */

int describe_tactic(const struct device_tactic *tactic, struct tuning_value values[TUNING_MAX_VALUES])
{
    const struct device_kernel *kernel = tactic->kernel;
    int count = 1;
    snprintf(values[0].name, sizeof values[0].name, "%s", kernel->name);
    values[0].value = 0;
    for (int i = 0; i < kernel->own_count && count < TUNING_MAX_VALUES; i++) {
        struct tuning_value *value = &values[count++];
        snprintf(value->name, sizeof value->name, "%s", kernel->own_names[i]);
        value->value = tactic->params[device_problem_count(kernel) + i];
    }
    return count;
}

bool record_names_tactic(const struct tuning_record *record, const struct device_tactic *tactic)
{
    struct tuning_value values[TUNING_MAX_VALUES];
    const int count = describe_tactic(tactic, values);
    bool same = record->value_count == count;
    for (int i = 0; same && i < count; i++)
        same = strcmp(record->values[i].name, values[i].name) == 0 &&
               (i == 0 || record->values[i].value == values[i].value);
    return same;
}

int64_t tunables_name(const struct device_tactic *tactic)
{
    const struct device_kernel *kernel = tactic->kernel;
    const size_t bytes = (size_t)kernel->own_count * sizeof *tactic->params;
    return (int64_t)(hash64(tactic->params + device_problem_count(kernel), bytes) >> 1);
}
