/* SPDX-License-Identifier: Apache-2.0 */
/* The engine file with every checksum recomputed after each mutation, so that the checks of structure are what is
 * tried, and behind them the checks of each op. */
#include "tests/fuzz/engine_fix_up.h"
#include "tests/fuzz/engine_try.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return try_engine(data, size); }
