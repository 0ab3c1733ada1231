/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>

#include "kernels/cuda/symbols.h"

static const char library_name[] = "libcuda.so.1"; /* the driver's library, not the toolkit's */

static bool look_up(struct cuda_driver *driver, struct status *status)
{
#define SYMBOL(member, symbol, parameters) {#symbol, &driver->member},
    const struct symbol symbols[] = {CUDA_DRIVER_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    const char *missing = symbols_missing(driver->library, symbols, sizeof symbols / sizeof *symbols);
    return !missing ||
           status_fail(status, STATUS_MACHINE,
                       "NVIDIA driver: expected the function %s, found a %s %d.%d without it; reinstall the "
                       "driver",
                       missing, library_name, driver->version / 1000, driver->version % 1000 / 10);
}

/* The version is checked first: an old driver lacks functions, and the remedy is to update it. */
static bool check_version(struct cuda_driver *driver, struct status *status)
{
    const struct symbol symbol = {"cuDriverGetVersion", &driver->DriverGetVersion};
    if (symbols_missing(driver->library, &symbol, 1))
        return status_fail(status, STATUS_MACHINE,
                           "NVIDIA driver: expected the function cuDriverGetVersion, found a %s without it; reinstall "
                           "the driver",
                           library_name);
    cu_result result = driver->DriverGetVersion(&driver->version);
    if (result != CU_SUCCESS)
        return status_fail(status, STATUS_MACHINE,
                           "NVIDIA driver: expected its version, found error %d of cuDriverGetVersion; reinstall the "
                           "driver",
                           result);
    if (driver->version < CU_DRIVER_LEAST_VERSION)
        return status_fail(status, STATUS_MACHINE,
                           "NVIDIA driver: expected one for CUDA %d.%d or later, found one for CUDA %d.%d; update the "
                           "driver",
                           CU_DRIVER_LEAST_VERSION / 1000, CU_DRIVER_LEAST_VERSION % 1000 / 10, driver->version / 1000,
                           driver->version % 1000 / 10);
    return true;
}

/* Remedy of an error of cuInit. */
static const char *remedy(cu_result result)
{
    if (result == CU_ERROR_NO_DEVICE)
        return "check that nvidia-smi lists a GPU, that this container has one and that CUDA_VISIBLE_DEVICES hides "
               "none";
    return "check that nvidia-smi works; after an update of the driver, restart the machine";
}

bool cuda_driver_open(struct cuda_driver *driver, struct status *status)
{
    *driver = (struct cuda_driver){0};
    /* The driver has its own threads and exit handlers: it stays loaded after cuda_driver_close. */
    driver->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!driver->library) {
        const char *reason = dlerror();
        return status_fail(status, STATUS_MACHINE,
                           "NVIDIA driver: expected %s, found none (%s); install the driver, or use --target cpu",
                           library_name, reason ? reason : "no reason given");
    }
    cu_result result;
    if (!check_version(driver, status) || !look_up(driver, status)) goto failed;
    result = driver->Init(0);
    if (result != CU_SUCCESS) {
        struct status found = {0};
        cuda_ok(driver, result, &found, "NVIDIA driver: expected cuInit to succeed, found");
        status_fail(status, STATUS_MACHINE, "%s; %s", found.message, remedy(result));
        goto failed;
    }
    return true;
failed:
    cuda_driver_close(driver);
    return false;
}

bool cuda_driver_is_in_use(void)
{
    cu_result (*count_devices)(int *) = NULL;
    int count;
    /* A driver that is not loaded is not in use. */
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return false;
    const struct symbol symbol = {"cuDeviceGetCount", &count_devices};
    bool in_use = !symbols_missing(library, &symbol, 1) && count_devices(&count) != CU_ERROR_NOT_INITIALIZED;
    dlclose(library);
    return in_use;
}

void cuda_driver_close(struct cuda_driver *driver)
{
    if (driver->library) dlclose(driver->library);
    *driver = (struct cuda_driver){0};
}

bool cuda_ok(const struct cuda_driver *driver, cu_result result, struct status *status, const char *format, ...)
{
    if (result == CU_SUCCESS) return true;
    char what[STATUS_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const char *name = NULL, *text = NULL;
    char number[32];
    snprintf(number, sizeof number, "error %d", result);
    if (!driver->GetErrorName || driver->GetErrorName(result, &name) != CU_SUCCESS) name = NULL;
    if (!driver->GetErrorString || driver->GetErrorString(result, &text) != CU_SUCCESS) text = NULL;
    return status_fail(status, STATUS_MACHINE, "%s: %s (%s)", what, name ? name : number,
                       text ? text : "no description");
}
