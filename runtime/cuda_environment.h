/* The environment of a process as the driver is to find it when it starts. */
#ifndef RUNTIME_CUDA_ENVIRONMENT_H
#define RUNTIME_CUDA_ENVIRONMENT_H

#include <stdint.h>

#include "formats/status.h"

struct cuda_environment {
    char *connections, *visible;       /* as they were; NULL: not there; owned */
    bool sets_connections, hides_gpus; /* what is otherwise now */
};

/* For a process in which nothing else uses CUDA, before it does: contexts with one connection each, and no GPUs but these,
 * for the driver gets each ready that it is shown (0.13 s). indices[i] is how it then counts GPU ordinals[i], by which users
 * know it. What is in the environment already goes on to hold: CUDA_DEVICE_MAX_CONNECTIONS stays as it is, and ordinals count
 * the GPUs of CUDA_VISIBLE_DEVICES. Where it is not certain which those are, or the process uses CUDA already, or
 * `hide_others` is false, nothing is hidden, and the indices are the ordinals. False: out of memory, and nothing is changed. */
bool cuda_environment_set(struct cuda_environment *environment, const int *ordinals, uint32_t count, bool hide_others,
                          int *indices, struct status *status);
/* As it was, once all contexts are made; harmless on one that is all zero. */
void cuda_environment_restore(struct cuda_environment *environment);

#endif
