/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU: its facts, its context and a stream. */
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
    int maps_memory;       /* 1: memory can be mapped for other GPUs (virtual memory management) */
    int driver_version;    /* as cuDriverGetVersion */
    uint64_t memory_bytes; /* total memory of the device */
};

struct device {
    struct cuda_driver driver;
    struct device_facts facts;
    int ordinal; /* number used by users and messages */
    int index;   /* number used by the driver: the same unless the driver is shown only some GPUs */
    cu_device handle;
    cu_context context; /* the primary one; NULL until device_begin */
    cu_stream stream;   /* non-blocking; likewise */
    bool borrows_stream;
    uint64_t mapping_bytes; /* granularity of memory mapped for other GPUs; 0: impossible; likewise */
};

/* Opens the driver, finds GPU `ordinal` and reads its facts; allocates nothing on it. STATUS_MACHINE with expected,
 * found and remedy: no driver, no GPU, no such ordinal. */
bool device_find(struct device *device, int ordinal, struct status *status);
/* The same for a GPU that the driver counts as `index`. */
bool device_find_at(struct device *device, int index, int ordinal, struct status *status);
/* Creates the context of a GPU that was found, and the stream. Requires: device_close follows, on failure too. Several
 * threads may call it for different GPUs. The context is current on the calling thread only between device_enter and
 * device_leave, which nest. */
bool device_begin(struct device *device, struct status *status);
/* device_find and device_begin; closes the device on failure. */
bool device_open(struct device *device, int ordinal, struct status *status);
/* Opens the GPU of another device, with a separate stream. */
bool device_open_again(struct device *device, const struct device *open, struct status *status);
/* Whether the device may use a stream of the caller's. STATUS_USAGE: it is of another context, or a default stream. */
bool device_check_stream(const struct device *device, cu_stream stream, struct status *status);
/* Uses it from now on in the place of the device's own; it outlives the device. Requires: it was checked, nothing is queued on the device's own,
 * and its context is current. */
void device_use_stream(struct device *device, cu_stream stream);
void device_close(struct device *device); /* does nothing on a device that is all zero */
bool device_enter(const struct device *device, struct status *status);
void device_leave(const struct device *device);
bool device_free_memory(const struct device *device, uint64_t *free_bytes, struct status *status);

/* Copies between host and device memory, and waits. `what`: for messages. Requires: the context is current. */
bool device_write(const struct device *device, cu_deviceptr to, const void *from, uint64_t bytes, const char *what,
                  struct status *status);
bool device_read(const struct device *device, void *to, cu_deviceptr from, uint64_t bytes, const char *what,
                 struct status *status);

/* "sm_90a" for 90, "sm_80" for 80, ...: the target of compilation for this GPU. */
void device_architecture(int capability, char name[16]);

#endif
