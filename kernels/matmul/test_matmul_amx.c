/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/matmul_tile.h"
#include "kernels/matmul/test_matmul.h"

#if defined(__x86_64__)
#include "kernels/matmul/matmul_quantise_avx512vnni.h"
#include "kernels/matmul/test_tiles_amx.h"

#include "kernels/matmul/matmul_amx.h"

void test_matmul_run_emulated(const struct op_call *call, struct team_member *member)
{
    const bool has_bf16 = cpu_isa_supported(CPU_AVX512BF16);
    test_tiles_require(test_tiles.config.palette == 0);
    if (!has_bf16 && call->params[MATMUL_COMPUTE_DTYPE] != ENCODING_INT8_G32)
        matmul_run_avx512vnni(call, member);
    else if (!amx_run(call, member))
        (has_bf16 ? matmul_run_avx512bf16 : matmul_run_avx512vnni)(call, member);
    test_tiles_require(test_tiles.config.palette == 0); /* released */
}
#endif
