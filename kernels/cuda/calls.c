#include "kernels/cuda/calls.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/matmul/matmul_cublaslt.h"

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

bool cuda_calls_open(struct cuda_calls *calls, const struct device *device, const struct engine_call *entries,
                     size_t count, struct status *status)
{
    uint32_t cublaslt_version;
    memset(calls, 0, sizeof *calls);
    if (!find_version(entries, count, LIBRARY_CUBLASLT, &cublaslt_version, status) || !device_enter(device, status))
        return false;
    bool ok = !cublaslt_version || cublaslt_open(&calls->cublaslt, cublaslt_version, status);
    device_leave(device);
    calls->entries = entries;
    calls->count = count;
    if (!ok) cuda_calls_close(calls, device);
    return ok;
}

void cuda_calls_close(struct cuda_calls *calls, const struct device *device)
{
    struct status ignored;
    status_clear(&ignored);
    if (calls->cublaslt.library) {
        bool entered = device_enter(device, &ignored);
        cublaslt_close(&calls->cublaslt);
        if (entered) device_leave(device);
    }
    memset(calls, 0, sizeof *calls);
}

/* What the operand count of the call must be, so that none is read that is not there. */
static const struct engine_call *find_call(const struct cuda_calls *calls, const struct plan *plan,
                                           const struct plan_launch *launch, struct status *status)
{
    const int64_t *params = plan->params + launch->first_param;
    if (launch->kernel >= calls->count) {
        status_fail(status, STATUS_INTERNAL, "library call %" PRIu32 " of %zu", launch->kernel, calls->count);
        return NULL;
    }
    const struct engine_call *call = &calls->entries[launch->kernel];
    if (launch->op != OP_MATMUL || call->library != LIBRARY_CUBLASLT ||
        launch->param_count < MATMUL_DEVICE_FIRST_TUNABLE || matmul_device_illegal(params) ||
        launch->operand_count != matmul_device_operand_count(params) + 1) {
        status_fail(status, STATUS_CORRUPT, "%s: not a call of '%s' with %u operands", plan_library_name(call->library),
                    plan_op_name(launch->op), launch->operand_count);
        return NULL;
    }
    return call;
}

/* The library reads and writes as far as the parameters say: the operands must reach that far. */
static bool check_operands(const struct plan *plan, const struct plan_launch *launch, const struct engine_call *call,
                           struct status *status)
{
    const int64_t *params = plan->params + launch->first_param;
    const struct plan_operand *operands = plan->operands + launch->first_operand;
    uint32_t workspace = launch->operand_count - 1u;
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        uint64_t expected =
            i < workspace ? matmul_device_operand_bytes(params, (int)i) : matmul_cublaslt_workspace(call);
        if (operands[i].bytes < expected)
            return status_fail(status, STATUS_CORRUPT,
                               "operand %" PRIu32 ": expected %" PRIu64 " bytes, found %" PRIu64, i, expected,
                               operands[i].bytes);
    }
    return true;
}

bool cuda_call_check(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                     struct status *status)
{
    const struct engine_call *call = find_call(calls, plan, launch, status);
    return call && check_operands(plan, launch, call, status) &&
           matmul_cublaslt_check(&calls->cublaslt, plan->params + launch->first_param, call, status);
}

bool cuda_call_run(const struct cuda_calls *calls, const struct plan *plan, const struct plan_launch *launch,
                   const cu_deviceptr *operands, cu_stream stream, struct status *status)
{
    const struct engine_call *call = find_call(calls, plan, launch, status);
    return call && check_operands(plan, launch, call, status) &&
           matmul_cublaslt_run(&calls->cublaslt, plan->params + launch->first_param, call, operands, stream, status);
}
