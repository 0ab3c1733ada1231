/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding of the engine file: the structs of engine_file.md, little endian, without padding.
 *
 * [0, 4096): header, section table, zeros. Then: the sections in the order of the table, each at its alignment, zeros
 * between them. The file ends with the last section's last byte. */
#ifndef FORMATS_ENGINE_ENGINE_LAYOUT_H
#define FORMATS_ENGINE_ENGINE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/engine/engine_file.h"

/* As in PNG: the first byte is not ASCII, and the line ends reveal a transfer that changed them. */
#define ENGINE_MAGIC \
    "\x89"           \
    "ENG\r\n\x1a\n"

enum {
    ENGINE_MAGIC_BYTES = 8,
    ENGINE_PREFIX_BYTES = 64,   /* the part of the header that is the same in every version */
    ENGINE_HEADER_SPACE = 4096, /* header and table, then zeros */
    ENGINE_WEIGHT_ALIGNMENT_LARGE = 2 << 20,
    ENGINE_WEIGHT_LARGE_BYTES = 32 << 20, /* from this size on weights have the large alignment */
    /* Default limit of the private memory that opening a file may use: a base plus a multiple of the bytes of all
     * sections but the weights. Real files need twice those bytes if nothing is compressed; text and machine code
     * compressed by a factor of 3 to 8 need up to 10 times. */
    ENGINE_HOST_BASE_BYTES = 32 << 20,
    ENGINE_HOST_RATIO = 16,
};

struct engine_header {
    /* immutable prefix */
    uint8_t magic[ENGINE_MAGIC_BYTES];
    uint16_t major, minor;
    uint32_t header_bytes; /* header and section table */
    uint64_t file_bytes;
    uint64_t header_hash;     /* XXH3-64 of [0, header_bytes) with this field zero */
    char builder_version[32]; /* NUL-padded text */
    /* since version 1 */
    uint32_t section_count;
    uint32_t entry_bytes; /* sizeof(struct engine_section_entry) */
    uint64_t reserved[7];
};
_Static_assert(offsetof(struct engine_header, header_bytes) == 12, "encoding");
_Static_assert(offsetof(struct engine_header, file_bytes) == 16, "encoding");
_Static_assert(offsetof(struct engine_header, header_hash) == 24, "encoding");
_Static_assert(offsetof(struct engine_header, builder_version) == 32, "encoding");
_Static_assert(offsetof(struct engine_header, section_count) == ENGINE_PREFIX_BYTES, "encoding");
_Static_assert(sizeof(struct engine_header) == 128, "encoding");

enum engine_section_flag {
    SECTION_FLAG_ZLIB = 1,     /* stored as one zlib stream */
    SECTION_FLAG_REQUIRED = 2, /* a reader that does not know the type must refuse the file */
    SECTION_FLAG_CHUNKED = 4,  /* the checksum is that of the chunk hashes (weights) */
    SECTION_FLAGS_KNOWN = 7,
};

struct engine_section_entry {
    uint32_t type; /* enum engine_section */
    uint32_t flags;
    uint64_t offset; /* from the start of the file */
    uint64_t stored_bytes, raw_bytes;
    uint64_t hash; /* XXH3-64 of the stored bytes; CHUNKED: of the raw bytes of section weight hashes */
    uint64_t reserved;
};
_Static_assert(sizeof(struct engine_section_entry) == 48, "encoding");
_Static_assert(sizeof(struct engine_header) + ENGINE_MAX_SECTIONS * sizeof(struct engine_section_entry) <=
                   ENGINE_HEADER_SPACE,
               "the table fits after the header");

/* Tensors: header, entries by rising offset, then the names, each with its NUL, in the same order. */
struct engine_tensors_header {
    uint32_t tensor_count;
    uint32_t name_bytes; /* all names with their NULs */
};
_Static_assert(sizeof(struct engine_tensors_header) == 8, "encoding");

struct engine_tensor_entry {
    uint32_t name_offset; /* into the names: the sum of the lengths before it */
    uint32_t name_bytes;  /* without the NUL */
    uint32_t dtype;
    uint16_t layout, rank;
    uint64_t shape[4]; /* zero beyond rank */
    uint64_t offset, bytes;
};
_Static_assert(sizeof(struct engine_tensor_entry) == 64, "encoding");

/* Plans: header, fields of the STATE space, every struct plan_header, then for each plan its launches, operands,
 * parameters, tensor maps, fields of its STEP space and dependencies, and zeros to a multiple of 8 bytes. */
struct engine_plans_header {
    uint32_t plan_count;
    uint32_t field_count; /* fields of the STATE space; library plans: 0 */
};
_Static_assert(sizeof(struct engine_plans_header) == 8, "encoding");

/* Kernels: header, entries, the names each with its NUL in the same order, zeros to a multiple of 64, then the cubins in
 * the same order, each from a multiple of 64 on, zeros between them and to a multiple of 64 at the end. */
enum { ENGINE_CUBIN_ALIGNMENT = 64, ENGINE_MAX_KERNELS = 65536 };
struct engine_kernels_header {
    uint32_t kernel_count;
    uint32_t name_bytes; /* all names with their NULs */
};
_Static_assert(sizeof(struct engine_kernels_header) == 8, "encoding");

struct engine_kernel_entry {
    uint32_t name_offset; /* into the names: the sum of the lengths before it */
    uint32_t name_bytes;  /* without the NUL */
    uint32_t operand_count;
    uint32_t reserved;
    uint64_t offset, bytes; /* of the cubin, from the start of the section */
};
_Static_assert(sizeof(struct engine_kernel_entry) == 32, "encoding");

/* Library calls: header, entries, zeros to a multiple of 64, then the data of each in the same order, each followed by
 * zeros to a multiple of 64. */
struct engine_calls_header {
    uint32_t call_count;
    uint32_t reserved;
};
_Static_assert(sizeof(struct engine_calls_header) == 8, "encoding");

struct engine_call_entry {
    uint32_t library; /* enum plan_library */
    uint32_t version;
    uint32_t operand_count;
    uint32_t reserved;
    uint64_t offset, bytes; /* of the data, from the start of the section */
};
_Static_assert(sizeof(struct engine_call_entry) == 32, "encoding");

/* Golden outputs: header, prompt, tokens, logits, as in struct engine_golden. A later minor version may have a longer
 * header, which begins with this one. */
struct engine_golden_header {
    uint32_t header_bytes;
    uint32_t prompt_count, token_count, vocab_size;
    float tolerance;
    uint32_t reserved;
};
_Static_assert(sizeof(struct engine_golden_header) == 24, "encoding");
enum { ENGINE_GOLDEN_MOST_HEADER = 4096 };

/* Golden plans: header, sequences, rows, cases, items, tokens, logits, as in struct golden_cases. A later minor version may
 * have a longer header, which begins with this one. */
struct engine_golden_plans_header {
    uint32_t header_bytes;
    uint32_t vocab_size;
    float tolerance;
    uint32_t token_count, sequence_count, row_count, case_count, item_count;
};
_Static_assert(sizeof(struct engine_golden_plans_header) == 32, "encoding");

/* The bytes after the header of a section with these counts. False on overflow. */
bool engine_golden_plans_bytes(const struct engine_golden_plans_header *header, uint64_t *bytes);

/* Golden drafts: header, drafted tokens, masks of near tokens: of the tokens of golden outputs, then of the rows of golden plans. A later minor
 * version may have a longer header, which begins with this one. */
struct engine_golden_drafts_header {
    uint32_t header_bytes;
    uint32_t vocab_size, token_count, row_count;
};
_Static_assert(sizeof(struct engine_golden_drafts_header) == 16, "encoding");

/* The same for golden drafts. */
bool engine_golden_drafts_bytes(const struct engine_golden_drafts_header *header, uint64_t *bytes);

/* The offset at which a section must begin: the first valid one from `position` on. False on overflow. */
bool engine_section_place(unsigned type, uint64_t stored_bytes, uint64_t position, uint64_t *offset);

struct engine_section_traits {
    const char *name;
    uint64_t limit;   /* most raw bytes, up to which a reader decompresses */
    bool is_known;    /* this version uses it: in place, or a copy */
    bool is_required; /* the writer sets SECTION_FLAG_REQUIRED; on weights, too */
};
/* A type without a meaning has the traits of an unknown section. */
const struct engine_section_traits *engine_section_traits(unsigned type);

/* Bytes of the body of one plan. False on overflow. */
bool engine_plan_body_bytes(const struct plan_header *header, uint64_t *bytes);

/* False with a message on a big-endian host, which would misread the structs above. */
bool engine_host_check(struct status *status);

#endif
