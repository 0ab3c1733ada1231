/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/test_graph.h"

#include "formats/base/test_support.h"

char *test_graph_text(const struct graph *graph)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    graph_dump(graph, out);
    assert_int_equal(fclose(out), 0);
    const char *nodes = strchr(text, '\n') + 1;
    memmove(text, nodes, strlen(nodes) + 1);
    return text;
}

void test_graph_expect(const struct graph *graph, const char *expected)
{
    struct status status = {0};
    test_expect_success(graph_check(graph, "the test", &status), &status);
    char *found = test_graph_text(graph);
    if (strcmp(found, expected) != 0) fail_msg("expected\n%sfound\n%s", expected, found);
    free(found);
}
