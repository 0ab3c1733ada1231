/* SPDX-License-Identifier: Apache-2.0 */
/* The engine file (see engine_file.md, the normative spec): packed structs, the reader that verifies everything
 * structural before it hands out a pointer, and the writer that streams. */
#ifndef FORMATS_ENGINE_ENGINE_FILE_H
#define FORMATS_ENGINE_ENGINE_FILE_H

#include "formats/base/file.h"
#include "formats/engine/manifest.h"

enum { ENGINE_MAJOR = 2, ENGINE_MINOR = 0 };
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
    SECTION_COUNT
};
const char *engine_section_name(unsigned id);

enum tensor_layout { LAYOUT_ROW_MAJOR = 0, LAYOUT_PANEL16 = 1 /* see kernels/matmul/matmul.h */ };

struct engine_tensor {
    const char *name; /* borrowed */
    enum dtype dtype;
    enum tensor_layout layout;
    int rank;
    uint64_t shape[4];      /* logical shape */
    uint64_t offset, bytes; /* in the weight section, PLAN_ALIGNMENT aligned */
};

/* Golden outputs: a prompt, the greedy continuation, the logits from which each token was drawn. */
struct engine_golden {
    uint32_t prompt_count, token_count, vocab_size;
    float tolerance;       /* absolute, on logits */
    const int32_t *prompt; /* [prompt_count] */
    const int32_t *tokens; /* [token_count] */
    const float *logits;   /* [token_count, vocab_size] */
};

/* One kernel of a device target: the one entry of a cubin. */
struct engine_kernel {
    const char *entry; /* borrowed */
    const void *cubin; /* borrowed, 16-byte aligned */
    uint64_t cubin_bytes;
    uint32_t operand_count; /* its arguments: pointers, and tensor maps where a launch's operand has one */
};

/* One way to call a library: what the launches that refer to it have in common. */
struct engine_call {
    enum plan_library library;
    uint32_t version;       /* of the library, as it numbers them: another one is not asked */
    uint32_t operand_count; /* of every launch: those of the op, then the call's workspace if it needs one */
    const void *data;       /* borrowed, 16-byte aligned: which algorithm, in the library's own terms */
    uint64_t bytes;
};

/* An open engine. The weights lie in the mapping; all else leads into memory that the engine owns. Nothing changes after open,
 * so any number of threads may read. */
struct engine {
    struct file_map map;  /* data NULL when opened from memory, or after engine_use_weights */
    const uint8_t *bytes; /* of the file: only the weights are read there after open */
    uint64_t size;
    uint64_t host_bytes, host_limit; /* memory that opening took, and may take in all */
    uint64_t checksum; /* of header and section table, so by the sections' checksums there of the whole file */
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
    struct plan *library_plans;   /* [plan_count]: takes the place of the plan of that number where its libraries are
                                 * there; launch_count 0: nothing does. NULL without library calls */
    uint64_t library_arena_bytes; /* largest over the library plans */
    struct json_t *names;         /* owned; see engine_op_name */
    const char *tactics;          /* tuning record lines */
    size_t tactics_size;
    const uint8_t *tokenizer; /* image, NULL if none */
    size_t tokenizer_size;
    struct engine_golden golden;      /* token_count 0 if none */
    void *owned[ENGINE_MAX_SECTIONS]; /* copies of sections, inflated */
};

/* Verifies header, table, checksums of all sections but weights, and every cross reference; the weight chunks are
 * verified by engine_verify_weights, which a loader must call (it may do so from several threads, piece by piece). */
bool engine_open(struct engine *engine, const char *path, struct status *status);
/* Takes at most so many bytes of private memory at any time (STATUS_MACHINE where that is too little); 0: what files of this
 * size need (ENGINE_HOST_BASE_BYTES). */
bool engine_open_within(struct engine *engine, const char *path, uint64_t max_host_bytes, struct status *status);
/* `data` must be aligned to PLAN_ALIGNMENT and outlive the engine; `name` is for messages. */
bool engine_open_memory(struct engine *engine, const void *data, uint64_t size, const char *name,
                        struct status *status);
bool engine_verify_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count,
                           struct status *status);
/* Where a chunk lies in the weights: each rank's region has chunks of its own, as many as the others'. */
void engine_chunk(const struct engine *engine, uint64_t chunk, uint64_t *offset, uint64_t *bytes);
/* Copies whole chunks to their places in `to`, which has room for all weights, and verifies the copies. */
bool engine_copy_weights(const struct engine *engine, uint64_t first_chunk, uint64_t chunk_count, uint8_t *to,
                         struct status *status);
/* file_map_unchanged, where the engine was opened from a file: the weights are those that were verified. */
bool engine_unchanged(const struct engine *engine, struct status *status);
/* Makes the engine use these weights, a verified copy that outlives it, and closes the file. Before anybody uses others. */
void engine_use_weights(struct engine *engine, const uint8_t *weights);
/* Copies bytes [offset, offset + bytes) of the weights: file_map_read, where the engine was opened from a file. */
bool engine_read_weights(const struct engine *engine, uint64_t offset, void *to, uint64_t bytes, struct status *status);
/* That bytes [offset, offset + bytes) of the weights, as far as there are such, are wanted soon: no more than advice. */
void engine_read_ahead(const struct engine *engine, uint64_t offset, uint64_t bytes);
void engine_close(struct engine *engine);

/* Names for people, from the file rather than from this program's tables (engine_names.c). Texts are borrowed from the
 * engine. Every op of a plan has a name. */
const char *engine_op_name(const struct engine *engine, unsigned op);
/* Name of the launch's kernel or library call; CPU: of its op. */
const char *engine_kernel_name(const struct engine *engine, const struct plan_launch *launch);
/* NULL: the file does not name it. */
const char *engine_operand_name(const struct engine *engine, const struct plan_launch *launch, unsigned operand);
/* Value of the launch's parameter of that name, regardless of case. False: it is absent, or the file names none so. */
bool engine_param(const struct engine *engine, const struct plan *plan, const struct plan_launch *launch,
                  const char *name, int64_t *value);

/* Writer: begin, weights, sections, end. Same contents, same bytes. The weights may come before, between or after the
 * other sections, but as one run. A section of size 0 is left out. The manifest is parsed as it is written (the header
 * repeats its builder version). After a failure only engine_writer_abandon makes sense. */
struct engine_writer; /* opaque */
struct engine_writer *engine_writer_begin(const char *path, struct status *status);
/* `regions`: of the ranks, equal parts of the total. */
bool engine_writer_weights_begin(struct engine_writer *writer, uint64_t total_bytes, uint64_t regions,
                                 struct status *status);
/* Writes bytes [offset, offset + size) of the weights: whole chunks (weight_chunk_range). Each chunk once, in any order;
 * several threads may, until engine_writer_weights_end. */
bool engine_writer_weights_put(struct engine_writer *writer, uint64_t offset, const void *data, uint64_t size,
                               struct status *status);
bool engine_writer_weights_end(struct engine_writer *writer, struct status *status);
/* A read-only mapping of the weight section, filled as far as was written at the time of the call (for tuning and golden
 * outputs before the file is complete). Valid until the writer ends. */
bool engine_writer_map_weights(struct engine_writer *writer, const uint8_t **weights, struct status *status);
bool engine_writer_section(struct engine_writer *writer, enum engine_section id, const void *data, uint64_t size,
                           bool compress, struct status *status);
/* Tensors in any order; the section has them by rising offset. Plans in the order that struct engine demands. */
bool engine_writer_tensors(struct engine_writer *writer, const struct engine_tensor *tensors, size_t count,
                           struct status *status);
bool engine_writer_plans(struct engine_writer *writer, const struct plan *plans, size_t count,
                         const struct plan_geometry *geometry, struct status *status);
/* Compressed. Two kernels may have the same entry name: launches refer to them by index. */
bool engine_writer_kernels(struct engine_writer *writer, const struct engine_kernel *kernels, size_t count,
                           struct status *status);
/* Plans that call libraries, in the order of the plans that they take the place of, and their calls. None of both: leaves
 * the sections out. */
bool engine_writer_library_plans(struct engine_writer *writer, const struct plan *plans, size_t count,
                                 struct status *status);
bool engine_writer_calls(struct engine_writer *writer, const struct engine_call *calls, size_t count,
                         struct status *status);
/* Names of one op, or of one device kernel. */
struct engine_name_table {
    unsigned op;      /* enum plan_op; kernels: 0 */
    const char *name; /* kernels: the entry, or the name that `calls` gives a library call */
    const char *const *operands;
    size_t operand_count;
    const char *const *params; /* by id, from 1 on; NULL: the op has no such parameter */
    size_t param_count;
};
/* Every op of the plans must have a table; kernels without one use their op's. `calls`: a name for each library call. */
bool engine_writer_names(struct engine_writer *writer, const struct engine_name_table *ops, size_t op_count,
                         const struct engine_name_table *kernels, size_t kernel_count, const char *const *calls,
                         size_t call_count, struct status *status);
bool engine_writer_golden(struct engine_writer *writer, const struct engine_golden *golden, struct status *status);
/* Writes header and table, syncs, renames; frees the writer whatever happens. */
bool engine_writer_commit(struct engine_writer *writer, struct status *status);
/* All of it but the name: the header, and the file's bytes brought to the disk. May be left out. */
bool engine_writer_finish(struct engine_writer *writer, struct status *status);
uint64_t engine_writer_bytes(const struct engine_writer *writer); /* of the file so far */
void engine_writer_abandon(struct engine_writer *writer);

#endif
