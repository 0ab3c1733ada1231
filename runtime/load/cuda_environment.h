/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a process as the driver is to find it when it starts. */
#ifndef RUNTIME_LOAD_CUDA_ENVIRONMENT_H
#define RUNTIME_LOAD_CUDA_ENVIRONMENT_H

#include <stdint.h>

#include "formats/base/status.h"

struct cuda_environment {
    bool sets_connections, hides_gpus; /* what is otherwise now: the first was not there, the second was `visible` */
    char *visible;                     /* NULL: not there; owned */
};

/* The GPUs of these ordinals, by which users know them, as the driver counts them: indices[i].
 *
 * for_one: for a process in which nothing else uses CUDA, before it does. Contexts get one connection each, and hide_others:
 * the driver is shown no GPUs but these, for it gets each ready that it is shown (0.13 s). What is in the environment already
 * goes on to hold: CUDA_DEVICE_MAX_CONNECTIONS stays as it is, and ordinals count the GPUs of CUDA_VISIBLE_DEVICES, by number
 * or name. Where that is no such list, or GPUs are divided (MIG), nothing is hidden.
 *
 * A process that uses CUDA already keeps what it was shown, by us or not: nothing is changed, and STATUS_MACHINE if one of
 * these is not among them. Out of memory: STATUS_MACHINE, too. Threads may call without for_one at any time, with it when no
 * other uses the environment. */
bool cuda_environment_set(struct cuda_environment *environment, const int *ordinals, uint32_t count, bool for_one,
                          bool hide_others, int *indices, struct status *status);
/* As it was, once all contexts are made; harmless on one that is all zero. */
void cuda_environment_restore(struct cuda_environment *environment);

#endif
