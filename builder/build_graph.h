/* SPDX-License-Identifier: Apache-2.0 */
/* The graphs of a build. Private to build*.c. */
#ifndef BUILDER_BUILD_GRAPH_H
#define BUILDER_BUILD_GRAPH_H

#include "builder/build_state.h"

/* Matrices without codes and 16-bit activations of a device have one dtype: bf16 where a matrix has codes, which kernels
 * multiply as bf16; else as asked, else that of the checkpoint's matrices, bf16 for wider ones. What config.json says counts
 * only where there are no tensors. */
enum dtype build_half_dtype(const struct build *build);

/* Sets build->joins, which all graphs have in common. Requires: build->rank_config is set. */
bool build_choose_joins(struct build *build, struct status *status);

/* The graph of all plans of a kind, or on GPUs of those that no other graph is for. */
const struct graph *build_graph_of(const struct build *build, enum plan_kind kind);
/* The graph of plans that multiply codes of activations. Requires: build->eight_bit_rows. */
const struct graph *build_eight_bit_graph_of(const struct build *build, enum plan_kind kind);

/* The encoding that a model without weights is assumed to have. */
enum encoding_id build_assumed_encoding(const struct build *build);

/* Imports the model for a target, the build's or the CPU, and runs the passes. Requires for few rows: the weights of build->decode
 * are bound. `rounds_to`: what matmuls of the CPU round activations to, as graph.h says. `is_engines`: false for the model that the
 * engine is compared with, which gets no static scales of its KV cache and is not dumped. */
bool build_make_graph(struct build *build, struct graph *graph, enum engine_target target, enum plan_kind kind,
                      enum graph_rows plan_rows, enum encoding_id rounds_to, bool is_engines, struct status *status);

/* The graph of the CUDA target that multiplies codes of activations, F8_E4M3 or I8, with weights. Requires: those of build->decode have their
 * places. */
bool build_make_eight_bit_graph(struct build *build, struct graph *graph, enum plan_kind kind, enum dtype codes,
                                struct status *status);

#endif
