/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/vendor_cache.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/hash.h"

/* On disk: one file per plan, named after the hash. A file that is not complete counts as absent. */
struct entry_header { /* little endian */
    char magic[8];
    uint64_t hash; /* of the data, which follow the header */
    uint64_t bytes;
};
_Static_assert(sizeof(struct entry_header) == 24, "no padding");
static const char entry_magic[8] = "ENGBLB01";
enum { MOST_BYTES = 64 << 20 };

bool vendor_cache_add(struct vendor_cache *cache, void *data, size_t bytes)
{
    if (cache->count == cache->capacity) {
        size_t capacity = cache->capacity ? 2 * cache->capacity : 16;
        struct vendor_blob *larger = realloc(cache->entries, capacity * sizeof *larger);
        if (!larger) {
            free(data);
            return false;
        }
        cache->entries = larger;
        cache->capacity = capacity;
    }
    cache->entries[cache->count++] = (struct vendor_blob){hash64(data, bytes), data, bytes};
    return true;
}

static const struct vendor_blob *in_memory(const struct vendor_cache *cache, uint64_t hash)
{
    for (size_t i = 0; i < cache->count; i++)
        if (cache->entries[i].hash == hash) return &cache->entries[i];
    return NULL;
}

static bool entry_path(const struct vendor_cache *cache, uint64_t hash, char path[PATH_MAX])
{
    if (!cache->folder) return false;
    int length = snprintf(path, PATH_MAX, "%s/%016" PRIx64 ".blob", cache->folder, hash);
    return length > 0 && length < PATH_MAX;
}

static bool read_entry(struct vendor_cache *cache, uint64_t hash)
{
    struct entry_header header;
    char path[PATH_MAX], *file = NULL;
    size_t size = 0;
    if (!entry_path(cache, hash, path) || !file_read(path, sizeof header + MOST_BYTES, &file, &size, NULL))
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
    return vendor_cache_add(cache, file, size - sizeof header);
}

bool vendor_cache_find(struct vendor_cache *cache, uint64_t hash, struct vendor_blob *found)
{
    const struct vendor_blob *known = in_memory(cache, hash);
    if (!known && read_entry(cache, hash)) known = in_memory(cache, hash);
    if (known) *found = *known;
    return known != NULL;
}

void vendor_cache_keep(const struct vendor_cache *cache, uint64_t hash)
{
    const struct vendor_blob *blob = in_memory(cache, hash);
    struct file_output output;
    char path[PATH_MAX];
    if (!blob || blob->bytes > MOST_BYTES || !entry_path(cache, hash, path)) return;
    struct entry_header header = {.hash = hash, .bytes = blob->bytes};
    memcpy(header.magic, entry_magic, sizeof header.magic);
    if (!file_output_open(&output, path, NULL)) return;
    if (file_output_write(&output, &header, sizeof header, NULL) &&
        file_output_write(&output, blob->data, blob->bytes, NULL))
        file_output_commit(&output, NULL);
    file_output_abandon(&output);
}

void vendor_cache_free(struct vendor_cache *cache)
{
    for (size_t i = 0; i < cache->count; i++) free(cache->entries[i].data);
    free(cache->entries);
    free(cache->folder);
    memset(cache, 0, sizeof *cache);
}
