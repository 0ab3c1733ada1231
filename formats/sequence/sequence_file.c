/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/sequence/sequence_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/hash.h"

enum { PART_ALIGNMENT = 8 };
static const char magic[8] = "ENGSEQ\r\n";

static uint64_t header_checksum(const struct sequence_header *header)
{
    const size_t from = offsetof(struct sequence_header, version);
    return hash64((const uint8_t *)header + from, sizeof *header - from);
}

static uint64_t count_kv_pages(const struct sequence_header *header)
{
    uint64_t count = 0;
    for (int g = 0; g < PLAN_MAX_PAGE_GROUPS; g++) count += header->pages[g];
    return count;
}

static uint64_t count_pages(const struct sequence_header *header)
{
    return count_kv_pages(header) + header->state_pages;
}

/* Where parts begin and the file ends. */
struct parts {
    uint64_t tokens, checksums, pages, end;
};

static bool find_parts(const struct sequence_header *header, struct parts *parts)
{
    const uint64_t pages = count_pages(header);
    uint64_t page_bytes;
    parts->tokens = sizeof *header;
    return checked_align(parts->tokens + (uint64_t)header->token_count * sizeof(int32_t), PART_ALIGNMENT,
                         &parts->checksums) &&
           checked_add(parts->checksums, pages * sizeof(uint64_t), &parts->pages) &&
           checked_mul(pages, header->page_bytes, &page_bytes) && checked_add(parts->pages, page_bytes, &parts->end);
}

static uint64_t tables_checksum(const struct sequence_header *header, const int32_t *tokens, const uint64_t *checksums)
{
    const uint64_t both[2] = {hash64(tokens, header->token_count * sizeof *tokens),
                              hash64(checksums, count_pages(header) * sizeof *checksums)};
    return hash64(both, sizeof both);
}

/* ---- reading ---- */

static bool damaged(struct status *status, const char *what)
{
    return status_fail(status, STATUS_CORRUPT, "%s; the file is damaged: compute the sequence again, and save it",
                       what);
}

static bool check_identity(const struct sequence_header *header, const struct sequence_expectation *expected,
                           struct status *status)
{
    if (memcmp(header->magic, magic, sizeof magic) != 0)
        return status_fail(status, STATUS_BAD_INPUT, "this is no saved sequence");
    if (header->version != SEQUENCE_FILE_VERSION || header->header_bytes != sizeof *header)
        return status_fail(status, STATUS_VERSION,
                           "the saved sequence has version %" PRIu32 ", expected %d; save it with this library",
                           header->version, SEQUENCE_FILE_VERSION);
    if (header_checksum(header) != header->checksum) return damaged(status, "its header has another checksum");
    if (header->engine != expected->engine)
        return status_fail(status, STATUS_VERSION,
                           "the sequence was saved by engine %016" PRIx64 ", this is engine %016" PRIx64
                           "; open the engine file that it was computed with",
                           header->engine, expected->engine);
    return true;
}

static bool is_penalty(float penalty) { return penalty >= -2 && penalty <= 2; }

static bool is_sampler(const struct sampler_state *sampler, bool has_options)
{
    const uint32_t known = has_options ? SAMPLER_MIN_P | SAMPLER_ADJUSTS : 0;
    return isfinite(sampler->temperature) && sampler->temperature >= 0 && sampler->top_p > 0 && sampler->top_p <= 1 &&
           isfinite(sampler->repetition_penalty) && sampler->repetition_penalty > 0 && sampler->top_k >= 0 &&
           !(sampler->options & ~known) && sampler->min_p_log <= 0 && is_penalty(sampler->presence_penalty) &&
           is_penalty(sampler->frequency_penalty) && !sampler->reserved[0] && !sampler->reserved[1];
}

static bool check_numbers(const struct sequence_header *header, const struct sequence_expectation *expected,
                          struct status *status)
{
    bool fits = header->page_bytes == expected->page_bytes && header->groups == expected->groups &&
                header->token_count >= 1 && header->token_count <= expected->max_context + 1 &&
                header->computed <= header->token_count && header->computed <= expected->max_context &&
                header->written >= header->computed && header->written <= expected->max_context &&
                header->prompt_end <= header->token_count && header->rope_set <= 1 &&
                header->state_pages == (header->computed ? expected->state_pages : 0) &&
                is_sampler(&header->sampler, expected->has_options);
    for (uint32_t g = header->groups; g < PLAN_MAX_PAGE_GROUPS; g++) fits = fits && header->pages[g] == 0;
    if (!fits) return damaged(status, "numbers of its header contradict each other or the engine");
    if (count_kv_pages(header) > expected->most_pages)
        return status_fail(status, STATUS_FULL, "the sequence has %" PRIu64 " KV pages, the whole pool %" PRIu64,
                           count_kv_pages(header), expected->most_pages);
    return true;
}

/* Tokens and checksums of pages, once the header is known to be right. */
static bool read_tables(struct sequence_file *file, const struct sequence_expectation *expected, struct status *status)
{
    const struct sequence_header *header = &file->header;
    struct parts parts;
    if (!find_parts(header, &parts) || parts.end != file->map.size)
        return status_fail(status, STATUS_CORRUPT, "it has %" PRIu64 " bytes, and its header says otherwise; it is cut",
                           file->map.size);
    file->pages_offset = parts.pages;
    file->page_count = count_pages(header);
    file->tokens = calloc(header->token_count, sizeof *file->tokens);
    file->checksums = calloc(file->page_count + 1, sizeof *file->checksums);
    if (!file->tokens || !file->checksums) return status_fail(status, STATUS_MACHINE, "out of memory");
    if (!file_map_read(&file->map, parts.tokens, file->tokens, header->token_count * sizeof *file->tokens, status) ||
        !file_map_read(&file->map, parts.checksums, file->checksums, file->page_count * sizeof *file->checksums,
                       status))
        return false;
    if (tables_checksum(header, file->tokens, file->checksums) != header->tables_checksum)
        return damaged(status, "its tokens have another checksum");
    for (uint32_t i = 0; i < header->token_count; i++)
        if (file->tokens[i] < 0 || (uint64_t)file->tokens[i] >= expected->vocab_size)
            return damaged(status, "a token is outside the vocabulary");
    return true;
}

bool sequence_file_open(struct sequence_file *file, const char *path, const struct sequence_expectation *expected,
                        struct status *status)
{
    *file = (struct sequence_file){0};
    if (!file_map_open(&file->map, path, status)) return false;
    bool ok = file->map.size >= sizeof file->header || damaged(status, "it is shorter than its header");
    ok = ok && file_map_read(&file->map, 0, &file->header, sizeof file->header, status) &&
         check_identity(&file->header, expected, status) && check_numbers(&file->header, expected, status) &&
         read_tables(file, expected, status);
    if (ok) return true;
    sequence_file_close(file);
    return status_prefix(status, "%s", path);
}

void sequence_file_close(struct sequence_file *file)
{
    file_map_close(&file->map);
    free(file->tokens);
    free(file->checksums);
    *file = (struct sequence_file){0};
}

bool sequence_file_page(const struct sequence_file *file, uint64_t index, uint8_t *bytes, struct status *status)
{
    const uint64_t size = file->header.page_bytes;
    if (!file_map_read(&file->map, file->pages_offset + index * size, bytes, size, status)) return false;
    return hash64(bytes, size) == file->checksums[index] || damaged(status, "a page has another checksum");
}

/* ---- writing ---- */

static bool write_pages(struct file_output *output, const struct sequence_header *header, sequence_page *page,
                        void *context, uint8_t *buffer, uint64_t *checksums, struct status *status)
{
    const uint64_t count = count_pages(header);
    for (uint64_t i = 0; i < count; i++) {
        if (!page(context, i, buffer, status)) return false;
        checksums[i] = hash64(buffer, header->page_bytes);
        if (!file_output_write(output, buffer, header->page_bytes, status)) return false;
    }
    return true;
}

bool sequence_file_write(const char *path, struct sequence_header *header, const int32_t *tokens, sequence_page *page,
                         void *context, uint8_t *buffer, uint64_t *checksums, struct status *status)
{
    struct file_output output;
    struct parts parts;
    memcpy(header->magic, magic, sizeof magic);
    header->version = SEQUENCE_FILE_VERSION;
    header->header_bytes = sizeof *header;
    if (!find_parts(header, &parts)) return status_fail(status, STATUS_INTERNAL, "a sequence of more than 2^64 bytes");
    if (!file_output_open(&output, path, status)) return false;
    bool ok = file_output_reserve(&output, parts.pages, status) &&
              write_pages(&output, header, page, context, buffer, checksums, status);
    if (ok) {
        header->tables_checksum = tables_checksum(header, tokens, checksums);
        header->checksum = header_checksum(header);
        ok = file_output_patch(&output, 0, header, sizeof *header, status) &&
             file_output_patch(&output, parts.tokens, tokens, header->token_count * sizeof *tokens, status) &&
             file_output_patch(&output, parts.checksums, checksums, count_pages(header) * sizeof *checksums, status) &&
             file_output_commit(&output, status);
    }
    file_output_abandon(&output);
    return ok;
}
