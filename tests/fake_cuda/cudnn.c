/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN for the fake driver (fake_cuda.h), as far as attention goes (kernels/attention/attention_cudnn*.c): takes a
 * graph that has its products, reductions and page loads, offers a few engines, and queues one kernel `fake_cudnn` for
 * each execution, which computes what a test registered, else nothing. A library libcudnn.so.9 beside the cuBLASLt.
 *
 * As the true one: a plan has a module of its own, which goes with it; its text is another one each time.
 *
 *   FAKE_CUDNN_VERSION=N     default 91900
 *   FAKE_CUDNN_REFUSE=graph  no graph is taken, as by a version that knows no pages
 *   FAKE_CUDNN_REFUSE=plan   no stored plan is taken, as where NVRTC is missing
 *
 * A descriptor that is left over is told on stderr when the handle goes. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/cuda/vendor/cudnn.h"
#include "tests/fake_cuda/library.h"

#define EXPORTED                                         __attribute__((visibility("default")))
#define FAKE_DECLARE(member, symbol, result, parameters) EXPORTED result symbol parameters;
CUDNN_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1001,
    BAD_PARAM = 2000,
    NOT_SUPPORTED = 3000,
    PREREQUISITE_MISSING = 3008,
    INTERNAL_ERROR = 4000,
    EXECUTION_FAILED = 5000,
};
enum {
    ENGINES = 3,
    FAVOURITES = 2, /* of either heuristic */
    KNOB = 7,       /* of the last engine, with values 0 and 1 */
    WORKSPACE = 4096,
    PLAN_BYTES = 20000,
    MOST_OPERANDS = 32,
};

struct cudnn_handle_opaque {
    cu_stream stream;
};

struct descriptor {
    int type;
    bool finalized;
    cudnn_handle handle; /* graphs, plans */
    int products, reductions, page_loads;
    int64_t engine; /* engines, configurations, plans; -1: not set */
    int64_t knob, value;
    bool is_stored; /* a plan from text */
    struct fake_library library;
    int operand_count, pointer_count; /* variant packs */
    int64_t ids[MOST_OPERANDS];
    void *pointers[MOST_OPERANDS], *workspace;
};

static atomic_int live;

size_t cudnnGetVersion(void)
{
    const char *text = getenv("FAKE_CUDNN_VERSION");
    return text ? strtoull(text, NULL, 10) : 91900;
}

static bool refuses(const char *what)
{
    const char *text = getenv("FAKE_CUDNN_REFUSE");
    return text && strcmp(text, what) == 0;
}

const char *cudnnGetErrorString(cudnn_result result) { return result ? "CUDNN_STATUS_FAKE" : "CUDNN_STATUS_SUCCESS"; }

void cudnnGetLastErrorString(char *message, size_t bytes) { snprintf(message, bytes, "as the fake has it"); }

cudnn_result cudnnCreate(cudnn_handle *handle)
{
    *handle = calloc(1, sizeof **handle);
    return *handle ? SUCCESS : INTERNAL_ERROR;
}

cudnn_result cudnnDestroy(cudnn_handle handle)
{
    if (live) fprintf(stderr, "fake cuDNN: %d descriptors are left over\n", live);
    free(handle);
    return SUCCESS;
}

cudnn_result cudnnSetStream(cudnn_handle handle, cu_stream stream)
{
    handle->stream = stream;
    return SUCCESS;
}

cudnn_result cudnnBackendCreateDescriptor(int type, cudnn_descriptor *descriptor)
{
    struct descriptor *made = calloc(1, sizeof *made);
    if (!made) return INTERNAL_ERROR;
    made->type = type;
    made->engine = made->knob = -1;
    live++;
    *descriptor = made;
    return SUCCESS;
}

cudnn_result cudnnBackendDestroyDescriptor(cudnn_descriptor descriptor)
{
    struct descriptor *known = descriptor;
    fake_library_close(&known->library);
    free(known);
    live--;
    return SUCCESS;
}

/* ---- attributes that are set ---- */

static cudnn_result set_operations(struct descriptor *graph, int64_t count, const void *values)
{
    struct descriptor *const *operations = values;
    for (int64_t i = 0; i < count; i++) {
        if (!operations[i] || !operations[i]->finalized) return BAD_PARAM;
        graph->products += operations[i]->type == CUDNN_DESCRIPTOR_OPERATION_MATMUL;
        graph->reductions += operations[i]->type == CUDNN_DESCRIPTOR_OPERATION_REDUCTION;
        graph->page_loads += operations[i]->type == CUDNN_DESCRIPTOR_OPERATION_PAGED_CACHE_LOAD;
    }
    return SUCCESS;
}

static cudnn_result set_text(struct descriptor *plan, int64_t count, const char *text)
{
    char begin[128] = "";
    size_t version = 0;
    memcpy(begin, text, (size_t)count < sizeof begin ? (size_t)count : sizeof begin - 1);
    plan->is_stored = sscanf(begin, "{\"fake_cudnn\": %zu, \"engine\": %" SCNd64, &version, &plan->engine) == 2 &&
                      version == cudnnGetVersion() && count == PLAN_BYTES;
    return plan->is_stored ? SUCCESS : BAD_PARAM;
}

/* The engine with the knob of a configuration or of what it is made of. */
static cudnn_result take_engine(struct descriptor *to, const void *values)
{
    const struct descriptor *from = *(struct descriptor *const *)values;
    if (!from || !from->finalized) return BAD_PARAM;
    if (from->type == CUDNN_DESCRIPTOR_KNOB_CHOICE || from->type == CUDNN_DESCRIPTOR_ENGINE_CONFIG) {
        to->knob = from->knob;
        to->value = from->value;
    }
    if (from->type != CUDNN_DESCRIPTOR_KNOB_CHOICE) to->engine = from->engine;
    return SUCCESS;
}

cudnn_result cudnnBackendSetAttribute(cudnn_descriptor descriptor, int attribute, int type, int64_t count,
                                      const void *values)
{
    struct descriptor *known = descriptor;
    if (!known || known->finalized || !values || count < 1) return BAD_PARAM;
    switch (attribute) {
    case CUDNN_GRAPH_HANDLE:
    case CUDNN_PLAN_HANDLE: memcpy(&known->handle, values, sizeof known->handle); return SUCCESS;
    case CUDNN_GRAPH_OPERATIONS: return set_operations(known, count, values);
    case CUDNN_PLAN_JSON: return set_text(known, count, values);
    case CUDNN_PLAN_ENGINE_CONFIG:
    case CUDNN_ENGINE_CONFIG_ENGINE:
    case CUDNN_ENGINE_CONFIG_KNOB_CHOICES: return take_engine(known, values);
    case CUDNN_ENGINE_INDEX: memcpy(&known->engine, values, sizeof known->engine); return SUCCESS;
    case CUDNN_KNOB_CHOICE_TYPE: known->knob = *(const int *)values; return SUCCESS;
    case CUDNN_KNOB_CHOICE_VALUE: memcpy(&known->value, values, sizeof known->value); return SUCCESS;
    case CUDNN_VARIANT_PACK_IDS:
    case CUDNN_VARIANT_PACK_POINTERS:
        if (count > MOST_OPERANDS) return BAD_PARAM;
        if (attribute == CUDNN_VARIANT_PACK_IDS)
            memcpy(known->ids, values, (size_t)(known->operand_count = (int)count) * sizeof *known->ids);
        else
            memcpy(known->pointers, values, (size_t)(known->pointer_count = (int)count) * sizeof *known->pointers);
        return SUCCESS;
    case CUDNN_VARIANT_PACK_WORKSPACE: memcpy(&known->workspace, values, sizeof known->workspace); return SUCCESS;
    default: return type == CUDNN_OF_DESCRIPTOR && !*(struct descriptor *const *)values ? BAD_PARAM : SUCCESS;
    }
}

cudnn_result cudnnBackendFinalize(cudnn_descriptor descriptor)
{
    static const char cubin[] = "FAKE CUBIN 90\nkernel fake_cudnn 8 8 8 8 8\nend\n";
    struct descriptor *known = descriptor;
    if (known->finalized) return BAD_PARAM;
    if (known->type == CUDNN_DESCRIPTOR_OPERATION_GRAPH) {
        if (!known->handle) return BAD_PARAM;
        if (known->products != 2 || known->reductions != 2 || known->page_loads != 2 || refuses("graph"))
            return NOT_SUPPORTED;
    }
    if (known->type == CUDNN_DESCRIPTOR_ENGINE && (known->engine < 0 || known->engine >= ENGINES)) return BAD_PARAM;
    if (known->type == CUDNN_DESCRIPTOR_PLAN) {
        if (!known->handle || known->engine < 0 || known->engine >= ENGINES) return BAD_PARAM;
        if (known->is_stored && refuses("plan")) return PREREQUISITE_MISSING;
        if (!fake_library_open(&known->library, cubin, "fake_cudnn")) return INTERNAL_ERROR;
    }
    known->finalized = true;
    return SUCCESS;
}

/* ---- attributes that are asked for ---- */

static cudnn_result get_descriptors(const struct descriptor *from, int attribute, int64_t capacity, int64_t *count,
                                    struct descriptor *const *list)
{
    const bool has_knob = from->engine == ENGINES - 1;
    switch (attribute) {
    case CUDNN_HEURISTIC_RESULTS: *count = FAVOURITES; break;
    case CUDNN_ENGINE_CONFIG_ENGINE: *count = 1; break;
    case CUDNN_ENGINE_CONFIG_KNOB_CHOICES: *count = from->knob >= 0; break;
    case CUDNN_ENGINE_KNOB_INFO: *count = has_knob; break;
    default: return NOT_SUPPORTED;
    }
    if (*count > capacity) *count = capacity;
    for (int64_t i = 0; i < *count; i++) {
        list[i]->engine = attribute == CUDNN_HEURISTIC_RESULTS ? i : from->engine;
        list[i]->knob = attribute == CUDNN_ENGINE_KNOB_INFO ? KNOB : from->knob;
        list[i]->value = from->value;
        list[i]->finalized = true;
    }
    return SUCCESS;
}

static cudnn_result get_text(const struct descriptor *plan, int64_t capacity, int64_t *count, char *text)
{
    struct timespec now;
    *count = PLAN_BYTES;
    if (capacity == 0) return SUCCESS;
    if (capacity < PLAN_BYTES) return BAD_PARAM;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(text, ' ', PLAN_BYTES);
    int length = snprintf(text, PLAN_BYTES, "{\"fake_cudnn\": %zu, \"engine\": %" PRId64 ", \"padding\": \"%ld %p\"}",
                          cudnnGetVersion(), plan->engine, now.tv_nsec, (const void *)plan);
    text[length] = '\n';
    return SUCCESS;
}

cudnn_result cudnnBackendGetAttribute(cudnn_descriptor const descriptor, int attribute, int type, int64_t capacity,
                                      int64_t *count, void *values)
{
    const struct descriptor *known = descriptor;
    int64_t number = 0;
    if (!known->finalized) return NOT_INITIALIZED;
    if (type == CUDNN_OF_DESCRIPTOR) return get_descriptors(known, attribute, capacity, count, values);
    if (attribute == CUDNN_PLAN_JSON) return get_text(known, capacity, count, values);
    switch (attribute) {
    case CUDNN_PLAN_WORKSPACE_BYTES: number = WORKSPACE; break;
    case CUDNN_GRAPH_ENGINE_COUNT: number = ENGINES; break;
    case CUDNN_ENGINE_INDEX: number = known->engine; break;
    case CUDNN_KNOB_CHOICE_VALUE: number = known->value; break;
    case CUDNN_KNOB_INFO_MINIMUM: number = 0; break;
    case CUDNN_KNOB_INFO_MAXIMUM:
    case CUDNN_KNOB_INFO_STRIDE: number = 1; break;
    case CUDNN_KNOB_CHOICE_TYPE:
    case CUDNN_KNOB_INFO_TYPE:
        *(int *)values = (int)known->knob;
        *count = 1;
        return SUCCESS;
    default: return NOT_SUPPORTED;
    }
    memcpy(values, &number, sizeof number);
    *count = 1;
    return SUCCESS;
}

/* ---- execution ---- */

static void *operand(const struct descriptor *pack, int64_t id)
{
    for (int i = 0; i < pack->operand_count; i++)
        if (pack->ids[i] == id) return pack->pointers[i];
    return NULL;
}

cudnn_result cudnnBackendExecute(cudnn_handle handle, cudnn_descriptor plan, cudnn_descriptor pack)
{
    static const int64_t needed[] = {ATTENTION_CUDNN_Q, ATTENTION_CUDNN_K, ATTENTION_CUDNN_V, ATTENTION_CUDNN_OUT};
    enum { NEEDED = sizeof needed / sizeof *needed };
    const struct descriptor *known = plan, *operands = pack;
    void *pointers[NEEDED + 1], *arguments[NEEDED + 1];
    if (!handle->stream || !known->finalized || !operands->finalized || known->type != CUDNN_DESCRIPTOR_PLAN ||
        operands->operand_count != operands->pointer_count || !operands->workspace)
        return BAD_PARAM;
    for (int64_t id = ATTENTION_CUDNN_Q; id < ATTENTION_CUDNN_WINDOW_VALUE; id++)
        if (!operand(operands, id)) return BAD_PARAM;
    for (int i = 0; i < NEEDED; i++) pointers[i] = operand(operands, needed[i]);
    pointers[NEEDED] = operands->workspace;
    for (int i = 0; i <= NEEDED; i++) arguments[i] = &pointers[i];
    return fake_library_launch(&known->library, arguments, handle->stream) ? SUCCESS : EXECUTION_FAILED;
}
