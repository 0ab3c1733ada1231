/* SPDX-License-Identifier: Apache-2.0 */
/* The vendor cache: a content-addressed cache of library-built plans (cuDNN), which are not reproducible from their inputs. In
 * memory for the build, and on disk beside the compiled kernels for the next one. */
#ifndef TUNER_CUDA_VENDOR_CACHE_H
#define TUNER_CUDA_VENDOR_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vendor_blob {
    uint64_t hash; /* XXH3-64 */
    void *data;    /* owned; its address is stable until the cache is freed */
    size_t bytes;
};
struct vendor_cache {
    struct vendor_blob *entries; /* owned */
    size_t count, capacity;
    char *folder; /* owned; NULL: the cache has no folder */
};

/* Takes ownership of `data`. False: out of memory; `data` is freed. */
bool vendor_cache_add(struct vendor_cache *cache, void *data, size_t bytes);
/* Finds a plan in memory, else on disk; false: there is none, or it is damaged. *found is borrowed. */
bool vendor_cache_find(struct vendor_cache *cache, uint64_t hash, struct vendor_blob *found);
/* Writes a plan from memory to disk. A failure is ignored: the next build then lacks it. */
void vendor_cache_keep(const struct vendor_cache *cache, uint64_t hash);
void vendor_cache_free(struct vendor_cache *cache);

#endif
