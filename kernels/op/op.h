/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of ops: for every enum plan_op its contract (operands, parameters, legality), its cost, its plain
 * reference and its CPU implementations. Builder, tuner and runtime know ops only through this table. */
#ifndef KERNELS_OP_OP_H
#define KERNELS_OP_OP_H

#include "formats/engine/plan.h"
#include "kernels/cpu/team.h"

/* Instruction sets with code of their own, slowest first. */
enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_ISA_COUNT };

/* What an op demands of one operand. */
struct op_operand {
    const char *name;
    uint8_t space_mask; /* bit (1 << enum plan_space) for every space it may lie in */
    uint8_t access;     /* enum plan_access */
    uint64_t bytes;     /* least size */
    uint8_t field;      /* OP_FIELD(...): the very field of STEP or STATE that it must be; 0: any place in its space */
};
/* Index data (tokens, slots, positions, pages) is trusted by the ops, so it may only come from where the submitter
 * put it: these operands are pinned to their field. */
#define OP_FIELD(field) ((uint8_t)(1 + (field)))
#define OP_IN_WEIGHTS   (1u << SPACE_WEIGHTS)
#define OP_IN_ARENA     (1u << SPACE_ARENA)
#define OP_IN_KV        (1u << SPACE_KV)
#define OP_IN_STEP      (1u << SPACE_STEP)
#define OP_IN_STATE     (1u << SPACE_STATE)
#define OP_IN_COMM      (1u << SPACE_COMM)
/* In the COMM space: the header that it begins with; operands that are not pinned to it lie behind it. */
#define OP_FIELD_COMM_HEADER OP_FIELD(0)

/* An operand that may be absent: its bit in space_mask. */
#define OP_OPTIONAL (1u << SPACE_NONE)

/* A launch with its operands resolved to addresses, NULL for absent ones and beyond the last. KV operands are the address
 * in page 0 of the pool. */
struct op_call {
    const int64_t *params;
    void *operands[PLAN_MAX_OPERANDS];
};

typedef void op_run(const struct op_call *call, struct team_member *member);

struct op_descriptor {
    enum plan_op id;
    const char *name;
    int param_count;
    const char *const *param_names; /* [param_count] */

    /* Checks hostile parameters against the contract and the engine's geometry, and fills what each operand must be.
     * After this returned true and the operands satisfy `operands`, run and reference stay inside them. */
    bool (*check)(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status);

    /* Bytes moved (each input read once, each output written once) and floating point operations at full row count.
     * Attention: at a context of max_context / 2. */
    void (*cost)(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops);

    /* Plain and slow, one thread, accumulation in double where it matters: the oracle. */
    void (*reference)(const struct op_call *call);

    /* Called by every member of the team; returns when this member's share is done (the caller has a barrier behind).
     * NULL for an instruction set without code of its own: the next slower one is used. [CPU_PORTABLE] never is. */
    op_run *run[CPU_ISA_COUNT];
};

const struct op_descriptor *op_find(unsigned id); /* NULL for an unknown op */

/* The parameters of a launch, which a plan lists by id, as the array that an op's code reads: values[id - 1], 0 where the
 * plan has none. Fails for an id above `count` that is essential; ignores others. */
bool op_params(const struct plan *plan, const struct plan_launch *launch, int count, int64_t *values,
               struct status *status);

/* The list for such an array: all `count` values, the first `essential` of them marked as essential. */
void op_list_params(const int64_t *values, int count, int essential, struct plan_param *list);

/* Takes the parameters that have their default, 0, out of a plan whose arrays are owned. */
void op_leave_out_defaults(struct plan *plan);

/* All checks of one launch: known op, parameters, op->check, row counts, operand count, spaces, access, sizes,
 * fields, what may be written in STEP and STATE, no operand that is written half over another (the same offset is
 * the op's own affair). */
bool op_verify(const struct plan *plan, uint32_t launch, const struct plan_geometry *geometry, const char *name,
               struct status *status);

enum cpu_isa cpu_isa_best(void); /* the best one this processor and operating system support */
const char *cpu_isa_name(enum cpu_isa isa);
bool cpu_isa_supported(enum cpu_isa isa);
op_run *op_runner(const struct op_descriptor *op, enum cpu_isa isa); /* with the fallback to slower ones */

/* Parameters 0 and 1 of every op: the most rows of the plan, and which of STEP_COUNTS says how many are valid. */
enum { OP_PARAM_ROWS = 0, OP_PARAM_COUNT_INDEX = 1 };
/* Operand 0 of every op: STEP_COUNTS. Rows beyond the valid ones are neither read nor written. */
enum { OP_OPERAND_COUNTS = 0 };

static inline int64_t op_valid_rows(const struct op_call *call)
{
    int64_t rows = ((const int32_t *)call->operands[OP_OPERAND_COUNTS])[call->params[OP_PARAM_COUNT_INDEX]];
    return rows < call->params[OP_PARAM_ROWS] ? rows : call->params[OP_PARAM_ROWS];
}

#endif
