/* SPDX-License-Identifier: Apache-2.0 */
/* From a checkpoint's configuration to a graph: config.json is read and the graph is built by the family of models that
 * its model_type names. arch.c lists the families. */
#ifndef BUILDER_ARCH_ARCH_H
#define BUILDER_ARCH_ARCH_H

#include "builder/graph/graph.h"

/* The reader of config.json that checkpoint_open and model_config_parse take. Fails for a model_type that is not in the
 * list: names the family that is nearest and what its fields would leave over. */
model_config_reader arch_read_config;

/* Adds the first layer that predicts further tokens to the layers of the model: config->predicts. Fails where the family or the checkpoint's
 * configuration has none. */
bool arch_add_predictor(struct model_config *config, struct status *status);

/* Builds the graph of `kind` for the configuration that graph_init was given. */
bool import_graph(struct graph *graph, struct status *status);

enum { ARCH_ABOUT_BYTES = 320 };

/* The model types of families and then of wrappers, each in the order of its list, and a line about each; NULL and false after the
 * last. `about`: [ARCH_ABOUT_BYTES]. */
const char *arch_model_type(size_t index);
bool arch_about(size_t index, char *about);

#endif
