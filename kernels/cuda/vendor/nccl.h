/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, opened at run time only if ranks exchange data through it. As in driver.h, the declarations repeat the
 * library's binary interface (2.18 and later, which keep it) with names of nccl.h: member `AllReduce` is ncclAllReduce,
 * and so on; nccl_abi_test.c compares them with it if there is one.
 *
 * Communicators are non-blocking, so that a call waits for other ranks no longer than its caller allows. Requires: one
 * thread at a time uses a struct nccl_rank; only nccl_abort may be called by another thread at the same time. */
#ifndef KERNELS_CUDA_VENDOR_NCCL_H
#define KERNELS_CUDA_VENDOR_NCCL_H

#include "formats/encoding/dtype.h"
#include "kernels/cuda/device.h"

typedef int nccl_result; /* 0: success */
typedef struct nccl_comm_opaque *nccl_comm;

enum { NCCL_LEAST_VERSION = 21800 }; /* non-blocking communicators that can be finalized and aborted at any time */

enum nccl_value {
    NCCL_SUCCESS = 0,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
    NCCL_UINT8 = 1, /* ncclDataType_t */
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_BFLOAT16 = 9,
    NCCL_SUM = 0, /* ncclRedOp_t */
};

/* ncclUniqueId: created by one rank and sent to all others by any means. Functions take it by value. */
struct nccl_id {
    uint8_t bytes[128];
};

/* ncclConfig_t of 2.18; later versions append members and use `bytes` and `version`. */
struct nccl_config {
    size_t bytes;
    unsigned magic, version;
    int blocking;
    int cluster_size, least_blocks, most_blocks;
    const char *net_name;
    int split_share;
    int later; /* padding in 2.18, a member later: must be undefined, too */
};
_Static_assert(sizeof(struct nccl_config) == 48, "ncclConfig_t of 2.18");
#define NCCL_CONFIG_MAGIC     0xcafebeefu
#define NCCL_CONFIG_UNDEFINED (-2147483647 - 1)

/* X(member, symbol, result, parameters): every function that is looked up. */
#define NCCL_FUNCTIONS(X)                                                                                    \
    X(GetVersion, ncclGetVersion, nccl_result, (int *version))                                               \
    X(GetErrorString, ncclGetErrorString, const char *, (nccl_result result))                                \
    X(GetLastError, ncclGetLastError, const char *, (nccl_comm comm))                                        \
    X(GetUniqueId, ncclGetUniqueId, nccl_result, (struct nccl_id * id))                                      \
    X(CommInitRankConfig, ncclCommInitRankConfig, nccl_result,                                               \
      (nccl_comm * comm, int ranks, struct nccl_id id, int rank, struct nccl_config *config))                \
    X(CommGetAsyncError, ncclCommGetAsyncError, nccl_result, (nccl_comm comm, nccl_result * result))         \
    X(CommFinalize, ncclCommFinalize, nccl_result, (nccl_comm comm))                                         \
    X(CommDestroy, ncclCommDestroy, nccl_result, (nccl_comm comm))                                           \
    X(CommAbort, ncclCommAbort, nccl_result, (nccl_comm comm))                                               \
    X(AllReduce, ncclAllReduce, nccl_result,                                                                 \
      (const void *from, void *to, size_t count, int type, int operation, nccl_comm comm, cu_stream stream)) \
    X(AllGather, ncclAllGather, nccl_result,                                                                 \
      (const void *from, void *to, size_t count, int type, nccl_comm comm, cu_stream stream))

struct nccl {
    void *library;    /* of dlopen; NULL: not open */
    uint32_t version; /* as ncclGetVersion: 10000 * major + 100 * minor + patch */
#define NCCL_MEMBER(member, symbol, result, parameters) result(*member) parameters;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* Polled, by any thread, while a call waits for other ranks: false ends the wait. For processes with another channel
 * between them. */
struct nccl_watch {
    bool (*is_well)(void *context);
    void *context;
};

struct nccl_gate;
struct nccl_rank {
    const struct nccl *nccl; /* borrowed, as is the device: both must outlive the rank */
    const struct device *device;
    nccl_comm comm; /* NULL: not joined */
    uint32_t rank, ranks;
    double longest_seconds;  /* limit of a call's wait for other ranks */
    struct nccl_watch watch; /* is_well NULL: none */
    struct nccl_gate *gate;  /* owned: synchronises nccl_abort with calls on other threads */
};

/* Opens libnccl.so.2. STATUS_MACHINE, with expected, found and remedy, if it is missing, older than NCCL_LEAST_VERSION
 * or lacks a function. Sets NCCL_NVLS_ENABLE=0 in the environment of the process, which NCCL reads once. Requires: no
 * other thread uses the environment, and no communicator exists yet. */
bool nccl_open(struct nccl *nccl, struct status *status);
void nccl_close(struct nccl *nccl); /* does nothing on one that is all zero. Requires: no rank is joined. */

/* Creates an id for one communicator. Requires: this process lives until all ranks have joined, which connect through
 * it. */
bool nccl_make_id(const struct nccl *nccl, struct nccl_id *id, struct status *status);

/* Joins as rank `rank` of `ranks`, each on a different GPU, and waits for all. STATUS_MACHINE after longest_seconds
 * without the others, and for errors of NCCL; *rank is then all zero. longest_seconds and watch (may be NULL) also
 * apply to later calls. Requires: each rank has its own thread or process; the device's context is current, here and
 * below. */
bool nccl_join(struct nccl_rank *joined, const struct nccl *nccl, const struct device *device, const struct nccl_id *id,
               uint32_t rank, uint32_t ranks, double longest_seconds, const struct nccl_watch *watch,
               struct status *status);

/* Whether no error has occurred, without waiting: for a host that waits for a step, which never ends if another rank
 * has ended. STATUS_MACHINE with NCCL's reason, also after nccl_abort. After a failure only nccl_leave is useful. */
bool nccl_ok(const struct nccl_rank *rank, struct status *status);

/* Queue a collective on the stream, which may be capturing (CU_STREAM_CAPTURE_MODE_RELAXED: the launch may come from a
 * thread of NCCL's); all ranks queue the same ones in the same order. Return once it is queued, which on the first ones
 * can need the other ranks too. from and to may be the same memory (all_gather: from in its place in to).
 * all_reduce: to[i] = sum over ranks of from[i]; F32, F16, BF16   from [count]   to [count]
 * all_gather: to[r] = from of rank r                              from [bytes]   to [ranks, bytes] */
bool nccl_all_reduce(const struct nccl_rank *rank, enum dtype dtype, cu_deviceptr from, cu_deviceptr to, uint64_t count,
                     cu_stream stream, struct status *status);
bool nccl_all_gather(const struct nccl_rank *rank, cu_deviceptr from, cu_deviceptr to, uint64_t bytes, cu_stream stream,
                     struct status *status);

/* Ends kernels and calls that wait for a rank that has ended; results are undefined, and later calls fail. Any thread,
 * any context; further calls do nothing. Returns within a second; kernels end soon after, and the rest continues on a
 * thread of its own. The caller then destroys the graphs and calls nccl_leave. */
void nccl_abort(const struct nccl_rank *rank);

/* Leaves the communicator and zeroes *rank; does nothing if it is all zero. Returns within seconds, whatever other
 * ranks do. Any context. Requires: no other thread uses the rank, and graphs that captured its collectives are
 * destroyed; otherwise NCCL waits for them, and its resources are lost. */
void nccl_leave(struct nccl_rank *rank);

#endif
