/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/vendor/library_blobs.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/hash.h"

/* On disk: one file for each, named after the hash. All of it fits, or it is not there. */
struct entry_header { /* little endian */
    char magic[8];
    uint64_t hash; /* of the data, which follow */
    uint64_t bytes;
};
_Static_assert(sizeof(struct entry_header) == 24, "no padding");
static const char entry_magic[8] = "ENGBLB01";
enum { MOST_BYTES = 64 << 20 };

bool library_blobs_add(struct library_blobs *blobs, void *data, size_t bytes)
{
    if (blobs->count == blobs->capacity) {
        size_t capacity = blobs->capacity ? 2 * blobs->capacity : 16;
        struct library_blob *larger = realloc(blobs->entries, capacity * sizeof *larger);
        if (!larger) {
            free(data);
            return false;
        }
        blobs->entries = larger;
        blobs->capacity = capacity;
    }
    blobs->entries[blobs->count++] = (struct library_blob){hash64(data, bytes), data, bytes};
    return true;
}

static const struct library_blob *in_memory(const struct library_blobs *blobs, uint64_t hash)
{
    for (size_t i = 0; i < blobs->count; i++)
        if (blobs->entries[i].hash == hash) return &blobs->entries[i];
    return NULL;
}

static bool entry_path(const struct library_blobs *blobs, uint64_t hash, char path[PATH_MAX])
{
    if (!blobs->folder) return false;
    int length = snprintf(path, PATH_MAX, "%s/%016" PRIx64 ".blob", blobs->folder, hash);
    return length > 0 && length < PATH_MAX;
}

static bool read_entry(struct library_blobs *blobs, uint64_t hash)
{
    struct entry_header header;
    char path[PATH_MAX], *file = NULL;
    size_t size = 0;
    if (!entry_path(blobs, hash, path) || !file_read(path, sizeof header + MOST_BYTES, &file, &size, NULL))
        return false;
    bool whole = size > sizeof header;
    if (whole) {
        memcpy(&header, file, sizeof header);
        whole = memcmp(header.magic, entry_magic, sizeof header.magic) == 0 && header.hash == hash &&
                header.bytes == size - sizeof header && hash64(file + sizeof header, size - sizeof header) == hash;
    }
    if (!whole) {
        free(file);
        return false;
    }
    memmove(file, file + sizeof header, size - sizeof header);
    return library_blobs_add(blobs, file, size - sizeof header);
}

bool library_blobs_find(struct library_blobs *blobs, uint64_t hash, struct library_blob *found)
{
    const struct library_blob *known = in_memory(blobs, hash);
    if (!known && read_entry(blobs, hash)) known = in_memory(blobs, hash);
    if (known) *found = *known;
    return known != NULL;
}

void library_blobs_keep(const struct library_blobs *blobs, uint64_t hash)
{
    const struct library_blob *blob = in_memory(blobs, hash);
    struct file_output output;
    char path[PATH_MAX];
    if (!blob || blob->bytes > MOST_BYTES || !entry_path(blobs, hash, path)) return;
    struct entry_header header = {.hash = hash, .bytes = blob->bytes};
    memcpy(header.magic, entry_magic, sizeof header.magic);
    if (!file_output_open(&output, path, NULL)) return;
    if (file_output_write(&output, &header, sizeof header, NULL) &&
        file_output_write(&output, blob->data, blob->bytes, NULL))
        file_output_commit(&output, NULL);
    file_output_abandon(&output);
}

void library_blobs_free(struct library_blobs *blobs)
{
    for (size_t i = 0; i < blobs->count; i++) free(blobs->entries[i].data);
    free(blobs->entries);
    free(blobs->folder);
    memset(blobs, 0, sizeof *blobs);
}
