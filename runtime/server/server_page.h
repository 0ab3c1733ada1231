/* SPDX-License-Identifier: Apache-2.0 */
/* The page at "/": HTML with its style and its script, made of page/ by the build (.bazel/embed_page.py). */
#ifndef RUNTIME_SERVER_SERVER_PAGE_H
#define RUNTIME_SERVER_SERVER_PAGE_H

#include <stddef.h>

extern const char server_page[];
extern const size_t server_page_bytes;
/* The Content-Security-Policy without which the page must not be sent. */
extern const char server_page_policy[];

#endif
