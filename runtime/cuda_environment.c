#include "runtime/cuda_environment.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/driver.h"

static const char connections_name[] = "CUDA_DEVICE_MAX_CONNECTIONS", visible_name[] = "CUDA_VISIBLE_DEVICES";

enum { NUMBER_BYTES = 12 }; /* of an int as text */

/* Entry `number` of a list of GPUs that the driver would show up to there: numbers and names, no -1. Returns its length, 0 if
 * there is none. */
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

/* The list of these GPUs alone, or "" where it is not certain; NULL: out of memory. */
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

/* A copy of a variable; false: out of memory. */
static bool copy(const char *name, char **value)
{
    const char *found = getenv(name);
    *value = found ? strdup(found) : NULL;
    return *value || !found;
}

static void put_back(const char *name, const char *value)
{
    if (value)
        (void)setenv(name, value, 1);
    else
        (void)unsetenv(name);
}

bool cuda_environment_set(struct cuda_environment *environment, const int *ordinals, uint32_t count, bool hide_others,
                          int *indices, struct status *status)
{
    *environment = (struct cuda_environment){0};
    for (uint32_t i = 0; i < count; i++) indices[i] = ordinals[i];
    if (cuda_driver_is_in_use()) return true;
    char *list = NULL;
    if (!copy(connections_name, &environment->connections) || !copy(visible_name, &environment->visible)) goto failed;
    if (!environment->connections) {
        if (setenv(connections_name, "1", 1)) goto failed;
        environment->sets_connections = true;
    }
    if (!hide_others) return true;
    if (!(list = list_gpus(environment->visible, ordinals, count))) goto failed;
    if (*list) {
        if (setenv(visible_name, list, 1)) goto failed;
        environment->hides_gpus = true;
        for (uint32_t i = 0; i < count; i++) indices[i] = (int)i;
    }
    free(list);
    return true;

failed:
    free(list);
    cuda_environment_restore(environment);
    return status_fail(status, STATUS_MACHINE, "out of memory");
}

void cuda_environment_restore(struct cuda_environment *environment)
{
    if (environment->sets_connections) put_back(connections_name, environment->connections);
    if (environment->hides_gpus) put_back(visible_name, environment->visible);
    free(environment->connections);
    free(environment->visible);
    *environment = (struct cuda_environment){0};
}
