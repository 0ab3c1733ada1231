/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN 9, opened at run time only for its plans: no program here links it, and an engine without its tactics does not
 * load it.
 *
 * The declarations below repeat the binary interface of cuDNN's backend API, so that the build needs no headers;
 * cudnn_abi_test.c compares them with cudnn.h if there is one. Names follow cudnn.h: member `Execute` is
 * cudnnBackendExecute, CUDNN_DESCRIPTOR_ENGINE is CUDNN_BACKEND_ENGINE_DESCRIPTOR, and so on. */
#ifndef KERNELS_CUDA_VENDOR_CUDNN_H
#define KERNELS_CUDA_VENDOR_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "kernels/cuda/driver.h"

typedef int cudnn_result; /* 0: success */
typedef struct cudnn_handle_opaque *cudnn_handle;
typedef void *cudnn_descriptor;

enum { CUDNN_MAJOR_VERSION = 9 };

enum cudnn_data_type {
    CUDNN_FLOAT = 0,
    CUDNN_HALF = 2,
    CUDNN_INT32 = 4,
    CUDNN_BFLOAT16 = 9,
    CUDNN_BOOLEAN = 11,
};

enum cudnn_attribute_type {
    CUDNN_OF_HANDLE = 0,
    CUDNN_OF_DATA_TYPE = 1,
    CUDNN_OF_BOOLEAN = 2,
    CUDNN_OF_INT64 = 3,
    CUDNN_OF_POINTER = 6,
    CUDNN_OF_HEURISTIC_MODE = 8,
    CUDNN_OF_KNOB = 9,
    CUDNN_OF_POINTWISE_MODE = 14,
    CUDNN_OF_DESCRIPTOR = 15,
    CUDNN_OF_REDUCTION_OPERATOR = 18,
    CUDNN_OF_CHAR = 24,
};

enum cudnn_descriptor_type {
    CUDNN_DESCRIPTOR_POINTWISE = 0,
    CUDNN_DESCRIPTOR_ENGINE = 2,
    CUDNN_DESCRIPTOR_ENGINE_CONFIG = 3,
    CUDNN_DESCRIPTOR_HEURISTIC = 4,
    CUDNN_DESCRIPTOR_PLAN = 5,
    CUDNN_DESCRIPTOR_KNOB_CHOICE = 7,
    CUDNN_DESCRIPTOR_KNOB_INFO = 8,
    CUDNN_DESCRIPTOR_OPERATION_POINTWISE = 13,
    CUDNN_DESCRIPTOR_OPERATION_GRAPH = 15,
    CUDNN_DESCRIPTOR_VARIANT_PACK = 16,
    CUDNN_DESCRIPTOR_TENSOR = 17,
    CUDNN_DESCRIPTOR_MATMUL = 18,
    CUDNN_DESCRIPTOR_OPERATION_MATMUL = 19,
    CUDNN_DESCRIPTOR_REDUCTION = 21,
    CUDNN_DESCRIPTOR_OPERATION_REDUCTION = 22,
    CUDNN_DESCRIPTOR_OPERATION_PAGED_CACHE_LOAD = 35, /* 9.5 */
};

enum cudnn_attribute {
    CUDNN_POINTWISE_MODE = 0,
    CUDNN_POINTWISE_PRECISION = 1,
    CUDNN_POINTWISE_AXIS = 9,
    CUDNN_HEURISTIC_MODE = 200,
    CUDNN_HEURISTIC_GRAPH = 201,
    CUDNN_HEURISTIC_RESULTS = 202,
    CUDNN_ENGINE_CONFIG_ENGINE = 300,
    CUDNN_ENGINE_CONFIG_KNOB_CHOICES = 302,
    CUDNN_PLAN_HANDLE = 400,
    CUDNN_PLAN_ENGINE_CONFIG = 401,
    CUDNN_PLAN_WORKSPACE_BYTES = 402,
    CUDNN_PLAN_JSON = 405,
    CUDNN_KNOB_CHOICE_TYPE = 600,
    CUDNN_KNOB_CHOICE_VALUE = 601,
    CUDNN_OPERATION_POINTWISE_MODE = 750,
    CUDNN_OPERATION_POINTWISE_X = 751,
    CUDNN_OPERATION_POINTWISE_B = 752,
    CUDNN_OPERATION_POINTWISE_Y = 753,
    CUDNN_OPERATION_POINTWISE_T = 758,
    CUDNN_GRAPH_HANDLE = 800,
    CUDNN_GRAPH_OPERATIONS = 801,
    CUDNN_GRAPH_ENGINE_COUNT = 802,
    CUDNN_TENSOR_ALIGNMENT = 900,
    CUDNN_TENSOR_DATA_TYPE = 901,
    CUDNN_TENSOR_DIMENSIONS = 902,
    CUDNN_TENSOR_STRIDES = 903,
    CUDNN_TENSOR_ID = 906,
    CUDNN_TENSOR_IS_VIRTUAL = 907,
    CUDNN_TENSOR_IS_BY_VALUE = 908,
    CUDNN_VARIANT_PACK_IDS = 1000,
    CUDNN_VARIANT_PACK_POINTERS = 1001,
    CUDNN_VARIANT_PACK_WORKSPACE = 1003,
    CUDNN_KNOB_INFO_TYPE = 1200,
    CUDNN_KNOB_INFO_MAXIMUM = 1201,
    CUDNN_KNOB_INFO_MINIMUM = 1202,
    CUDNN_KNOB_INFO_STRIDE = 1203,
    CUDNN_ENGINE_GRAPH = 1300,
    CUDNN_ENGINE_INDEX = 1301,
    CUDNN_ENGINE_KNOB_INFO = 1302,
    CUDNN_MATMUL_PRECISION = 1500,
    CUDNN_OPERATION_MATMUL_A = 1520,
    CUDNN_OPERATION_MATMUL_B = 1521,
    CUDNN_OPERATION_MATMUL_C = 1522,
    CUDNN_OPERATION_MATMUL_MODE = 1523,
    CUDNN_OPERATION_MATMUL_M_OVERRIDE = 1525,
    CUDNN_OPERATION_MATMUL_N_OVERRIDE = 1526,
    CUDNN_OPERATION_MATMUL_K_OVERRIDE = 1527,
    CUDNN_REDUCTION_OPERATOR = 1600,
    CUDNN_REDUCTION_PRECISION = 1601,
    CUDNN_OPERATION_REDUCTION_X = 1610,
    CUDNN_OPERATION_REDUCTION_Y = 1611,
    CUDNN_OPERATION_REDUCTION_MODE = 1612,
    CUDNN_OPERATION_PAGED_CACHE_LOAD_CONTAINER = 1950,
    CUDNN_OPERATION_PAGED_CACHE_LOAD_Y = 1951,
    CUDNN_OPERATION_PAGED_CACHE_LOAD_LENGTHS = 1952,
    CUDNN_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE = 1953,
};

enum cudnn_pointwise {
    CUDNN_ADD = 0,
    CUDNN_MUL = 1,
    CUDNN_DIV = 6,
    CUDNN_SUB = 9,
    CUDNN_EXP = 13,
    CUDNN_GREATER = 302,
    CUDNN_GREATER_OR_EQUAL = 303,
    CUDNN_LESS = 304,
    CUDNN_AND = 400,
    CUDNN_INDEX = 501,
    CUDNN_SELECT = 601,
};
enum cudnn_reduction { CUDNN_REDUCE_ADD = 0, CUDNN_REDUCE_MAX = 3 };
enum cudnn_heuristic { CUDNN_HEURISTIC_B = 1, CUDNN_HEURISTIC_A = 3 };

/* X(member, symbol, result, parameters): every function that is looked up. */
#define CUDNN_FUNCTIONS(X)                                                                                          \
    X(GetVersion, cudnnGetVersion, size_t, (void))                                                                  \
    X(GetErrorString, cudnnGetErrorString, const char *, (cudnn_result result))                                     \
    X(GetLastErrorString, cudnnGetLastErrorString, void, (char *message, size_t bytes))                             \
    X(Create, cudnnCreate, cudnn_result, (cudnn_handle * handle))                                                   \
    X(Destroy, cudnnDestroy, cudnn_result, (cudnn_handle handle))                                                   \
    X(SetStream, cudnnSetStream, cudnn_result, (cudnn_handle handle, cu_stream stream))                             \
    X(CreateDescriptor, cudnnBackendCreateDescriptor, cudnn_result, (int type, cudnn_descriptor *descriptor))       \
    X(DestroyDescriptor, cudnnBackendDestroyDescriptor, cudnn_result, (cudnn_descriptor descriptor))                \
    X(SetAttribute, cudnnBackendSetAttribute, cudnn_result,                                                         \
      (cudnn_descriptor descriptor, int attribute, int type, int64_t count, const void *values))                    \
    X(GetAttribute, cudnnBackendGetAttribute, cudnn_result,                                                         \
      (cudnn_descriptor const descriptor, int attribute, int type, int64_t capacity, int64_t *count, void *values)) \
    X(Finalize, cudnnBackendFinalize, cudnn_result, (cudnn_descriptor descriptor))                                  \
    X(Execute, cudnnBackendExecute, cudnn_result, (cudnn_handle handle, cudnn_descriptor plan, cudnn_descriptor pack))

struct cudnn {
    void *library;  /* of dlopen */
    size_t version; /* as cudnnGetVersion: 10000 * major + 100 * minor + patch */
    cudnn_handle handle;
#define CUDNN_MEMBER(member, symbol, result, parameters) result(*member) parameters;
    CUDNN_FUNCTIONS(CUDNN_MEMBER)
#undef CUDNN_MEMBER
};

/* Opens libcudnn.so.9, looks up every function and creates a handle for the current context. STATUS_MACHINE, with
 * expected, found and remedy, if the library is missing, has another version, lacks a function or creates no handle.
 * `version`: as cudnnGetVersion; 0: any 9. Requires: a handle is used by one thread at a time. */
bool cudnn_open(struct cudnn *cudnn, size_t version, struct status *status);
void cudnn_close(struct cudnn *cudnn); /* does nothing on one that is all zero. Requires: the context is current. */

/* True for success; else fills status with "WHAT: text of cuDNN" and returns false, STATUS_MACHINE. */
bool cudnn_ok(const struct cudnn *cudnn, cudnn_result result, struct status *status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Descriptors. *descriptor is NULL after a failure; destroying NULL does nothing. */
bool cudnn_new(const struct cudnn *cudnn, enum cudnn_descriptor_type type, cudnn_descriptor *descriptor,
               struct status *status);
bool cudnn_set(const struct cudnn *cudnn, cudnn_descriptor descriptor, enum cudnn_attribute attribute,
               enum cudnn_attribute_type type, size_t count, const void *values, struct status *status);
bool cudnn_finalize(const struct cudnn *cudnn, cudnn_descriptor descriptor, const char *what, struct status *status);
void cudnn_destroy(const struct cudnn *cudnn, cudnn_descriptor descriptor);

#endif
