/* SPDX-License-Identifier: Apache-2.0 */
// libFuzzer's own mutations followed by the target's fix-up, as in the standalone driver.

#include "tests/fuzz/fuzz.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
__attribute__((visibility("default"))) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                                                      unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    (void)seed;
    size = LLVMFuzzerMutate(data, size, max_size);
    return fuzz_fix_up ? fuzz_fix_up(data, size) : size;
}
