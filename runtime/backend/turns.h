/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is on a GPU. The thread blocks of some launches wait for each other (LAUNCH_CORESIDENT), and each such launch was
 * checked alone: two of them at once could each hold a part of the multiprocessors and wait for the rest for ever. So a step
 * with such launches begins when that of another session of this process on the same GPU has ended. Steps of other processes are kept
 * apart by the driver, unless they share the GPU through a multi-process service. Thread safe. */
#ifndef RUNTIME_BACKEND_TURNS_H
#define RUNTIME_BACKEND_TURNS_H

#include "kernels/cuda/device.h"

/* Lets the device's stream wait for the last step of another owner. If it succeeds, the caller queues its step, has an event recorded after
 * it, and calls turn_end; other owners wait meanwhile. Requires: the device's context is current. */
bool turn_begin(const struct device *device, const void *owner, struct status *status);
void turn_end(const struct device *device, const void *owner, cu_event ended);
/* Before the owner's events are destroyed. Requires: its steps have ended. */
void turn_forget(const struct device *device, const void *owner);

#endif
