/* SPDX-License-Identifier: Apache-2.0 */
/* Ops: for every enum plan_op its schema, its cost, its plain reference and its CPU code. Builder, tuner and runtime know
 * ops only through this table; the kernels that run an op on a GPU are listed in kernels/cuda/registry.h.
 *
 * Files of an op: kernels/<op>/<op>.h is its contract; <op>_op.c defines its descriptor and includes the implementations
 * (<op>_vector.h, <op>_tile.h), which include the contract alone. */
#ifndef KERNELS_OP_OP_H
#define KERNELS_OP_OP_H

#include "kernels/cpu/team.h"
#include "kernels/op/schema.h"

/* Instruction sets with code of their own, slowest first. */
enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_AMX, CPU_ISA_COUNT };

/* A launch on the CPU with its operands resolved to addresses, each at its place in the schema, NULL where it is absent. KV
 * operands are the address in page 0 of the pool. */
struct op_call {
    const int64_t *params; /* the schema's, then the tunables of the CPU code */
    void *operands[PLAN_MAX_OPERANDS];
};

typedef void op_run(const struct op_call *call, struct team_member *member);

/* Bytes moved (each input read once, each output written once) and floating point operations at full row count. Attention:
 * at a context of so many tokens. */
typedef void op_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops);

struct op_descriptor {
    enum plan_op id;
    const char *name;
    const struct op_param *params;     /* [param_count] */
    const struct op_operand *operands; /* [operand_count] */
    int param_count, operand_count;
    bool
        finds_out_rows; /* of fields with a row for each token it reads those of its own rows, also where they are out rows: the op is
                          * row-wise all the same */
    int window; /* parameter: tokens of the KV pages that a row reads, 0: all; 0: the op reads none */

    /* Why parameters that are each in range are illegal together, NULL if they are legal. */
    const char *(*illegal)(const int64_t *params);
    /* Likewise, why they do not fit the engine; NULL: only the PARAM_OF_ENGINE parameters depend on it. */
    const char *(*misfit)(const int64_t *params, const struct plan_geometry *geometry);
    op_cost *cost; /* of the CPU code */

    /* Schema of a library's call of the op, where its operands differ from a kernel's; NULL: they do not. */
    const struct op_descriptor *call;

    /* CPU code; absent where run[CPU_PORTABLE] is NULL. */
    const char *const *tunables; /* [tunable_count]: names of the parameters after the schema's */
    int tunable_count;
    const char *(*cpu_illegal)(const int64_t *params); /* further demands of the CPU code; NULL: none */
    /* Good tunables without measuring, for the schema's parameters and a team of that size. NULL without tunables. */
    void (*default_tunables)(const int64_t *params, enum cpu_isa isa, int threads, int64_t *tunables);

    /* Plain and slow, one thread, accumulation in double where it matters: the reference of all tests. */
    void (*reference)(const struct op_call *call);
    /* Called by every member of the team; returns when this member's share is done (the caller has a barrier after it).
     * NULL for an instruction set without code of its own: the next slower one is used. */
    op_run *run[CPU_ISA_COUNT];
};

struct device_kernel; /* kernels/cuda/kernel.h: headers of ops name those of their op */

const struct op_descriptor *op_find(unsigned id); /* NULL for an unknown op */
/* The schema of a launch: that of its op, or of the op's library call. NULL for an unknown op. */
const struct op_descriptor *op_of_launch(const struct plan_launch *launch);

/* Demands on one operand of a launch. */
struct op_demand {
    const char *name;
    uint8_t operand;    /* its place in the schema */
    uint8_t space_mask; /* bit (1 << enum plan_space) for every space it may lie in */
    uint8_t access;     /* enum plan_access */
    uint8_t field;      /* OP_FIELD(...): the field of STEP or STATE that it must be; 0: any place in its space */
    uint64_t bytes;     /* least size */
};
/* Index data (tokens, slots, positions, pages) is trusted by the ops, so it may only come from where the submitter
 * put it: these operands are pinned to their field. */
#define OP_FIELD(field) ((uint8_t)(1 + (field)))
/* In the COMM space: the header at its start; operands not pinned to it lie after it. */
#define OP_FIELD_COMM_HEADER OP_FIELD(0)

/* Checks hostile parameters against schema and geometry, and lists the operands that a launch on the target has, in its
 * order: those of the schema that are present. After this returned true and the operands satisfy the demands, run and
 * reference stay inside them. `demands`: [PLAN_MAX_OPERANDS]. */
bool op_demands(const struct op_descriptor *op, enum engine_target target, const int64_t *params,
                const struct plan_geometry *geometry, struct op_demand *demands, int *count, struct status *status);

/* Why the parameters of the schema are illegal, NULL if they are legal: ranges, types and op->illegal. The text lies in
 * memory of the calling thread until its next call. Never trusts a parameter. */
const char *op_params_illegal(const struct op_descriptor *op, const int64_t *params);
/* The reason that there is no code for the encoding that parameter `param` has; in the same memory. */
const char *op_no_kernel(const struct encoding *encoding, const char *param);

/* For a launch on the target with these parameters: whether it has the operand, the operand's place in the launch's list (-1:
 * absent), and the number of operands in that list. */
bool op_has_operand(const struct op_descriptor *op, enum engine_target target, const int64_t *params, int operand);
int op_operand_position(const struct op_descriptor *op, enum engine_target target, const int64_t *params, int operand);
int op_operands_present(const struct op_descriptor *op, enum engine_target target, const int64_t *params);
/* Bytes of an operand that is present; false on overflow. */
bool op_operand_bytes(const struct op_descriptor *op, enum engine_target target, const int64_t *params,
                      const struct plan_geometry *geometry, int operand, uint64_t *bytes);
/* Elements of a row of an operand. */
uint64_t op_operand_width(const struct op_operand *operand, const int64_t *params);

/* Id of the first tunable of the op's kernels. */
unsigned op_first_tunable_id(const struct op_descriptor *op);
/* The parameters of a launch, which a plan lists by id, as the array that an op's code reads: the schema's, then as many
 * tunables. Fails for an unknown id that is essential; ignores others. Requires: the launch's op is known. */
bool op_params(const struct plan *plan, const struct plan_launch *launch, int tunables, int64_t *values,
               struct status *status);
/* The list for such an array, by rising ids, [PLAN_MAX_PARAMS]; without an op ids are 1, 2, ... `essential`: the schema's
 * parameters are marked so, not only those that came after 2.0. Returns how many. */
int op_list_params(const struct op_descriptor *op, const int64_t *values, int tunables, bool essential,
                   struct plan_param *list);
/* Removes the parameters whose absence has the same meaning from a plan whose arrays are owned. */
void op_leave_out_defaults(struct plan *plan);

/* Facts that follow from the schema. */
bool op_is_row_wise(const struct op_descriptor *op); /* row r of its outputs depends on row r of its inputs alone */
bool op_has_effect(const struct op_descriptor *op);  /* writes to KV, STEP or STATE */
uint8_t op_operand_access(const struct op_operand *operand); /* enum plan_access */

/* All checks of one launch on the target: known op, parameters, row counts, operand count, spaces, access, sizes, fields,
 * what may be written in STEP and STATE, no operand that is written half over another (the same offset is the op's own
 * affair). */
bool op_verify(const struct plan *plan, uint32_t launch, enum engine_target target,
               const struct plan_geometry *geometry, const char *name, struct status *status);

enum cpu_isa cpu_isa_best(void); /* the best one this processor and operating system support */
const char *cpu_isa_name(enum cpu_isa isa);
bool cpu_isa_supported(enum cpu_isa isa);
op_run *op_runner(const struct op_descriptor *op, enum cpu_isa isa); /* with the fallback to slower ones */

/* Parameters of a launch on the CPU: the schema's, then the tunables. */
static inline int op_cpu_param_count(const struct op_descriptor *op) { return op->param_count + op->tunable_count; }
static inline const char *op_cpu_param_name(const struct op_descriptor *op, int index)
{
    return index < op->param_count ? op->params[index].name : op->tunables[index - op->param_count];
}

/* Members of a descriptor: its schema, and the CPU code of an op that is written over vectors (kernels/cpu/vector_*.h); the
 * second for ops too small for wider vectors to matter. */
#define OP_SCHEMA(params_, operands_)                                                                        \
    .params = (params_), .param_count = (int)(sizeof(params_) / sizeof *(params_)), .operands = (operands_), \
    .operand_count = (int)(sizeof(operands_) / sizeof *(operands_))
#if defined(__x86_64__)
#define OP_VECTOR_RUN(op) \
    .run = {[CPU_PORTABLE] = op##_vector_run, [CPU_AVX2] = op##_run_avx2, [CPU_AVX512] = op##_run_avx512}
#define OP_NARROW_VECTOR_RUN(op) .run = {[CPU_PORTABLE] = op##_vector_run, [CPU_AVX2] = op##_run_avx2}
#else
#define OP_VECTOR_RUN(op)        .run = {[CPU_PORTABLE] = op##_vector_run}
#define OP_NARROW_VECTOR_RUN(op) OP_VECTOR_RUN(op)
#endif

/* Parameters 0 and 1 of every op: the most rows of the plan, and which of STEP_COUNTS says how many are valid. */
enum { OP_PARAM_ROWS = 0, OP_PARAM_COUNT_INDEX = 1 };
#define OP_ROWS_PARAMS                                                                                           \
    [OP_PARAM_ROWS] = {"rows", 1, PARAM_INTEGER, PARAM_OF_ROWS, .least = 1, .most = OP_MAX_ROWS, .fallback = 1}, \
    [OP_PARAM_COUNT_INDEX] = {"count_index", 2, PARAM_INTEGER, PARAM_OF_COUNT, .least = 0, .most = 1}
/* The same of an op that always works on out rows. */
#define OP_OUT_ROWS_PARAMS                                                                                       \
    [OP_PARAM_ROWS] = {"rows", 1, PARAM_INTEGER, PARAM_OF_ROWS, .least = 1, .most = OP_MAX_ROWS, .fallback = 1}, \
    [OP_PARAM_COUNT_INDEX] = {"count_index", 2, PARAM_INTEGER, PARAM_OF_COUNT, .least = 1, .most = 1, .fallback = 1}
/* A factor of the result that came after format 2.0: 1 where nothing gives one. */
#define OP_SCALE_PARAM(id_)                                                                                   \
    {                                                                                                         \
        "scale_bits", id_, PARAM_FLOAT, PARAM_OF_NODE, .least = OP_FLOAT_MIN_BITS, .most = OP_FLOAT_MAX_BITS, \
                                                       .fallback = OP_FLOAT_ONE_BITS                          \
    }
bool op_is_of_out_rows(const struct op_descriptor *op);
/* Operand 0 of every op: STEP_COUNTS. Rows beyond the valid ones are neither read nor written. */
enum { OP_OPERAND_COUNTS = 0 };
#define OP_COUNTS_OPERAND                                                             \
    [OP_OPERAND_COUNTS] = {"counts",        ROLE_STEP,          .field = STEP_COUNTS, \
                           .rows = OP_NONE, .columns = OP_NONE, .element_bytes = 2 * sizeof(int32_t)}
/* A field of the STEP space with one int32_t for each of so many rows (a parameter), and struct comm_header. */
#define OP_STEP_OPERAND(name_, field_, rows_)                                                        \
    {                                                                                                \
        name_, ROLE_STEP, .field = (field_), .fixed = DTYPE_I32, .rows = (rows_), .columns = OP_NONE \
    }
#define OP_HEADER_OPERAND                                                                     \
    {                                                                                         \
        "header", ROLE_HEADER, ACCESS_READ_WRITE, .rows = OP_NONE, .columns = OP_NONE,        \
                                                  .element_bytes = sizeof(struct comm_header) \
    }
/* Size of STATE_PAGE_TABLE. */
bool op_page_table_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                         uint64_t *bytes);

static inline int64_t op_valid_rows(const struct op_call *call)
{
    int64_t rows = ((const int32_t *)call->operands[OP_OPERAND_COUNTS])[call->params[OP_PARAM_COUNT_INDEX]];
    return rows < call->params[OP_PARAM_ROWS] ? rows : call->params[OP_PARAM_ROWS];
}

static inline float op_float_param(const int64_t *params, int index)
{
    return float_from_bits((uint32_t)params[index]);
}

/* Element of an array of F32, F16 or BF16. */
static inline float op_element(const void *array, int64_t index, enum dtype dtype)
{
    if (dtype == DTYPE_F32) return ((const float *)array)[index];
    uint16_t bits = ((const uint16_t *)array)[index];
    return dtype == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

#endif
