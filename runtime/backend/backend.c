/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/backend.h"

const struct backend_type *backend_for(const struct eng_engine *engine)
{
    bool ranks = plan_ranks(&engine->file.manifest.geometry) > 1;
    if (engine->cuda) return ranks ? &backend_cuda_ranks : &backend_cuda;
    return ranks ? &backend_cpu_ranks : &backend_cpu;
}
