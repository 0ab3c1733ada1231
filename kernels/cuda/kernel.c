/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/kernel.h"

int device_add_candidate(const struct device_kernel *kernel, const int64_t *params, const int64_t *own,
                         const struct device_facts *gpu, int64_t (*found)[PLAN_MAX_PARAMS], int count, int capacity)
{
    const size_t problem = (size_t)device_problem_count(kernel);
    int64_t candidate[PLAN_MAX_PARAMS] = {0};
    struct device_geometry geometry;
    if (count >= capacity) return count;
    memcpy(candidate, params, problem * sizeof *candidate);
    memcpy(candidate + problem, own, (size_t)kernel->own_count * sizeof *candidate);
    if (kernel->launch(candidate, gpu, &geometry)) return count;
    for (int i = 0; i < count; i++)
        if (memcmp(found[i], candidate, sizeof candidate) == 0) return count;
    memcpy(found[count], candidate, sizeof candidate);
    return count + 1;
}
