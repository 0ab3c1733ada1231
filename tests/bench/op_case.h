/* SPDX-License-Identifier: Apache-2.0 */
/* What benches of ops measure, on both targets: a case names an op and what it differs in; all else follows from the op's
 * schema, the model's shape and the engine's geometry. */
#ifndef TESTS_BENCH_OP_CASE_H
#define TESTS_BENCH_OP_CASE_H

#include "kernels/op/op.h"

/* A parameter that comes from a node, a weight or a value, by its name in the schema. */
struct op_setting {
    const char *name; /* NULL ends a list */
    int64_t value;
};

enum { OP_CASE_SETTINGS = 16 };
struct op_case {
    enum plan_op op;
    const char *what;
    int rows, context; /* context: tokens up to the last row's; 0: the op reads none */
    int prompt_rows;   /* of a mixed step: the last rows, all of a prompt of one sequence, from position 0 on */
    bool one_slot;     /* the rows are one sequence's; otherwise each has a slot, in turn, but for prompt_rows */
    struct op_setting settings[OP_CASE_SETTINGS];
    struct sampler_state sampler;
};

/* The schema's parameters: the case's settings, then what rows and geometry say, then the model's settings, then defaults. */
void op_case_params(const struct op_case *c, const struct op_setting *model, const struct plan_geometry *geometry,
                    int64_t *params);

/* `count` values of a field of the step; more than `rows` tokens are those of further steps. */
void op_case_step(const struct op_case *c, const struct plan_geometry *geometry, enum step_field field, int32_t *values,
                  uint64_t count);
/* A field of the state, zero before. Pages: page i of every slot, then page i + 1, as if all sequences had grown together. */
void op_case_state(const struct op_case *c, const struct plan_geometry *geometry, enum state_field field, void *values);

/* Like a language model's: most tokens near a normal distribution (deviation 2.5, as a sum of uniform numbers), a few
 * dozen that stand out. */
void op_case_logits(float *values, uint64_t count);

#endif
