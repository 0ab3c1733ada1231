/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine stores of a call of NCCL: nothing but which version will do, since NCCL chooses its algorithms anew. */
#ifndef KERNELS_CUDA_VENDOR_NCCL_CALL_H
#define KERNELS_CUDA_VENDOR_NCCL_CALL_H

#include "formats/engine/engine_file.h"

/* The data: u64, 0. */
enum { NCCL_CALL_BYTES = 8 };

/* struct device_kernel.call of NCCL's collectives. */
bool nccl_make_call(const int64_t *params, const void *blob, size_t blob_bytes, struct engine_call *call);
/* That the call is of this form, for a version that `version` can stand in for. */
bool nccl_check_call(const struct engine_call *call, uint32_t version, struct status *status);

#endif
