/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is available to this process under all limits. */
#ifndef FORMATS_BASE_MEMORY_LIMIT_H
#define FORMATS_BASE_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"

struct memory_limit {
    uint64_t bytes;   /* UINT64_MAX: nothing could be read */
    const char *name; /* constant text: the limit that applies */
};

/* Memory that can be taken without being refused or swapped: the smallest of MemAvailable and what each control group
 * (version 1 and 2, every level) leaves, with page cache counted as free. `root` is "" or, in tests, a folder with
 * proc/ and sys/. */
void memory_limit_available(const char *root, struct memory_limit *memory);

/* Address space that is left within RLIMIT_AS. */
void memory_limit_address_space(struct memory_limit *memory);

/* Fails with STATUS_MACHINE if `bytes` more, `private_bytes` of them not mapped from a file, are not available. `what`
 * begins the message, and `remedy` ends it. */
bool memory_limit_check(const char *what, uint64_t bytes, uint64_t private_bytes, const char *remedy,
                        struct status *status);

#endif
