/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the contents of all sections, which turn verified bytes into a verified engine. engine_read.c calls them
 * once header, table, padding and checksums are verified. Private to the reader. */
#ifndef FORMATS_ENGINE_ENGINE_VERIFY_H
#define FORMATS_ENGINE_ENGINE_VERIFY_H

#include "formats/engine/engine_layout.h"

/* The raw bytes of a section, 16-byte aligned, owned by the engine; bytes NULL: the engine has no such section. */
struct engine_part {
    const uint8_t *bytes;
    uint64_t size;
};
struct engine_parts {
    struct engine_part part[SECTION_COUNT]; /* by enum engine_section */
    char builder_version[32];               /* the header's */
};

/* engine_memory.c. Zeroed memory for `count` elements of `size` bytes, which counts against the engine's limit; NULL with a message. */
void *engine_take(struct engine *engine, uint64_t count, uint64_t size, struct status *status);
/* Frees such memory before the engine is closed; `bytes`: its size. */
void engine_give_back(struct engine *engine, void *memory, uint64_t bytes);

/* Called first. Requires: the manifest's bytes are read; of the other parts only the sizes are known (0: no such
 * section). The manifest bounds the other sections. */
bool engine_verify_manifest(struct engine *engine, const struct engine_parts *parts, struct status *status);
/* Fills the engine from the other parts. On failure the caller closes the engine. */
bool engine_verify_parts(struct engine *engine, const struct engine_parts *parts, struct status *status);

/* engine_plans.c. Library plans: after the plans and the library calls; the section may be absent. */
bool engine_verify_plans(struct engine *engine, const struct engine_part *part, uint64_t tactic_count,
                         struct status *status);
bool engine_verify_library_plans(struct engine *engine, const struct engine_part *part, uint64_t tactic_count,
                                 struct status *status);

/* Index of the plan that computes the same step as a library plan with our own kernels only; `count` if there is none.
 * Both lists are in the same order, so a search that starts after the previous result finds all of them in one pass
 * over plans[from, count). */
size_t engine_plan_twin(const struct plan *plans, size_t count, size_t from, const struct plan_header *header);

/* engine_names.c. After the plans and library plans. */
bool engine_verify_names(struct engine *engine, const struct engine_part *part, struct status *status);

/* engine_exchange.c. Checks the use of the COMM space in plans and library plans. */
bool engine_verify_exchange(const struct engine *engine, struct status *status);

/* engine_calls.c. The section may be absent. */
bool engine_verify_calls(struct engine *engine, const struct engine_part *part, struct status *status);

/* engine_golden.c. Each section may be absent. After the plans, in this order. */
bool engine_verify_golden(struct engine *engine, const struct engine_part *part, struct status *status);
bool engine_verify_golden_plans(struct engine *engine, const struct engine_part *part, struct status *status);
bool engine_verify_golden_drafts(struct engine *engine, const struct engine_part *part, struct status *status);

/* engine_kernels.c. The section may be absent; a launch of a device target needs it. */
bool engine_verify_kernels(struct engine *engine, const struct engine_part *part, struct status *status);
/* Checks of a launch on a device beyond plan_verify: its kernel, operand count, dimensions, tensor maps. */
bool engine_verify_device_launch(const struct engine *engine, const struct plan *plan, const struct plan_launch *launch,
                                 struct status *status);

#endif
