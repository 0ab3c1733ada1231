/* SPDX-License-Identifier: Apache-2.0 */
/* Compares nccl.h of this folder with the library's own, as abi_test.c compares driver.h with cuda.h: all of it at
 * compile time. */
#include <stdio.h>

#include "formats/base/test_program.h"

#include "kernels/cuda/vendor/nccl.h"

#if __has_include(<nccl.h>)
#include <nccl.h>

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define SAME_SIZE(ours, theirs)  _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_MEMBER(ours, theirs)                                                                  \
    _Static_assert(offsetof(struct nccl_config, ours) == offsetof(ncclConfig_t, theirs) &&         \
                       sizeof((struct nccl_config *)0)->ours == sizeof((ncclConfig_t *)0)->theirs, \
                   #ours)

SAME_VALUE(NCCL_SUCCESS, ncclSuccess);
SAME_VALUE(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME_VALUE(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME_VALUE(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME_VALUE(NCCL_IN_PROGRESS, ncclInProgress);
SAME_VALUE(NCCL_UINT8, ncclUint8);
SAME_VALUE(NCCL_FLOAT16, ncclFloat16);
SAME_VALUE(NCCL_FLOAT32, ncclFloat32);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0) /* before, it is hidden from C */
SAME_VALUE(NCCL_BFLOAT16, ncclBfloat16);
#endif
SAME_VALUE(NCCL_SUM, ncclSum);
SAME_VALUE(NCCL_LEAST_VERSION, NCCL_VERSION(2, 18, 0));
SAME_VALUE(NCCL_CONFIG_UNDEFINED, NCCL_CONFIG_UNDEF_INT);

SAME_SIZE(nccl_result, ncclResult_t);
SAME_SIZE(struct nccl_id, ncclUniqueId);

/* The configuration: ours is the beginning of the library's, with the members of 2.18. */
_Static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t), "ncclConfig_t");
SAME_MEMBER(bytes, size);
SAME_MEMBER(magic, magic);
SAME_MEMBER(version, version);
SAME_MEMBER(blocking, blocking);
SAME_MEMBER(cluster_size, cgaClusterSize);
SAME_MEMBER(least_blocks, minCTAs);
SAME_MEMBER(most_blocks, maxCTAs);
SAME_MEMBER(net_name, netName);
SAME_MEMBER(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
SAME_MEMBER(later, trafficClass);
#endif

/* Parameter lists with our types replaced; enums of the library are int here. */
#define IS(symbol, result, ...) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), result(__VA_ARGS__)), #symbol)
IS(ncclGetVersion, ncclResult_t, int *);
IS(ncclGetErrorString, const char *, ncclResult_t);
IS(ncclGetLastError, const char *, ncclComm_t);
IS(ncclGetUniqueId, ncclResult_t, ncclUniqueId *);
IS(ncclCommInitRankConfig, ncclResult_t, ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
IS(ncclCommGetAsyncError, ncclResult_t, ncclComm_t, ncclResult_t *);
IS(ncclCommFinalize, ncclResult_t, ncclComm_t);
IS(ncclCommDestroy, ncclResult_t, ncclComm_t);
IS(ncclCommAbort, ncclResult_t, ncclComm_t);
IS(ncclAllReduce, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
IS(ncclAllGather, ncclResult_t, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);

static const bool compared = true;
#else
static const bool compared = false;
#endif

/* The magic number is only in an initializer of the library. */
TEST(declarations_agree)
{
#if __has_include(<nccl.h>)
    const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    assert_int_equal(theirs.magic, NCCL_CONFIG_MAGIC);
    assert_int_equal(theirs.blocking, NCCL_CONFIG_UNDEFINED);
#endif
    if (compared) return;
    fprintf(stderr, "skipped: no nccl.h to compare with\n");
    skip();
}

int main(void) { return test_run(); }
