/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/calls.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/all_reduce/all_reduce_nccl.h"
#include "kernels/attention/attention_cudnn_calls.h"
#include "kernels/cuda/vendor/nccl_call.h"
#include "kernels/matmul/matmul_cublaslt.h"
#include "kernels/op/op.h"

/* The version that the calls of a library were recorded with; 0: there are none. */
static bool find_version(const struct engine_call *entries, size_t count, enum plan_library library, uint32_t *version,
                         struct status *status)
{
    *version = 0;
    for (size_t i = 0; i < count; i++) {
        if (entries[i].library != library) continue;
        if (entries[i].version == 0 || (*version && entries[i].version != *version))
            return status_fail(status, STATUS_CORRUPT,
                               "library call %zu: %s in version %" PRIu32 ", others in %" PRIu32, i,
                               plan_library_name(library), entries[i].version, *version);
        *version = entries[i].version;
    }
    return true;
}

static bool open_cudnn(struct cuda_calls *calls, uint32_t version, struct status *status)
{
    if (!cudnn_open(&calls->cudnn, version, status)) return false;
    calls->attention = attention_cudnn_calls_new(&calls->cudnn, status);
    return calls->attention != NULL;
}

bool cuda_calls_open(struct cuda_calls *calls, const struct device *device, const struct engine_call *entries,
                     size_t count, const struct nccl_rank *nccl, struct status *status)
{
    uint32_t cublaslt_version, cudnn_version, nccl_version;
    memset(calls, 0, sizeof *calls);
    for (size_t i = 0; i < count; i++)
        if (entries[i].library >= LIBRARY_COUNT)
            return status_fail(
                status, STATUS_MACHINE,
                "library call %zu: expected cuBLASLt, cuDNN or NCCL, found library %d, which a newer runtime "
                "knows; use the runtime that came with the builder",
                i, (int)entries[i].library);
    if (!find_version(entries, count, LIBRARY_CUBLASLT, &cublaslt_version, status) ||
        !find_version(entries, count, LIBRARY_CUDNN, &cudnn_version, status) ||
        !find_version(entries, count, LIBRARY_NCCL, &nccl_version, status))
        return false;
    if (nccl_version && !nccl) return status_fail(status, STATUS_MACHINE, "NCCL: the ranks have no communicator");
    if (!device_enter(device, status)) return false;
    bool ok = (!cublaslt_version || cublaslt_open(&calls->cublaslt, cublaslt_version, status)) &&
              (!cudnn_version || open_cudnn(calls, cudnn_version, status));
    device_leave(device);
    calls->entries = entries;
    calls->count = count;
    calls->nccl = nccl;
    if (!ok) cuda_calls_close(calls, device);
    return ok;
}

bool cuda_calls_borrow(struct cuda_calls *calls, const struct cublaslt *cublaslt, const struct cudnn *cudnn,
                       const struct nccl_rank *nccl, struct status *status)
{
    *calls = (struct cuda_calls){.cublaslt = *cublaslt, .cudnn = *cudnn, .nccl = nccl, .borrows = true};
    if (!cudnn->library) return true;
    calls->attention = attention_cudnn_calls_new(cudnn, status);
    return calls->attention != NULL;
}

void cuda_calls_close(struct cuda_calls *calls, const struct device *device)
{
    if (calls->cublaslt.library || calls->cudnn.library) {
        bool entered = device_enter(device, NULL);
        attention_cudnn_calls_free(calls->attention);
        if (!calls->borrows) {
            cudnn_close(&calls->cudnn);
            cublaslt_close(&calls->cublaslt);
        }
        if (entered) device_leave(device);
    }
    memset(calls, 0, sizeof *calls);
}

/* The op that the launch's call computes, by its library. */
static bool is_for_op(const struct engine_call *call, const struct plan_launch *launch)
{
    switch ((enum plan_library)call->library) {
    case LIBRARY_CUBLASLT: return launch->op == OP_MATMUL;
    case LIBRARY_CUDNN: return launch->op == OP_ATTENTION;
    case LIBRARY_NCCL: return plan_op_is_collective(launch->op);
    default: return false;
    }
}

static bool is_matmul(const struct cuda_calls *calls, const struct plan_launch *launch, const int64_t *params)
{
    return calls->cublaslt.library && !matmul_device_illegal(params) &&
           launch->operand_count == matmul_device_operand_count(params) + 1;
}

/* A chunk of one prompt: what cuDNN is told of a batch of sequences would be wrong. */
static bool is_attention(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                         const int64_t *params)
{
    return calls->attention && plan->header.kind == PLAN_PREFILL && !attention_cudnn_illegal(params) &&
           launch->operand_count == ATTENTION_CUDNN_OPERANDS;
}

/* The number of ranks is the last thing that a hostile engine could get wrong of a problem. */
static bool is_collective(const struct cuda_calls *calls, const struct plan_launch *launch, const int64_t *params)
{
    if (!calls->nccl) return false;
    if (launch->op == OP_ALL_REDUCE)
        return all_reduce_nccl_bytes(params) > 0 && !params[ALL_REDUCE_HAS_RESIDUAL] && !params[ALL_REDUCE_HAS_NORM] &&
               params[ALL_REDUCE_RANKS] == calls->nccl->ranks && launch->operand_count == ALL_REDUCE_CALL_OPERANDS;
    return all_gather_nccl_bytes(params, ALL_GATHER_CALL_GATHERED) > 0 &&
           params[ALL_GATHER_RANKS] == calls->nccl->ranks && launch->operand_count == ALL_GATHER_CALL_OPERANDS;
}

/* The launch's call, if its library is open for it and it has the operands that the call takes; and its parameters. */
static const struct engine_call *find_call(const struct cuda_calls *calls, const struct plan *plan,
                                           const struct plan_launch *launch, int64_t params[PLAN_MAX_PARAMS],
                                           struct status *status)
{
    if (launch->kernel >= calls->count) {
        status_fail(status, STATUS_INTERNAL, "library call %" PRIu32 " of %zu", launch->kernel, calls->count);
        return NULL;
    }
    const struct engine_call *call = &calls->entries[launch->kernel];
    bool fits = is_for_op(call, launch);
    if (fits && !op_params(plan, launch, 0, params, status)) return NULL; /* tunables are the call's data */
    if (fits)
        fits = call->library == LIBRARY_CUBLASLT ? is_matmul(calls, launch, params)
               : call->library == LIBRARY_CUDNN  ? is_attention(calls, plan, launch, params)
                                                 : is_collective(calls, launch, params);
    if (fits) return call;
    status_fail(status, STATUS_CORRUPT, "%s: not a call of '%s' with %u operands", plan_library_name(call->library),
                plan_op_name(launch->op), launch->operand_count);
    return NULL;
}

static uint64_t operand_bytes(const struct engine_call *call, const struct plan_launch *launch, const int64_t *params,
                              uint32_t operand)
{
    if (call->library == LIBRARY_CUDNN) return attention_cudnn_operand_bytes(params, call, (int)operand);
    if (call->library == LIBRARY_NCCL) /* which reads no counts */
        return operand == 0                  ? 0
               : launch->op == OP_ALL_REDUCE ? all_reduce_nccl_bytes(params)
                                             : all_gather_nccl_bytes(params, (enum all_gather_call_operand)operand);
    return operand + 1u < launch->operand_count ? matmul_device_operand_bytes(params, (int)operand)
                                                : matmul_cublaslt_workspace(call);
}

/* Results and workspace: what the library writes must be declared, and lie where results do. */
static bool is_written(const struct engine_call *call, const struct plan_launch *launch, uint32_t operand)
{
    if (call->library == LIBRARY_NCCL) return operand + 1u == launch->operand_count;
    uint32_t out = call->library == LIBRARY_CUDNN ? (uint32_t)ATTENTION_OUT : (uint32_t)MATMUL_OUT;
    return operand == out || operand + 1u == launch->operand_count;
}

/* The library reads and writes as far as the parameters say: the operands must reach that far. */
static bool check_operands(const struct plan *plan, const struct plan_launch *launch, const struct engine_call *call,
                           const int64_t *params, struct status *status)
{
    const struct plan_operand *operands = plan->operands + launch->first_operand;
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        uint64_t expected = operand_bytes(call, launch, params, i);
        if (operands[i].bytes < expected)
            return status_fail(status, STATUS_CORRUPT,
                               "operand %" PRIu32 ": expected %" PRIu64 " bytes, found %" PRIu64, i, expected,
                               operands[i].bytes);
        bool result =
            operands[i].access & ACCESS_WRITE && (operands[i].space == SPACE_ARENA || operands[i].space == SPACE_STEP);
        if (is_written(call, launch, i) && !result)
            return status_fail(status, STATUS_CORRUPT,
                               "operand %" PRIu32 ": expected one in the arena or the step that is written, found %s",
                               i, plan_space_name(operands[i].space));
    }
    return true;
}

bool cuda_call_check(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                     struct status *status)
{
    int64_t params[PLAN_MAX_PARAMS];
    const struct engine_call *call = find_call(calls, plan, launch, params, status);
    if (!call) return false;
    bool ok = call->library == LIBRARY_CUDNN  ? attention_cudnn_calls_check(calls->attention, params, call, status)
              : call->library == LIBRARY_NCCL ? nccl_check_call(call, calls->nccl->nccl->version, status)
                                              : matmul_cublaslt_check(&calls->cublaslt, params, call, status);
    return ok && check_operands(plan, launch, call, params, status);
}

bool cuda_call_run(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                   const cu_deviceptr *operands, uint64_t pool_bytes, cu_stream stream, struct status *status)
{
    int64_t params[PLAN_MAX_PARAMS];
    const struct engine_call *call = find_call(calls, plan, launch, params, status);
    if (!call || !check_operands(plan, launch, call, params, status)) return false;
    if (call->library == LIBRARY_CUDNN)
        return attention_cudnn_calls_run(calls->attention, params, call, operands, pool_bytes, stream, status);
    if (call->library == LIBRARY_NCCL)
        return launch->op == OP_ALL_REDUCE ? all_reduce_nccl_run(calls->nccl, params, operands, stream, status)
                                           : all_gather_nccl_run(calls->nccl, params, operands, stream, status);
    return matmul_cublaslt_run(&calls->cublaslt, params, call, operands, stream, status);
}
