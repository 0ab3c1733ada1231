/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of machine code for a GPU: an ELF file, which the driver's loader reads without knowing its length. */
#ifndef FORMATS_ENGINE_CUBIN_H
#define FORMATS_ENGINE_CUBIN_H

#include <stdint.h>

#include "formats/base/status.h"

/* Checks that the data are a 64-bit little-endian ELF file for CUDA whose tables, sections, names, symbols and
 * relocations lie inside `size` bytes and refer to each other inside their bounds; else STATUS_CORRUPT. Does not check
 * the instructions. */
bool cubin_verify(const void *bytes, uint64_t size, struct status *status);

#endif
