/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as text, in the form of engbuild --dump-after. */
#ifndef BUILDER_TEST_GRAPH_H
#define BUILDER_TEST_GRAPH_H

#include "builder/graph/graph.h"

/* The nodes of a graph, a line each, without the title; the caller frees it. */
char *test_graph_text(const struct graph *graph);
/* The graph passes graph_check() and its nodes are these lines. */
void test_graph_expect(const struct graph *graph, const char *expected);

#endif
