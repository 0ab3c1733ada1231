/* SPDX-License-Identifier: Apache-2.0 */
/* From the checkpoint's tensors to the engine's weight section: binding, layout, streamed packing. */
#ifndef BUILDER_WEIGHTS_WEIGHTS_H
#define BUILDER_WEIGHTS_WEIGHTS_H

#include "builder/graph/graph.h"
#include "builder/weights/weight_types.h"
#include "formats/checkpoint/checkpoint.h"
#include "kernels/cpu/team.h"

/* A checkpoint of the decoder alone lacks the first part of all names ("transformer.", "model."): sources get the names that it
 * has. bind_weights, choose_joins and column_orders_add do so. */
void weights_take_short_names(struct graph *graph, const struct checkpoint *checkpoint);

/* Checks that every tensor that sources name is there with its shape and a dtype that can be read, and that every element
 * of the checkpoint is in exactly one source, and decides each weight's encoding: what `types` asks for, or that of its
 * tensors, which vectors always keep. Where tensors of different dtypes become one weight, or arithmetic changes their
 * elements, it is F32; on a GPU matrices without codes have the graph's compute_dtype. Codes of quantised tensors stay as they
 * are where kernels can read them. */
bool bind_weights(struct graph *graph, const struct checkpoint *checkpoint, const struct weight_types *types,
                  struct status *status);

/* Without a checkpoint (dry run on a configuration): every weight that is of tensors gets `encoding`, or that of the codes which
 * its sources must have, unless `types` (NULL: nothing) asks for another. */
bool assume_weights(struct graph *graph, enum encoding_id encoding, const struct weight_types *types,
                    struct status *status);

/* `joins`: [layers], as of graph->joins, which made the graph. Removes each join of a layer where the two parts of a weight would have
 * different encodings as weights of their own, or a pattern of `types` is for one part alone, or
 * calibration (`calibrated`) is for one part alone. Requires: the passes have run. `checkpoint`
 * NULL, `assumed`: as assume_weights. */
void choose_joins(uint8_t *joins, struct graph *graph, const struct checkpoint *checkpoint, enum encoding_id assumed,
                  const struct weight_types *types, bool calibrated);

/* Fixes offset, in the rank's region, and size of every weight in use. total_bytes: of all ranks' regions, which are
 * alike and follow each other. */
bool plan_weights(struct graph *graph, uint64_t *total_bytes, struct status *status);

/* Same weights in the graph of the other plan kind, as imported: copies encodings. */
bool share_encodings(struct graph *to, const struct graph *from, struct status *status);

/* The same after the passes: copies encoding, offset and size. */
bool share_weights(struct graph *to, const struct graph *from, struct status *status);

/* Bytes [offset, offset + size) of the weight section, in the layout the kernels read: of all ranks' regions, zeros between
 * weights. Any thread. An element that is NaN or infinite, or would be in the weight's encoding, is a failure that names it. */
struct packer; /* opaque; borrows graph and checkpoint */
struct packer *packer_open(const struct graph *graph, const struct checkpoint *checkpoint, uint64_t total_bytes,
                           struct status *status);
bool packer_read(struct packer *packer, uint64_t offset, uint64_t size, uint8_t *to, struct status *status);
void packer_close(struct packer *packer); /* NULL is fine */

/* Called occasionally, by one thread, with the bytes packed so far. */
typedef void pack_progress(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* Streams all weights from the checkpoint's mapping into the file: by all of the team, same bytes whatever its size. Private
 * memory: a few megabytes for each thread. */
bool pack_weights(const struct graph *graph, const struct checkpoint *checkpoint, struct engine_writer *writer,
                  uint64_t total_bytes, struct team *team, pack_progress *progress, void *context,
                  struct status *status);

/* Number of weight elements as a model card counts them (a tied embedding once, no constants). */
uint64_t count_parameters(const struct graph *graph);

#endif
