/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU: the facts that decide what runs on it, its context and a stream. */
#ifndef KERNELS_CUDA_DEVICE_H
#define KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/driver.h"

struct device_facts {
    char name[96];
    char uuid[48];        /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    int capability;       /* 10 * major + minor: 90 for Hopper */
    int multiprocessors;  /* SMs */
    int shared_per_sm;    /* bytes */
    int shared_per_block; /* bytes, with opt-in */
    int l2_bytes;
    int maps_memory;       /* 1: memory can be opened to other GPUs piece by piece (virtual memory management) */
    int driver_version;    /* as cuDriverGetVersion */
    uint64_t memory_bytes; /* of the device, in all */
};

struct device {
    struct cuda_driver driver;
    struct device_facts facts;
    int ordinal; /* as users and messages have it */
    int index;   /* as the driver counts it: the same, unless it is shown some GPUs alone */
    cu_device handle;
    cu_context context;     /* the primary one; NULL until device_begin */
    cu_stream stream;       /* non-blocking; likewise */
    uint64_t mapping_bytes; /* memory is opened to other GPUs in multiples of this; 0: not at all; likewise */
};

/* Opens the driver, finds the GPU `ordinal` and reads its facts; takes nothing of it yet. STATUS_MACHINE with expected,
 * found and remedy: no driver, no GPU, no such ordinal. */
bool device_find(struct device *device, int ordinal, struct status *status);
/* The same of one that the driver counts otherwise. */
bool device_find_at(struct device *device, int index, int ordinal, struct status *status);
/* Makes the context of a GPU that was found, and the stream; where it fails, too, device_close must follow. Several threads
 * may, each for a GPU of its own. The context is current on the calling thread only between device_enter and device_leave,
 * which nest. */
bool device_begin(struct device *device, struct status *status);
/* Both; where one fails the device is closed. */
bool device_open(struct device *device, int ordinal, struct status *status);
/* The GPU of another, with a stream of its own. */
bool device_open_again(struct device *device, const struct device *open, struct status *status);
void device_close(struct device *device); /* harmless on a device that is all zero */
bool device_enter(const struct device *device, struct status *status);
void device_leave(const struct device *device);
bool device_free_memory(const struct device *device, uint64_t *free_bytes, struct status *status);

/* "sm_90a" for 90, "sm_80" for 80, ...: what code for this GPU is compiled for. */
void device_architecture(int capability, char name[16]);

#endif
