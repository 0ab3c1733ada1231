/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a saved sequence: its tokens, its sampler, its KV pages and its recurrent state, for one engine file.
 *
 * Little endian, in this order, each part at a multiple of 8 bytes:
 *   struct sequence_header, 8-byte aligned
 *   tokens     i32[token_count]
 *   checksums  u64[pages]: XXH3-64 of each page
 *   pages      u8[pages][page_bytes], group after group, in the order of the page table; then the recurrent state of all ranks, rank
 *              after rank, in state_pages pages, the last of which ends with zeros
 * The header's checksum covers the header after it; `tables_checksum` covers tokens and checksums. A reader checks all before it uses
 * any, page by page as it copies them. The numbers in pages are those of the model and may be any. */
#ifndef FORMATS_SEQUENCE_SEQUENCE_FILE_H
#define FORMATS_SEQUENCE_SEQUENCE_FILE_H

#include "formats/base/file.h"
#include "formats/engine/plan.h"

enum { SEQUENCE_FILE_VERSION = 1 };

struct sequence_header {
    char magic[8];     /* "ENGSEQ\r\n" */
    uint64_t checksum; /* XXH3-64 of the bytes from `version` on */
    uint32_t version;  /* SEQUENCE_FILE_VERSION; a reader refuses others */
    uint32_t header_bytes;
    uint64_t engine;     /* checksum of the engine file */
    uint64_t page_bytes; /* of all ranks together, rank after rank */
    uint64_t tables_checksum;
    uint32_t groups;                      /* page groups */
    uint32_t pages[PLAN_MAX_PAGE_GROUPS]; /* of each group; 0 beyond `groups` */
    uint32_t token_count;                 /* at least 1 */
    uint32_t computed;                    /* tokens that the pages have: at most token_count */
    uint32_t written;                     /* end of the tokens that were in them: at least `computed` */
    uint32_t prompt_end;                  /* tokens after it were drawn */
    uint32_t rope_set;                    /* 0 or 1 */
    uint32_t state_pages;                 /* 0: no recurrent state; 0 in earlier files, too */
    struct sampler_state sampler;
};
_Static_assert(sizeof(struct sequence_header) == 208, "layout");

/* What the engine expects of such a file. */
struct sequence_expectation {
    uint64_t engine, page_bytes, vocab_size, max_context;
    uint32_t groups;
    uint64_t most_pages;  /* of the pool */
    uint64_t state_pages; /* of a sequence with computed tokens */
    bool has_options;     /* geometry.sampling_options */
};

/* A file that is open for reading. */
struct sequence_file {
    struct file_map map;
    struct sequence_header header;
    int32_t *tokens; /* these are copies: the file may be written while it is read */
    uint64_t *checksums;
    uint64_t pages_offset, page_count; /* pages: with those of the state */
};

/* Checks everything but the pages. STATUS_VERSION: of another version or another engine; STATUS_CORRUPT: damaged. */
bool sequence_file_open(struct sequence_file *file, const char *path, const struct sequence_expectation *expected,
                        struct status *status);
void sequence_file_close(struct sequence_file *file);
/* Copies page `index` of all into `bytes` [page_bytes], checked. */
bool sequence_file_page(const struct sequence_file *file, uint64_t index, uint8_t *bytes, struct status *status);

/* Gives page `index` of all; false with a status. */
typedef bool sequence_page(void *context, uint64_t index, uint8_t *bytes, struct status *status);
/* Writes a file that appears completely or not at all. Fills in magic, version, sizes and checksums of the header. `buffer`:
 * [page_bytes]; `checksums`: [pages], for this function's use. */
bool sequence_file_write(const char *path, struct sequence_header *header, const int32_t *tokens, sequence_page *page,
                         void *context, uint8_t *buffer, uint64_t *checksums, struct status *status);

#endif
