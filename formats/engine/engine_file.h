/* SPDX-License-Identifier: Apache-2.0 */
/* The engine file (normative specification: engine_file.md): packed structs, the reader, which verifies everything
 * structural before it returns a pointer, and the streaming writer. */
#ifndef FORMATS_ENGINE_ENGINE_FILE_H
#define FORMATS_ENGINE_ENGINE_FILE_H

#include "formats/base/file.h"
#include "formats/engine/golden.h"
#include "formats/engine/manifest.h"
#include "formats/template/chat_templates.h"

enum { ENGINE_MAJOR = 2, ENGINE_MINOR = 3 };
enum {
    ENGINE_MAX_SECTIONS = 32,
    ENGINE_SECTION_ALIGNMENT = 4096,
};

enum engine_section {
    SECTION_MANIFEST = 1,
    SECTION_TENSORS = 2,
    SECTION_WEIGHTS = 3,
    SECTION_WEIGHT_HASHES = 4,
    SECTION_KERNELS = 5,
    SECTION_PLANS = 6,
    SECTION_COLLECTIVES = 7,
    SECTION_TACTICS = 8,
    SECTION_TOKENIZER = 9,
    SECTION_GOLDEN = 10,
    SECTION_SIGNATURE = 11,
    SECTION_LIBRARY_CALLS = 12,
    SECTION_LIBRARY_PLANS = 13,
    SECTION_NAMES = 14,
    SECTION_GOLDEN_PLANS = 15,
    SECTION_CHAT_TEMPLATES = 16,
    SECTION_GOLDEN_DRAFTS = 17,
    SECTION_COUNT
};
const char *engine_section_name(unsigned id);

enum tensor_layout { LAYOUT_ROW_MAJOR = 0, LAYOUT_PANEL16 = 1, LAYOUT_FRAGMENT16 = 2 /* see kernels/matmul/panel.h */ };

struct engine_tensor {
    const char *name; /* borrowed */
    enum dtype dtype;
    enum tensor_layout layout;
    int rank;
    uint64_t shape[4];      /* logical shape */
    uint64_t offset, bytes; /* in the weight section, aligned to PLAN_ALIGNMENT */
};

/* One kernel of a device target: the only entry of a cubin. */
struct engine_kernel {
    const char *entry; /* borrowed */
    const void *cubin; /* borrowed, 16-byte aligned */
    uint64_t cubin_bytes;
    uint32_t operand_count; /* its arguments: pointers, or tensor maps for operands that have one */
};

/* One library call: the data that all launches that refer to it share. */
struct engine_call {
    enum plan_library library;
    uint32_t version;       /* version of the library, by its own numbering; the call is valid for no other version */
    uint32_t operand_count; /* of every launch: the op's operands, then the call's workspace if it needs one */
    const void *data;       /* borrowed, 16-byte aligned: the algorithm, in the library's own encoding */
    uint64_t bytes;
};

/* An open engine. The weights are in the mapping; all other pointers lead into memory that the engine owns. Nothing
 * changes after open, so any number of threads may read. */
struct engine {
    struct file_map map;  /* data NULL if opened from memory, or after engine_use_weights */
    const uint8_t *bytes; /* the whole file; after open only the weights are read */
    uint64_t size;
    uint64_t host_bytes, host_limit; /* memory that opening allocated, and its limit */
    uint32_t format_minor;           /* of the file */
    uint64_t checksum; /* of header and section table; by the sections' checksums in it, of the whole file */
    struct manifest manifest;
    const char *manifest_text;
    size_t manifest_text_size;
    const uint8_t *weights; /* [manifest.weights_bytes] */
    const uint64_t *weight_hashes;
    uint64_t weight_chunks;
    struct engine_tensor *tensors;
    size_t tensor_count;
    struct engine_kernel *kernels; /* device targets */
    size_t kernel_count;
    struct plan *plans; /* decode plans by rising rows, then prefill plans by rising rows */
    size_t plan_count;
    struct engine_call *calls; /* device targets; none in a lean engine */
    size_t call_count;
    struct plan *library_plans;   /* [plan_count]: replaces the plan of the same index if its libraries are available;
                                   * launch_count 0: no replacement. NULL without library calls */
    uint64_t library_arena_bytes; /* largest over the library plans */
    struct json_t *names;         /* owned; see engine_op_name */
    const char *tactics;          /* tuning record lines */
    size_t tactics_size;
    const uint8_t *tokenizer; /* image, NULL if none */
    size_t tokenizer_size;
    struct chat_templates *chat_templates; /* owned, NULL if none */
    struct engine_golden golden;           /* token_count 0 if none */
    struct golden_cases golden_plans;      /* case_count 0 if none */
    void *owned[ENGINE_MAX_SECTIONS];      /* decompressed copies of sections */
    struct engine_opening *opening;        /* until engine_open_finish */
};

/* Verifies header, table, checksums of all sections but the weights, and every cross reference. Requires: the loader
 * then verifies the weight chunks with engine_verify_weights (in several threads and pieces if it likes). */
bool engine_open(struct engine *engine, const char *path, struct status *status);
enum { ENGINE_BY_PATH = INT32_MIN }; /* instead of a descriptor */
/* engine_open in two parts. begin verifies header, table and manifest; of the engine only manifest and checksum may be used
 * before finish has returned true. If finish fails, the caller closes the engine.
 * descriptor: of the file, if it is open already; `path` is then a name for messages.
 * max_host_bytes: limit of private memory; exceeding it fails with STATUS_MACHINE. 0: enough for real files of this size
 * (ENGINE_HOST_BASE_BYTES). */
bool engine_open_begin(struct engine *engine, const char *path, int descriptor, uint64_t max_host_bytes,
                       struct status *status);
bool engine_open_finish(struct engine *engine, struct status *status);
/* `data` must be aligned to PLAN_ALIGNMENT and outlive the engine; `name` is for messages. */
bool engine_open_memory(struct engine *engine, const void *data, uint64_t size, const char *name,
                        struct status *status);
bool engine_verify_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count,
                           struct status *status);
/* Range of a chunk in the weights. Each rank's region is divided into the same number of chunks. */
void engine_chunk(const struct engine *engine, uint64_t chunk, uint64_t *offset, uint64_t *bytes);
/* Copies whole chunks to their places in `to`, which has room for all weights, and verifies the copies. */
bool engine_copy_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count, uint8_t *to,
                         struct status *status);
/* file_map_unchanged for an engine opened from a file: fails if the weights may differ from those that were
 * verified. */
bool engine_unchanged(const struct engine *engine, struct status *status);
/* Makes the engine use these weights, a verified copy that outlives it, and closes the file. Requires: no thread has
 * used other weights of this engine. */
void engine_use_weights(struct engine *engine, const uint8_t *weights);
/* Copies bytes [offset, offset + bytes) of the weights; for an engine opened from a file with file_map_read. */
bool engine_read_weights(const struct engine *engine, uint64_t offset, void *to, uint64_t bytes, struct status *status);
/* Advises the system that bytes [offset, offset + bytes) of the weights, limited to their size, will be read soon. */
void engine_read_ahead(const struct engine *engine, uint64_t offset, uint64_t bytes);
void engine_close(struct engine *engine);

/* Display names, from the file rather than from this program's tables (engine_names.c). Texts are borrowed from the
 * engine. Every op of a plan has a name. */
const char *engine_op_name(const struct engine *engine, unsigned op);
/* Name of the launch's kernel or library call; CPU: of its op. */
const char *engine_kernel_name(const struct engine *engine, const struct plan_launch *launch);
/* Value of the launch's parameter of that name, ignoring case. False: the parameter is absent, or the file has no such
 * name. */
bool engine_param(const struct engine *engine, const struct plan *plan, const struct plan_launch *launch,
                  const char *name, int64_t *value);

/* Writer: begin, weights, sections, end. The same contents give the same bytes. The weights may come before, between or
 * after the other sections, but as one run. A section of size 0 is left out. The manifest is parsed as it is written
 * (the header repeats its builder version). Requires: after a failure only engine_writer_abandon is called. */
struct engine_writer; /* opaque */
struct engine_writer *engine_writer_begin(const char *path, struct status *status);
/* `regions`: number of ranks, whose regions are equal parts of the total. */
bool engine_writer_weights_begin(struct engine_writer *writer, uint64_t total_bytes, uint64_t regions,
                                 struct status *status);
/* Writes bytes [offset, offset + size) of the weights: whole chunks (weight_chunk_range). Each chunk once, in any
 * order; several threads may call it, until engine_writer_weights_end. */
bool engine_writer_weights_put(struct engine_writer *writer, uint64_t offset, const void *data, uint64_t size,
                               struct status *status);
bool engine_writer_weights_end(struct engine_writer *writer, struct status *status);
/* A read-only mapping of the weight section with the bytes written so far (for tuning and golden outputs before the
 * file is complete). Valid until the writer ends. */
bool engine_writer_map_weights(struct engine_writer *writer, const uint8_t **weights, struct status *status);
bool engine_writer_section(struct engine_writer *writer, enum engine_section id, const void *data, uint64_t size,
                           bool compress, struct status *status);
/* Tensors in any order; the section lists them by rising offset. Plans in the order that struct engine requires. */
bool engine_writer_tensors(struct engine_writer *writer, const struct engine_tensor *tensors, size_t count,
                           struct status *status);
bool engine_writer_plans(struct engine_writer *writer, const struct plan *plans, size_t count,
                         const struct plan_geometry *geometry, struct status *status);
/* Compressed. Two kernels may have the same entry name: launches refer to them by index. */
bool engine_writer_kernels(struct engine_writer *writer, const struct engine_kernel *kernels, size_t count,
                           struct status *status);
/* Plans that call libraries, in the order of the plans that they replace, and their calls. Without either the sections
 * are left out. */
bool engine_writer_library_plans(struct engine_writer *writer, const struct plan *plans, size_t count,
                                 struct status *status);
bool engine_writer_calls(struct engine_writer *writer, const struct engine_call *calls, size_t count,
                         struct status *status);
/* Names of one op, or of one device kernel. */
struct engine_name_table {
    unsigned op;      /* enum plan_op; kernels: 0 */
    const char *name; /* kernels: the entry, or the name of a library call in `calls` */
    const char *const *operands;
    size_t operand_count;
    const struct engine_param_name {
        unsigned id;
        const char *name;
    } * params;
    size_t param_count;
};
/* Requires: every op of the plans has a table; kernels without one use their op's. `calls`: a name for each library
 * call. */
bool engine_writer_names(struct engine_writer *writer, const struct engine_name_table *ops, size_t op_count,
                         const struct engine_name_table *kernels, size_t kernel_count, const char *const *calls,
                         size_t call_count, struct status *status);
bool engine_writer_golden(struct engine_writer *writer, const struct engine_golden *golden, struct status *status);
/* No cases: leaves the section out. */
bool engine_writer_golden_plans(struct engine_writer *writer, const struct golden_cases *cases, struct status *status);
/* The drafts of both. None: leaves the section out. */
bool engine_writer_golden_drafts(struct engine_writer *writer, const struct engine_golden *golden,
                                 const struct golden_cases *cases, struct status *status);
/* Writes header and table, syncs, renames. Frees the writer, even on failure. */
bool engine_writer_commit(struct engine_writer *writer, struct status *status);
/* All steps of commit but the rename: writes the header and syncs the file. Optional. */
bool engine_writer_finish(struct engine_writer *writer, struct status *status);
uint64_t engine_writer_bytes(const struct engine_writer *writer); /* bytes written so far */
void engine_writer_abandon(struct engine_writer *writer);

#endif
