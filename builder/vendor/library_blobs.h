/* SPDX-License-Identifier: Apache-2.0 */
/* What libraries made for tactics and cannot make twice alike, by its hash: in memory for the build, and on disk beside
 * the compiled kernels for the next one. Private to build*.c. */
#ifndef BUILDER_VENDOR_LIBRARY_BLOBS_H
#define BUILDER_VENDOR_LIBRARY_BLOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct library_blob {
    uint64_t hash; /* XXH3-64 */
    void *data;    /* owned; stays where it is until the store is freed */
    size_t bytes;
};
struct library_blobs {
    struct library_blob *entries; /* owned */
    size_t count, capacity;
    char *folder; /* owned; NULL: nothing is on disk */
};

/* Takes over `data`, which is freed if false is returned: out of memory. */
bool library_blobs_add(struct library_blobs *blobs, void *data, size_t bytes);
/* From memory, else from disk; false: there is none, or it is damaged. *found borrows. */
bool library_blobs_find(struct library_blobs *blobs, uint64_t hash, struct library_blob *found);
/* Writes one that is in memory to disk, or does not: then the next build lacks it. */
void library_blobs_keep(const struct library_blobs *blobs, uint64_t hash);
void library_blobs_free(struct library_blobs *blobs);

#endif
