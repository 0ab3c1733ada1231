/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of one row, put into a panel by whole words: where panel_code finds them. */
#ifndef KERNELS_MATMUL_PACK_CODES_H
#define KERNELS_MATMUL_PACK_CODES_H

#include "kernels/matmul/panel.h"

/* Puts codes[count] of row `index` into lines or strips that follow each other from `to` on. Requires: count is a multiple of
 * line_k; `to` was zero bytes before its first row. */
void pack_codes(const struct panel_form *form, const uint8_t *codes, uint64_t count, uint64_t index, uint8_t *to);

#endif
