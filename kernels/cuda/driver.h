/* SPDX-License-Identifier: Apache-2.0 */
/* The NVIDIA driver, opened at run time: no program here links a CUDA library, so one binary serves machines with and
 * without a GPU.
 *
 * The declarations below repeat the driver's binary interface (CUDA 12.4 and later, which keep it compatible), so that
 * the build needs no toolkit; abi_test.c compares them with cuda.h if there is one. Names follow cuda.h: member
 * `MemAlloc` of cuda_driver is cuMemAlloc_v2, and so on. */
#ifndef KERNELS_CUDA_DRIVER_H
#define KERNELS_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef uint64_t cu_deviceptr;
typedef struct cu_context_opaque *cu_context;
typedef struct cu_stream_opaque *cu_stream;
typedef struct cu_event_opaque *cu_event;
typedef struct cu_library_opaque *cu_library;
typedef struct cu_kernel_opaque *cu_kernel;
typedef struct cu_function_opaque *cu_function;
typedef struct cu_graph_opaque *cu_graph;
typedef struct cu_graph_node_opaque *cu_graph_node;
typedef struct cu_graph_exec_opaque *cu_graph_exec;

enum { CU_DRIVER_LEAST_VERSION = 12040 }; /* edge data of graphs, parameter info of kernels */

enum cu_result_value {
    CU_SUCCESS = 0,
    CU_ERROR_INVALID_VALUE = 1,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NOT_INITIALIZED = 3,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_INVALID_IMAGE = 200,
    CU_ERROR_NO_BINARY_FOR_GPU = 209,
    CU_ERROR_INVALID_PTX = 218,
    CU_ERROR_NOT_FOUND = 500,
    CU_ERROR_NOT_READY = 600,
};

enum cu_device_attribute {
    CU_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_ATTRIBUTE_WARP_SIZE = 10,
    CU_ATTRIBUTE_CLOCK_RATE = 13, /* kHz */
    CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_ATTRIBUTE_MEMORY_CLOCK_RATE = 36, /* kHz */
    CU_ATTRIBUTE_MEMORY_BUS_WIDTH = 37,  /* bits */
    CU_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_ATTRIBUTE_MAX_SHARED_PER_MULTIPROCESSOR = 81,
    CU_ATTRIBUTE_MAX_SHARED_PER_BLOCK_OPTIN = 97,
    CU_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT = 102,
};

enum { CU_P2P_ATTRIBUTE_NATIVE_ATOMICS = 3 }; /* CUdevice_P2PAttribute */

enum cu_function_attribute {
    CU_FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNCTION_SHARED_SIZE_BYTES = 1,
    CU_FUNCTION_LOCAL_SIZE_BYTES = 3,
    CU_FUNCTION_NUM_REGS = 4,
    CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT = 9, /* per cent of the most */
    CU_FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

/* Memory that is created, mapped and made accessible to GPUs in separate steps. */
enum { CU_MEM_PINNED = 1, CU_MEM_ON_DEVICE = 1, CU_MEM_READ_WRITE = 3, CU_MEM_GRANULARITY_MINIMUM = 0 };
typedef uint64_t cu_mem_handle;
struct cu_mem_location {
    int type; /* CU_MEM_ON_DEVICE */
    int id;
};
struct cu_mem_properties { /* CUmemAllocationProp */
    int type;              /* CU_MEM_PINNED */
    int handle_types;
    struct cu_mem_location location;
    void *win32;
    unsigned char flags[8];
};
struct cu_mem_access { /* CUmemAccessDesc */
    struct cu_mem_location location;
    int flags; /* CU_MEM_READ_WRITE */
};

struct cu_uuid {
    unsigned char bytes[16];
};

/* CUtensorMap: 128 opaque bytes. */
struct cu_tensor_map {
    _Alignas(128) uint64_t opaque[16];
};
_Static_assert(sizeof(struct cu_tensor_map) == 128, "CUtensorMap");
enum cu_tensor_map_type {
    CU_TENSOR_MAP_UINT8 = 0,
    CU_TENSOR_MAP_INT64 = 5,
    CU_TENSOR_MAP_FLOAT16 = 6,
    CU_TENSOR_MAP_FLOAT32 = 7,
    CU_TENSOR_MAP_BFLOAT16 = 9,
};
enum cu_tensor_map_swizzle {
    CU_TENSOR_MAP_SWIZZLE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_32B = 1,
    CU_TENSOR_MAP_SWIZZLE_64B = 2,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
};
enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0, CU_TENSOR_MAP_OOB_FILL_NONE = 0 };
enum cu_tensor_map_promotion { CU_TENSOR_MAP_L2_PROMOTION_NONE = 0, CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };

enum cu_launch_attribute_id {
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};
union cu_launch_attribute_value {
    _Alignas(8) char pad[64];
    struct {
        unsigned x, y, z;
    } cluster;
    int programmatic;
};
struct cu_launch_attribute {
    int id;
    char pad[8 - sizeof(int)];
    union cu_launch_attribute_value value;
};
_Static_assert(sizeof(struct cu_launch_attribute) == 72, "CUlaunchAttribute");
struct cu_launch_config {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    cu_stream stream;
    struct cu_launch_attribute *attributes;
    unsigned attribute_count;
};

enum cu_graph_node_type {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
};
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
struct cu_kernel_node_params { /* CUDA_KERNEL_NODE_PARAMS_v3 */
    cu_function function;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void **params;
    void **extra;
    cu_kernel kernel;
    cu_context context;
};
struct cu_child_graph_params { /* CUDA_CHILD_GRAPH_NODE_PARAMS: the graph is copied */
    cu_graph graph;
    int ownership; /* 0: remains the caller's; before CUDA 12.9 the member does not exist and must be zero */
};
struct cu_graph_node_params { /* CUgraphNodeParams */
    int type;
    int reserved0[3];
    union {
        long long reserved1[29];
        struct cu_kernel_node_params kernel;
        struct cu_child_graph_params graph;
    };
    long long reserved2;
};
_Static_assert(sizeof(struct cu_graph_node_params) == 256, "CUgraphNodeParams");

enum { CU_GRAPH_PORT_DEFAULT = 0, CU_GRAPH_PORT_PROGRAMMATIC = 1 };
enum { CU_GRAPH_EDGE_FULL = 0, CU_GRAPH_EDGE_PROGRAMMATIC = 1 };
struct cu_graph_edge {
    unsigned char from_port, to_port, type, reserved[5];
};
_Static_assert(sizeof(struct cu_graph_edge) == 8, "CUgraphEdgeData");

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2, CU_MEMHOSTALLOC_WRITECOMBINED = 4 };

/* X(member, symbol, parameters): every function that is looked up. */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                                       \
    X(Init, cuInit, (unsigned flags))                                                                                  \
    X(DriverGetVersion, cuDriverGetVersion, (int *version))                                                            \
    X(GetErrorName, cuGetErrorName, (cu_result result, const char **name))                                             \
    X(GetErrorString, cuGetErrorString, (cu_result result, const char **text))                                         \
    X(DeviceGetCount, cuDeviceGetCount, (int *count))                                                                  \
    X(DeviceGet, cuDeviceGet, (cu_device * device, int ordinal))                                                       \
    X(DeviceGetName, cuDeviceGetName, (char *name, int size, cu_device device))                                        \
    X(DeviceGetUuid, cuDeviceGetUuid_v2, (struct cu_uuid * uuid, cu_device device))                                    \
    X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, cu_device device))                                         \
    X(DeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, cu_device device))                         \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))                      \
    X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (cu_device device))                                       \
    X(CtxPushCurrent, cuCtxPushCurrent_v2, (cu_context context))                                                       \
    X(CtxPopCurrent, cuCtxPopCurrent_v2, (cu_context * context))                                                       \
    X(DeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, cu_device device, cu_device peer))                        \
    X(DeviceGetP2PAttribute, cuDeviceGetP2PAttribute, (int *value, int attribute, cu_device device, cu_device peer))   \
    X(MemGetInfo, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                        \
    X(MemAlloc, cuMemAlloc_v2, (cu_deviceptr * pointer, size_t bytes))                                                 \
    X(MemFree, cuMemFree_v2, (cu_deviceptr pointer))                                                                   \
    X(MemGetAllocationGranularity, cuMemGetAllocationGranularity,                                                      \
      (size_t * bytes, const struct cu_mem_properties *properties, int which))                                         \
    X(MemCreate, cuMemCreate,                                                                                          \
      (cu_mem_handle * handle, size_t bytes, const struct cu_mem_properties *properties, unsigned long long flags))    \
    X(MemRelease, cuMemRelease, (cu_mem_handle handle))                                                                \
    X(MemAddressReserve, cuMemAddressReserve,                                                                          \
      (cu_deviceptr * pointer, size_t bytes, size_t alignment, cu_deviceptr wish, unsigned long long flags))           \
    X(MemAddressFree, cuMemAddressFree, (cu_deviceptr pointer, size_t bytes))                                          \
    X(MemMap, cuMemMap,                                                                                                \
      (cu_deviceptr pointer, size_t bytes, size_t offset, cu_mem_handle handle, unsigned long long flags))             \
    X(MemUnmap, cuMemUnmap, (cu_deviceptr pointer, size_t bytes))                                                      \
    X(MemSetAccess, cuMemSetAccess,                                                                                    \
      (cu_deviceptr pointer, size_t bytes, const struct cu_mem_access *access, size_t count))                          \
    X(MemHostAlloc, cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                    \
    X(MemFreeHost, cuMemFreeHost, (void *pointer))                                                                     \
    X(MemHostRegister, cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags))                            \
    X(MemHostUnregister, cuMemHostUnregister, (void *pointer))                                                         \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (cu_deviceptr to, const void *from, size_t bytes, cu_stream stream))      \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, cu_deviceptr from, size_t bytes, cu_stream stream))            \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (cu_deviceptr to, cu_deviceptr from, size_t bytes, cu_stream stream))     \
    X(MemsetD8Async, cuMemsetD8Async, (cu_deviceptr to, unsigned char value, size_t bytes, cu_stream stream))          \
    X(StreamCreate, cuStreamCreate, (cu_stream * stream, unsigned flags))                                              \
    X(StreamGetCtx, cuStreamGetCtx, (cu_stream stream, cu_context * context))                                          \
    X(StreamDestroy, cuStreamDestroy_v2, (cu_stream stream))                                                           \
    X(StreamSynchronize, cuStreamSynchronize, (cu_stream stream))                                                      \
    X(StreamBeginCapture, cuStreamBeginCapture_v2, (cu_stream stream, int mode))                                       \
    X(StreamEndCapture, cuStreamEndCapture, (cu_stream stream, cu_graph * graph))                                      \
    X(StreamWaitEvent, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))                          \
    X(EventCreate, cuEventCreate, (cu_event * event, unsigned flags))                                                  \
    X(EventDestroy, cuEventDestroy_v2, (cu_event event))                                                               \
    X(EventRecord, cuEventRecord, (cu_event event, cu_stream stream))                                                  \
    X(EventSynchronize, cuEventSynchronize, (cu_event event))                                                          \
    X(EventQuery, cuEventQuery, (cu_event event))                                                                      \
    X(EventElapsedTime, cuEventElapsedTime, (float *milliseconds, cu_event start, cu_event end))                       \
    X(LibraryLoadData, cuLibraryLoadData,                                                                              \
      (cu_library * library, const void *code, void *jit_options, void **jit_values, unsigned jit_count,               \
       void *library_options, void **library_values, unsigned library_count))                                          \
    X(LibraryUnload, cuLibraryUnload, (cu_library library))                                                            \
    X(LibraryGetKernel, cuLibraryGetKernel, (cu_kernel * kernel, cu_library library, const char *name))                \
    X(KernelGetFunction, cuKernelGetFunction, (cu_function * function, cu_kernel kernel))                              \
    X(KernelSetAttribute, cuKernelSetAttribute, (int attribute, int value, cu_kernel kernel, cu_device device))        \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,                          \
      (int *blocks, cu_function function, int threads, size_t shared_bytes))                                           \
    X(KernelGetAttribute, cuKernelGetAttribute, (int *value, int attribute, cu_kernel kernel, cu_device device))       \
    X(KernelGetParamInfo, cuKernelGetParamInfo, (cu_kernel kernel, size_t index, size_t * offset, size_t * bytes))     \
    X(LaunchKernelEx, cuLaunchKernelEx,                                                                                \
      (const struct cu_launch_config *config, cu_function function, void **params, void **extra))                      \
    X(GraphCreate, cuGraphCreate, (cu_graph * graph, unsigned flags))                                                  \
    X(GraphDestroy, cuGraphDestroy, (cu_graph graph))                                                                  \
    X(GraphAddNode, cuGraphAddNode_v2,                                                                                 \
      (cu_graph_node * node, cu_graph graph, const cu_graph_node *dependencies, const struct cu_graph_edge *edges,     \
       size_t dependency_count, struct cu_graph_node_params *params))                                                  \
    X(GraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute,                                                      \
      (cu_graph_node node, int attribute, const union cu_launch_attribute_value *value))                               \
    X(GraphInstantiate, cuGraphInstantiateWithFlags, (cu_graph_exec * exec, cu_graph graph, unsigned long long flags)) \
    X(GraphExecDestroy, cuGraphExecDestroy, (cu_graph_exec exec))                                                      \
    X(GraphUpload, cuGraphUpload, (cu_graph_exec exec, cu_stream stream))                                              \
    X(GraphLaunch, cuGraphLaunch, (cu_graph_exec exec, cu_stream stream))                                              \
    X(TensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                                    \
      (struct cu_tensor_map * map, int type, unsigned rank, void *address, const uint64_t *dimensions,                 \
       const uint64_t *strides, const unsigned *box, const unsigned *element_strides, int interleave, int swizzle,     \
       int promotion, int fill))

struct cuda_driver {
    void *library; /* of dlopen */
    int version;   /* as cuDriverGetVersion: 1000 * major + 10 * minor */
#define CUDA_DRIVER_MEMBER(member, symbol, parameters) cu_result(*member) parameters;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* Opens libcuda.so.1, looks up every function and calls cuInit. STATUS_MACHINE, with expected, found and remedy, if
 * there is no driver, it is older than CU_DRIVER_LEAST_VERSION, a function is missing or cuInit fails. */
bool cuda_driver_open(struct cuda_driver *driver, struct status *status);
/* Whether this process has begun to use CUDA. */
bool cuda_driver_is_in_use(void);
void cuda_driver_close(struct cuda_driver *driver); /* does nothing on a driver that is all zero */

/* True for CU_SUCCESS; else fills status with "WHAT: NAME (text)" and returns false. All errors of the driver are
 * STATUS_MACHINE, such as lack of memory and a missing or lost device: the engine was verified before. */
bool cuda_ok(const struct cuda_driver *driver, cu_result result, struct status *status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
