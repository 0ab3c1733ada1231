/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/vendor/cudnn.h"

#include <dlfcn.h>
#include <stdio.h>

#include "kernels/cuda/symbols.h"

static const char library_name[] = "libcudnn.so.9";
static const char remedy[] = "install cuDNN 9 for the driver's CUDA version, and name its folder in LD_LIBRARY_PATH";

static bool look_up(struct cudnn *cudnn, struct status *status)
{
#define SYMBOL(member, symbol, result, parameters) {#symbol, &cudnn->member},
    const struct symbol symbols[] = {CUDNN_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    const char *missing = symbols_missing(cudnn->library, symbols, sizeof symbols / sizeof *symbols);
    return !missing || status_fail(status, STATUS_MACHINE, "cuDNN: expected the function %s, found a %s without it; %s",
                                   missing, library_name, remedy);
}

static bool check_version(const struct cudnn *cudnn, size_t version, struct status *status)
{
    const size_t found = cudnn->version;
    if (found / 10000 != CUDNN_MAJOR_VERSION)
        return status_fail(status, STATUS_MACHINE, "cuDNN: expected version %d, found %zu.%zu.%zu; %s",
                           CUDNN_MAJOR_VERSION, found / 10000, found % 10000 / 100, found % 100, remedy);
    if (version && found != version)
        return status_fail(status, STATUS_MACHINE,
                           "cuDNN: expected version %zu.%zu.%zu, which this engine was built with, found %zu.%zu.%zu "
                           "(%s); install that version, or build the engine again",
                           version / 10000, version % 10000 / 100, version % 100, found / 10000, found % 10000 / 100,
                           found % 100, library_name);
    return true;
}

bool cudnn_open(struct cudnn *cudnn, size_t version, struct status *status)
{
    *cudnn = (struct cudnn){0};
    /* The library and its dependencies have threads and exit handlers: they stay loaded. */
    cudnn->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!cudnn->library) {
        const char *reason = dlerror();
        return status_fail(status, STATUS_MACHINE, "cuDNN: expected %s, found none (%s); %s", library_name,
                           reason ? reason : "no reason given", remedy);
    }
    if (!look_up(cudnn, status)) goto failed;
    cudnn->version = cudnn->GetVersion();
    if (!check_version(cudnn, version, status)) goto failed;
    if (!cudnn_ok(cudnn, cudnn->Create(&cudnn->handle), status,
                  "cuDNN %zu.%zu.%zu: expected a handle for this GPU, found", cudnn->version / 10000,
                  cudnn->version % 10000 / 100, cudnn->version % 100)) {
        cudnn->handle = NULL;
        goto failed;
    }
    return true;
failed:
    cudnn_close(cudnn);
    return false;
}

void cudnn_close(struct cudnn *cudnn)
{
    if (cudnn->handle) cudnn->Destroy(cudnn->handle);
    if (cudnn->library) dlclose(cudnn->library);
    *cudnn = (struct cudnn){0};
}

bool cudnn_ok(const struct cudnn *cudnn, cudnn_result result, struct status *status, const char *format, ...)
{
    if (result == 0) return true;
    char what[STATUS_MESSAGE_BYTES], why[STATUS_MESSAGE_BYTES] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const char *name = cudnn->GetErrorString(result);
    cudnn->GetLastErrorString(why, sizeof why);
    why[sizeof why - 1] = '\0';
    for (char *c = why; *c; c++) /* a status is one line */
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    return status_fail(status, STATUS_MACHINE, "%s: error %d (%s): %s", what, result, name ? name : "no name",
                       *why ? why : "no description");
}

bool cudnn_new(const struct cudnn *cudnn, enum cudnn_descriptor_type type, cudnn_descriptor *descriptor,
               struct status *status)
{
    cudnn_result result = cudnn->CreateDescriptor((int)type, descriptor);
    if (result) *descriptor = NULL;
    return cudnn_ok(cudnn, result, status, "cuDNN: making a descriptor of type %d", (int)type);
}

bool cudnn_set(const struct cudnn *cudnn, cudnn_descriptor descriptor, enum cudnn_attribute attribute,
               enum cudnn_attribute_type type, size_t count, const void *values, struct status *status)
{
    return cudnn_ok(cudnn, cudnn->SetAttribute(descriptor, (int)attribute, (int)type, (int64_t)count, values), status,
                    "cuDNN: setting attribute %d", (int)attribute);
}

bool cudnn_finalize(const struct cudnn *cudnn, cudnn_descriptor descriptor, const char *what, struct status *status)
{
    return cudnn_ok(cudnn, cudnn->Finalize(descriptor), status, "cuDNN: %s", what);
}

void cudnn_destroy(const struct cudnn *cudnn, cudnn_descriptor descriptor)
{
    if (descriptor) cudnn->DestroyDescriptor(descriptor);
}
