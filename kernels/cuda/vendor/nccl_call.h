/* SPDX-License-Identifier: Apache-2.0 */
/* Data of an NCCL call in an engine: only the least version, since NCCL chooses its algorithms at run time. */
#ifndef KERNELS_CUDA_VENDOR_NCCL_CALL_H
#define KERNELS_CUDA_VENDOR_NCCL_CALL_H

#include "formats/engine/engine_file.h"

/* The data: u64, 0. */
enum { NCCL_CALL_BYTES = 8 };

/* struct device_kernel.call of NCCL's collectives. */
bool nccl_make_call(const int64_t *params, const void *blob, size_t blob_bytes, struct engine_call *call);
/* Checks that the call has this form, with a version that `version` can replace. */
bool nccl_check_call(const struct engine_call *call, uint32_t version, struct status *status);

#endif
