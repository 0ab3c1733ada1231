/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for AMX: activations rounded to bf16 or int8 and weights BF16 or coded; other launches take the code for AVX-512 with
 * BF16.
 *
 * TDPBF16PS sums the even and the odd k of 32 in a chain each, adds both, and adds that to the sum so far. It rounds to nearest
 * even and treats subnormal operands and results as zero, whatever the control register says. So launches of one row take it, too:
 * no other instruction gives the same bits, and it reads weights faster than memory does. */
#include "kernels/matmul/matmul_tile.h"

#if defined(__x86_64__)
#include "kernels/cpu/tiles_amx.h"
#include "kernels/matmul/matmul_quantise_avx512vnni.h"

#include "kernels/matmul/matmul_amx.h"

void matmul_run_amx(const struct op_call *call, struct team_member *member)
{
    if (!amx_run(call, member)) matmul_run_avx512bf16(call, member);
}
#endif
