/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_tile.h"
#include "kernels/matmul/test_matmul.h"

#if defined(__x86_64__)
#include "kernels/matmul/matmul_quantise_avx512vnni.h"
#include "kernels/matmul/test_tiles_amx.h"

#include "kernels/matmul/matmul_amx.h"

void test_matmul_run_emulated(const struct op_call *call, struct team_member *member)
{
    test_tiles_require(test_tiles.config.palette == 0);
    if (!amx_run(call, member)) matmul_run_avx512bf16(call, member);
    test_tiles_require(test_tiles.config.palette == 0); /* released */
}
#endif
