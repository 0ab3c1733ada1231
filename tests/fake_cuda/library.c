/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/library.h"

#include <dlfcn.h>
#include <string.h>

static bool look_up(void *driver, const char *name, void *function)
{
    void *address = dlsym(driver, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

bool fake_library_open(struct fake_library *library, const char *cubin, const char *name)
{
    struct cuda_driver *driver = &library->driver;
    cu_kernel kernel;
    memset(library, 0, sizeof *library);
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *from = driver->library;
    if (from && look_up(from, "cuLibraryLoadData", &driver->LibraryLoadData) &&
        look_up(from, "cuLibraryUnload", &driver->LibraryUnload) &&
        look_up(from, "cuLibraryGetKernel", &driver->LibraryGetKernel) &&
        look_up(from, "cuKernelGetFunction", &driver->KernelGetFunction) &&
        look_up(from, "cuLaunchKernelEx", &driver->LaunchKernelEx) &&
        driver->LibraryLoadData(&library->module, cubin, NULL, NULL, 0, NULL, NULL, 0) == CU_SUCCESS &&
        driver->LibraryGetKernel(&kernel, library->module, name) == CU_SUCCESS &&
        driver->KernelGetFunction(&library->function, kernel) == CU_SUCCESS)
        return true;
    fake_library_close(library);
    return false;
}

void fake_library_close(struct fake_library *library)
{
    if (library->module) library->driver.LibraryUnload(library->module);
    if (library->driver.library) dlclose(library->driver.library);
    memset(library, 0, sizeof *library);
}

bool fake_library_launch(const struct fake_library *library, void **arguments, cu_stream stream)
{
    const struct cu_launch_config config = {.grid = {1, 1, 1}, .block = {128, 1, 1}, .stream = stream};
    return library->driver.LaunchKernelEx(&config, library->function, arguments, NULL) == CU_SUCCESS;
}
