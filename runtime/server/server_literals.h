/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of functions whose arguments are not JSON: in the syntax of Python, and Gemma's. Depth and size are bounded. Each gives
 * an owned value, or NULL if the text is something else or memory is lacking. */
#ifndef RUNTIME_SERVER_SERVER_LITERALS_H
#define RUNTIME_SERVER_SERVER_LITERALS_H

#include <jansson.h>
#include <stddef.h>

/* [f(a=1, b='x'), g()]: an array of {"name": ..., "arguments": {...}}. Values are literals: numbers, strings, lists, dicts,
 * True, False, None and their names in JSON. */
json_t *server_python_calls(const char *text, size_t size);

/* {key:1,other:<|"|>text<|"|>}: an object. */
json_t *server_gemma_object(const char *text, size_t size);

#endif
