/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/vendor/nccl_call.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/vendor/nccl.h"

bool nccl_make_call(const int64_t *params, const void *blob, size_t blob_bytes, struct engine_call *call)
{
    (void)params, (void)blob, (void)blob_bytes;
    call->data = calloc(1, NCCL_CALL_BYTES);
    call->bytes = NCCL_CALL_BYTES;
    call->version = NCCL_LEAST_VERSION;
    return call->data != NULL;
}

bool nccl_check_call(const struct engine_call *call, uint32_t version, struct status *status)
{
    static const uint8_t expected[NCCL_CALL_BYTES];
    if (call->bytes != sizeof expected || memcmp(call->data, expected, sizeof expected) != 0)
        return status_fail(status, STATUS_CORRUPT, "NCCL: expected %zu bytes of zero, found %" PRIu64 " bytes",
                           sizeof expected, (uint64_t)call->bytes);
    return version >= call->version ||
           status_fail(status, STATUS_MACHINE,
                       "NCCL: expected version %" PRIu32 " or later, found %" PRIu32 "; install a later one",
                       call->version, version);
}
