/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the host's C and device code both evaluate: how a launch divides its threads and shared memory
 * stands once, in files *_layout.cuh. Requires: parameters that the kernel's launch() has checked, so that nothing
 * overflows. */
#ifndef KERNELS_CUDA_INCLUDE_LAYOUT_CUH
#define KERNELS_CUDA_INCLUDE_LAYOUT_CUH

#ifdef __cplusplus
#define LAYOUT_FUNCTION __device__ constexpr
#else
#define LAYOUT_FUNCTION static inline
#endif

/* Bytes, elements or threads. */
typedef long long layout_size;

LAYOUT_FUNCTION layout_size layout_divide_up(layout_size a, layout_size b) { return (a + b - 1) / b; }
LAYOUT_FUNCTION layout_size layout_round_up(layout_size a, layout_size b) { return layout_divide_up(a, b) * b; }
LAYOUT_FUNCTION layout_size layout_larger(layout_size a, layout_size b) { return a > b ? a : b; }
LAYOUT_FUNCTION layout_size layout_smaller(layout_size a, layout_size b) { return a < b ? a : b; }

/* Threads of a block where the kernel has no tunable for it. */
enum { LAYOUT_ELEMENTWISE_THREADS = 256, LAYOUT_ROPE_TABLE_THREADS = 128, LAYOUT_DRAFT_THREADS = 1024 };

/* Neighbouring elements of a row that a thread of an elementwise kernel takes. */
LAYOUT_FUNCTION layout_size layout_elementwise_vector(layout_size width)
{
    return width % 8 == 0 ? 8 : width % 4 == 0 ? 4 : 1;
}

#endif
