/* SPDX-License-Identifier: Apache-2.0 */
/* A driver that fails: libcuda.so.1 in front of the real one, which it is linked with as libcuda_real.so, so that dlsym finds
 * all else there. Made and set by faults_cuda.py.
 *
 *   FAULTY_CUDA_GPU=N        whose graphs
 *   FAULTY_CUDA_LAUNCH=N     from which launch on
 *   FAULTY_CUDA_FAULT=TEXT   "vanish": nothing is launched; "fail": the launch returns CUDA_ERROR_LAUNCH_FAILED */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef int get_device_function(int *device);
typedef int launch_function(void *exec, void *stream);
enum { LAUNCH_FAILED = 719 };

static void *find(const char *name)
{
    void *library = dlopen("libcuda_real.so", RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

int cuGraphLaunch(void *exec, void *stream)
{
    static atomic_int launches;
    const char *gpu = getenv("FAULTY_CUDA_GPU"), *from = getenv("FAULTY_CUDA_LAUNCH"),
               *fault = getenv("FAULTY_CUDA_FAULT");
    get_device_function *get_device = (get_device_function *)find("cuCtxGetDevice");
    launch_function *launch = (launch_function *)find("cuGraphLaunch");
    int device = -1;
    if (!gpu || !from || !fault || !get_device || !launch) abort();
    if (get_device(&device) == 0 && device == atoi(gpu) && ++launches >= atoi(from))
        return strcmp(fault, "vanish") == 0 ? 0 : LAUNCH_FAILED;
    return launch(exec, stream);
}
