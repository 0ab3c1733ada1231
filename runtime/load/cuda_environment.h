/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables that the CUDA driver reads when it starts. */
#ifndef RUNTIME_LOAD_CUDA_ENVIRONMENT_H
#define RUNTIME_LOAD_CUDA_ENVIRONMENT_H

#include <stdint.h>

#include "formats/base/status.h"

struct cuda_environment {
    bool sets_connections, hides_gpus; /* variables that were changed: the first was unset, the second was `visible` */
    char *visible;                     /* owned; NULL: was unset */
};

/* Prepares the environment for the driver and translates GPU numbers: indices[i] is the number by which the driver
 * counts the GPU that users know as ordinals[i].
 *
 * for_one sets CUDA_DEVICE_MAX_CONNECTIONS to 1 unless it is set. With hide_others the driver is shown only these GPUs,
 * since it initialises every GPU that it is shown (0.13 s each). Ordinals count the GPUs of an existing
 * CUDA_VISIBLE_DEVICES, by number or name; if that is not such a list, or GPUs are divided (MIG), nothing is hidden.
 *
 * If the process already uses CUDA, nothing is changed; STATUS_MACHINE if one of the GPUs is not among those that the
 * driver was shown. STATUS_MACHINE also if out of memory. Requires for for_one: nothing else in the process uses CUDA,
 * and no other thread uses the environment. Without for_one any thread may call it at any time. */
bool cuda_environment_set(struct cuda_environment *environment, const int *ordinals, uint32_t count, bool for_one,
                          bool hide_others, int *indices, struct status *status);
/* Restores the environment, once all contexts exist. Does nothing if *environment is all zero. */
void cuda_environment_restore(struct cuda_environment *environment);

#endif
