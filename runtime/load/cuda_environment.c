/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/cuda_environment.h"

#include <ctype.h>
#include <glob.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/engine/plan.h"
#include "kernels/cuda/driver.h"

static const char connections_name[] = "CUDA_DEVICE_MAX_CONNECTIONS", visible_name[] = "CUDA_VISIBLE_DEVICES";

enum { NUMBER_BYTES = 12 }; /* of an int as text */

/* GPUs that the driver was restricted to, as it counts them, for the life of the process; count 0: not restricted. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint32_t count;
    int ordinals[PLAN_MAX_RANKS];
} shown;

static bool translate(const int *ordinals, uint32_t count, int *indices, struct status *status)
{
    bool ok = true;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; ok && shown.count && i < count; i++) {
        uint32_t at = 0;
        while (at < shown.count && shown.ordinals[at] != ordinals[i]) at++;
        indices[i] = (int)at;
        ok = at < shown.count ||
             status_fail(status, STATUS_MACHINE,
                         "GPU %d: expected one that the driver was shown when this process began to use CUDA, %" PRIu32
                         " of them, GPU %d the first (only_cuda_user); open engines for others in other processes",
                         ordinals[i], shown.count, shown.ordinals[0]);
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

static void remember(const int *ordinals, uint32_t count)
{
    pthread_mutex_lock(&lock);
    shown.count = count;
    if (count) memcpy(shown.ordinals, ordinals, count * sizeof *ordinals);
    pthread_mutex_unlock(&lock);
}

/* Whether a GPU is divided (MIG). The driver then shows a process only one part, the first it finds. */
static bool are_divided(void)
{
    glob_t found;
    bool divided = glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*", GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return divided;
}

/* Finds entry `number` of a list of GPU numbers and names, as far as the driver would read it: up to a -1. Returns its
 * length, 0 if there is none. */
static size_t find_entry(const char *list, int number, const char **entry)
{
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        if (length == 0 || !isalnum((unsigned char)*at)) return 0;
        *entry = at;
        if (number-- == 0) return length;
        at += length;
        if (!*at) return 0;
    }
}

/* The list of these GPUs only; "": it cannot be determined; NULL: out of memory. */
static char *list_gpus(const char *visible, const int *ordinals, uint32_t count)
{
    const size_t room = count * ((visible ? strlen(visible) : 0) + NUMBER_BYTES) + 1;
    char *list = malloc(room);
    if (!list) return NULL;
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        char number[NUMBER_BYTES];
        const char *entry = number;
        for (uint32_t before = 0; before < i; before++)
            if (ordinals[before] == ordinals[i]) goto uncertain;
        size_t length = visible ? find_entry(visible, ordinals[i], &entry)
                                : (size_t)snprintf(number, sizeof number, "%d", ordinals[i]);
        if (length == 0) goto uncertain;
        used += (size_t)snprintf(list + used, room - used, "%s%.*s", i ? "," : "", (int)length, entry);
    }
    return list;

uncertain:
    *list = '\0';
    return list;
}

/* A copy of CUDA_VISIBLE_DEVICES; false: out of memory. */
static bool copy_visible(char **visible)
{
    const char *found = getenv(visible_name);
    *visible = found ? strdup(found) : NULL;
    return *visible || !found;
}

/* list: NULL: out of memory; "": nothing is hidden. */
static bool hide(struct cuda_environment *environment, const char *list)
{
    if (!list || (*list && setenv(visible_name, list, 1))) return false;
    environment->hides_gpus = *list;
    return true;
}

bool cuda_environment_set(struct cuda_environment *environment, const int *ordinals, uint32_t count, bool for_one,
                          bool hide_others, int *indices, struct status *status)
{
    *environment = (struct cuda_environment){0};
    for (uint32_t i = 0; i < count; i++) indices[i] = ordinals[i];
    if (cuda_driver_is_in_use()) return translate(ordinals, count, indices, status);
    remember(ordinals, 0);
    if (!for_one) return true;
    bool ok = copy_visible(&environment->visible);
    if (ok && !getenv(connections_name)) ok = environment->sets_connections = setenv(connections_name, "1", 1) == 0;
    if (ok && hide_others && !are_divided()) {
        char *list = list_gpus(environment->visible, ordinals, count);
        ok = hide(environment, list);
        free(list);
    }
    if (!ok) {
        cuda_environment_restore(environment);
        return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    if (!environment->hides_gpus) return true;
    remember(ordinals, count);
    return translate(ordinals, count, indices, status);
}

void cuda_environment_restore(struct cuda_environment *environment)
{
    if (environment->sets_connections) (void)unsetenv(connections_name);
    if (environment->hides_gpus && environment->visible) (void)setenv(visible_name, environment->visible, 1);
    if (environment->hides_gpus && !environment->visible) (void)unsetenv(visible_name);
    free(environment->visible);
    *environment = (struct cuda_environment){0};
}
