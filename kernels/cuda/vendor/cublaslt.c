/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/vendor/cublaslt.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <string.h>

#include "kernels/cuda/symbols.h"

static const char *const library_names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
enum { LIBRARY_NAMES = sizeof library_names / sizeof *library_names };

static bool look_up(const struct cublaslt *library, const struct symbol *symbols, size_t count, const char *file,
                    struct status *status)
{
    const char *missing = symbols_missing(library->library, symbols, count);
    return !missing || status_fail(status, STATUS_MACHINE,
                                   "cuBLASLt: expected the function %s, found a %s without it; install the cuBLAS of a "
                                   "CUDA toolkit 12.4 or later",
                                   missing, file);
}

static bool open_file(struct cublaslt *library, const char *file, uint32_t version, struct status *status)
{
    size_t (*get_version)(void) = NULL;
    const struct symbol version_symbol = {"cublasLtGetVersion", &get_version};
    if (!look_up(library, &version_symbol, 1, file, status)) return false;
    library->version = (uint32_t)get_version();
    if (version && library->version != version)
        return status_fail(status, STATUS_MACHINE,
                           "cuBLASLt: expected version %" PRIu32 ", which this engine was built with, found %" PRIu32
                           " (%s); install that version, or build the engine again",
                           version, library->version, file);
#define SYMBOL(member, symbol, parameters) {#symbol, &library->member},
    const struct symbol symbols[] = {CUBLASLT_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    if (!look_up(library, symbols, sizeof symbols / sizeof *symbols, file, status)) return false;
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
