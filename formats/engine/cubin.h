/* SPDX-License-Identifier: Apache-2.0 */
/* Machine code for a GPU: an ELF file, which the driver's loader reads without being told how long it is. */
#ifndef FORMATS_ENGINE_CUBIN_H
#define FORMATS_ENGINE_CUBIN_H

#include <stdint.h>

#include "formats/base/status.h"

/* Whether it is a 64-bit little-endian ELF file for CUDA whose tables, sections, names, symbols and relocations lie inside
 * `size` bytes and refer to each other inside their bounds. STATUS_CORRUPT if not. What the code does is its own affair. */
bool cubin_verify(const void *bytes, uint64_t size, struct status *status);

#endif
