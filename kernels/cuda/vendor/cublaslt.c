/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/vendor/cublaslt.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const library_names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
enum { LIBRARY_NAMES = sizeof library_names / sizeof *library_names };

struct symbol {
    const char *name;
    void *function; /* the member of struct cublaslt */
};

static bool look_up(struct cublaslt *library, const char *file, struct status *status)
{
#define SYMBOL(member, symbol, parameters) {#symbol, &library->member},
    const struct symbol symbols[] = {CUBLASLT_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(library->library, symbols[i].name);
        if (!address)
            return status_fail(
                status, STATUS_MACHINE,
                "cuBLASLt: expected the function %s, found a %s without it; install the cuBLAS of a CUDA "
                "toolkit 12.4 or later",
                symbols[i].name, file);
        memcpy(symbols[i].function, &address, sizeof address);
    }
    return true;
}

static uint32_t read_version(const struct cublaslt *library)
{
    size_t (*get_version)(void) = NULL;
    void *address = dlsym(library->library, "cublasLtGetVersion");
    if (!address) return 0;
    memcpy(&get_version, &address, sizeof address);
    return (uint32_t)get_version();
}

static bool open_file(struct cublaslt *library, const char *file, uint32_t version, struct status *status)
{
    library->version = read_version(library);
    if (!library->version)
        return status_fail(status, STATUS_MACHINE,
                           "cuBLASLt: expected the function cublasLtGetVersion, found a %s without it; install the "
                           "cuBLAS of a CUDA toolkit 12.4 or later",
                           file);
    if (version && library->version != version)
        return status_fail(status, STATUS_MACHINE,
                           "cuBLASLt: expected version %" PRIu32 ", which this engine was built with, found %" PRIu32
                           " (%s); install that version, or build the engine again",
                           version, library->version, file);
    if (!look_up(library, file, status)) return false;
    int result = library->Create(&library->handle);
    if (result == LT_SUCCESS) return true;
    library->handle = NULL;
    return status_fail(status, STATUS_MACHINE, "cuBLASLt %" PRIu32 ": cublasLtCreate failed with status %d",
                       library->version, result);
}

bool cublaslt_open(struct cublaslt *library, uint32_t version, struct status *status)
{
    bool found = false;
    for (int i = 0; i < LIBRARY_NAMES; i++) {
        memset(library, 0, sizeof *library);
        /* Stays loaded, as the driver does: its threads may outlive the handle. */
        library->library = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!library->library) continue;
        found = true;
        status_clear(status);
        if (open_file(library, library_names[i], version, status)) return true;
        cublaslt_close(library);
    }
    if (found) return false;
    return status_fail(
        status, STATUS_MACHINE,
        "cuBLASLt: expected %s or %s, found neither (%s); install the cuBLAS of a CUDA toolkit, and name "
        "its folder in LD_LIBRARY_PATH",
        library_names[0], library_names[1], dlerror());
}

void cublaslt_close(struct cublaslt *library)
{
    if (library->handle) library->Destroy(library->handle);
    if (library->library) dlclose(library->library);
    memset(library, 0, sizeof *library);
}
