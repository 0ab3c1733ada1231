/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is available to this process, whichever limit binds first. */
#ifndef FORMATS_BASE_MEMORY_LIMIT_H
#define FORMATS_BASE_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

struct memory_limit {
    uint64_t bytes;   /* UINT64_MAX where nothing could be read */
    const char *name; /* constant text: which limit binds */
};

/* Memory that can still be taken without being refused or swapped: the least of MemAvailable, what the control groups
 * (version 1 and 2, every level) leave, page cache not counted as used. `root` is "" or, in tests, a folder that holds
 * proc/ and sys/. */
void memory_limit_available(const char *root, struct memory_limit *memory);

/* Address space that RLIMIT_AS leaves. */
void memory_limit_address_space(struct memory_limit *memory);

/* Fails with STATUS_MACHINE when `bytes` more (of which `private_bytes` are not a mapped file) cannot be had; `what`
 * begins the message and `remedy` ends it. */
bool memory_limit_check(const char *what, uint64_t bytes, uint64_t private_bytes, const char *remedy,
                        struct status *status);

#endif
