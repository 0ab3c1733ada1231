/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the recurrent state that a slot has on GPUs: for host and device code. See recurrent.h. */
#ifndef KERNELS_OP_RECURRENT_COPIES_CUH
#define KERNELS_OP_RECURRENT_COPIES_CUH

enum { RECURRENT_COPIES_CUDA = 2 };

#endif
