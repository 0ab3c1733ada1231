/* SPDX-License-Identifier: Apache-2.0 */
/* Saved sequences: any bytes are either refused with a message, or give tokens of the vocabulary and pages that can all be read or
 * are refused. */
#include "formats/sequence/sequence_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/hash.h"
#include "tests/fuzz/fuzz.h"

enum { PAGE_BYTES = 64, VOCAB = 300, CONTEXT = 64, ENGINE = 7 };
const struct fuzz_cost fuzz_cost = {.base_ms = 200, .us_per_byte = 5, .base_bytes = 256 << 10, .bytes_per_byte = 4};

/* Most inputs get the checksums of their content, so that it is tested as well. */
size_t fuzz_fix_up(uint8_t *data, size_t size)
{
    struct sequence_header header;
    if (size < sizeof header) return size;
    memcpy(&header, data, sizeof header);
    if (header.sampler.seed % 4 == 3) return size;
    memcpy(header.magic, "ENGSEQ\r\n", sizeof header.magic);
    header.version = SEQUENCE_FILE_VERSION;
    header.header_bytes = sizeof header;
    header.engine = ENGINE;
    header.page_bytes = PAGE_BYTES;
    header.state_pages = header.computed != 0;
    const uint64_t tokens = (uint64_t)header.token_count * sizeof(int32_t),
                   checksums = sizeof header + (tokens + 7) / 8 * 8;
    uint64_t pages = header.state_pages;
    for (int g = 0; g < PLAN_MAX_PAGE_GROUPS; g++) pages += header.pages[g];
    if (checksums + pages * 8 <= size) {
        const uint64_t both[2] = {hash64(data + sizeof header, tokens), hash64(data + checksums, pages * 8)};
        header.tables_checksum = hash64(both, sizeof both);
    }
    header.checksum = hash64((const uint8_t *)&header + offsetof(struct sequence_header, version),
                             sizeof header - offsetof(struct sequence_header, version));
    memcpy(data, &header, sizeof header);
    return size;
}

static void try_file(const char *path)
{
    const struct sequence_expectation expected = {.engine = ENGINE,
                                                  .page_bytes = PAGE_BYTES,
                                                  .vocab_size = VOCAB,
                                                  .max_context = CONTEXT,
                                                  .groups = 2,
                                                  .most_pages = 40,
                                                  .state_pages = 1,
                                                  .has_options = true};
    struct sequence_file file;
    struct status status = {0};
    uint8_t page[PAGE_BYTES];
    if (!sequence_file_open(&file, path, &expected, &status)) {
        require(status.code != STATUS_OK && status.message[0]);
        return;
    }
    for (uint32_t i = 0; i < file.header.token_count; i++) require(file.tokens[i] >= 0 && file.tokens[i] < VOCAB);
    require(file.header.computed <= file.header.token_count && file.page_count <= 41);
    for (uint64_t i = 0; i < file.page_count; i++)
        if (!sequence_file_page(&file, i, page, &status)) require(status.code == STATUS_CORRUPT);
    sequence_file_close(&file);
}

int fuzz_try(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/sequence-XXXXXX";
    const int file = mkstemp(path);
    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    close(file);
    try_file(path);
    unlink(path);
    return 0;
}
