/* SPDX-License-Identifier: Apache-2.0 */
/* Compares driver.h with the toolkit's cuda.h, all of it at compile time. Without a toolkit (12.4 or later) there is
 * nothing to compare with, and the test reports that. */
#include <stdio.h>

#include "formats/base/test_program.h"

/* Some of our enumerators have names of cuda.h: rename them here. */
#define CU_MEMHOSTALLOC_PORTABLE                              OUR_MEMHOSTALLOC_PORTABLE
#define CU_MEMHOSTALLOC_DEVICEMAP                             OUR_MEMHOSTALLOC_DEVICEMAP
#define CU_MEMHOSTALLOC_WRITECOMBINED                         OUR_MEMHOSTALLOC_WRITECOMBINED
#define CU_MEMHOSTREGISTER_PORTABLE                           OUR_MEMHOSTREGISTER_PORTABLE
#define CU_STREAM_NON_BLOCKING                                OUR_STREAM_NON_BLOCKING
#define CU_EVENT_DEFAULT                                      OUR_EVENT_DEFAULT
#define CU_EVENT_BLOCKING_SYNC                                OUR_EVENT_BLOCKING_SYNC
#define CU_EVENT_DISABLE_TIMING                               OUR_EVENT_DISABLE_TIMING
#define CU_GRAPH_NODE_TYPE_KERNEL                             OUR_GRAPH_NODE_TYPE_KERNEL
#define CU_GRAPH_NODE_TYPE_MEMCPY                             OUR_GRAPH_NODE_TYPE_MEMCPY
#define CU_GRAPH_NODE_TYPE_MEMSET                             OUR_GRAPH_NODE_TYPE_MEMSET
#define CU_GRAPH_NODE_TYPE_GRAPH                              OUR_GRAPH_NODE_TYPE_GRAPH
#define CU_STREAM_CAPTURE_MODE_RELAXED                        OUR_STREAM_CAPTURE_MODE_RELAXED
#define CU_TENSOR_MAP_SWIZZLE_NONE                            OUR_TENSOR_MAP_SWIZZLE_NONE
#define CU_TENSOR_MAP_SWIZZLE_32B                             OUR_TENSOR_MAP_SWIZZLE_32B
#define CU_TENSOR_MAP_SWIZZLE_64B                             OUR_TENSOR_MAP_SWIZZLE_64B
#define CU_TENSOR_MAP_SWIZZLE_128B                            OUR_TENSOR_MAP_SWIZZLE_128B
#define CU_TENSOR_MAP_INTERLEAVE_NONE                         OUR_TENSOR_MAP_INTERLEAVE_NONE
#define CU_TENSOR_MAP_L2_PROMOTION_NONE                       OUR_TENSOR_MAP_L2_PROMOTION_NONE
#define CU_TENSOR_MAP_L2_PROMOTION_L2_256B                    OUR_TENSOR_MAP_L2_PROMOTION_L2_256B
#define CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION                 OUR_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
#define CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION OUR_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

#include "kernels/cuda/driver.h"

#undef CU_MEMHOSTALLOC_PORTABLE
#undef CU_MEMHOSTALLOC_DEVICEMAP
#undef CU_MEMHOSTALLOC_WRITECOMBINED
#undef CU_MEMHOSTREGISTER_PORTABLE
#undef CU_STREAM_NON_BLOCKING
#undef CU_EVENT_DEFAULT
#undef CU_EVENT_BLOCKING_SYNC
#undef CU_EVENT_DISABLE_TIMING
#undef CU_GRAPH_NODE_TYPE_KERNEL
#undef CU_GRAPH_NODE_TYPE_MEMCPY
#undef CU_GRAPH_NODE_TYPE_MEMSET
#undef CU_GRAPH_NODE_TYPE_GRAPH
#undef CU_STREAM_CAPTURE_MODE_RELAXED
#undef CU_TENSOR_MAP_SWIZZLE_NONE
#undef CU_TENSOR_MAP_SWIZZLE_32B
#undef CU_TENSOR_MAP_SWIZZLE_64B
#undef CU_TENSOR_MAP_SWIZZLE_128B
#undef CU_TENSOR_MAP_INTERLEAVE_NONE
#undef CU_TENSOR_MAP_L2_PROMOTION_NONE
#undef CU_TENSOR_MAP_L2_PROMOTION_L2_256B
#undef CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
#undef CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

#if __has_include(<cuda.h>)
#include <cuda.h>
#endif

#if defined(CUDA_VERSION) && CUDA_VERSION >= 12040

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define SAME_SIZE(ours, theirs) \
    _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) >= _Alignof(theirs), #ours)
#define SAME_MEMBER(ours, member, theirs, their_member)                                    \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, their_member) &&             \
                       sizeof(((ours *)0)->member) == sizeof(((theirs *)0)->their_member), \
                   #ours "." #member)
/* Three consecutive members of cuda.h are one array in driver.h. */
#define SAME_TRIPLE(ours, member, theirs, x, y, z)                                      \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, x) &&                     \
                       offsetof(theirs, y) == offsetof(theirs, x) + sizeof(unsigned) && \
                       offsetof(theirs, z) == offsetof(theirs, y) + sizeof(unsigned) && \
                       sizeof(((ours *)0)->member) == 3 * sizeof(unsigned),             \
                   #ours "." #member)

SAME_VALUE(CU_SUCCESS, CUDA_SUCCESS);
SAME_VALUE(CU_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CU_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(CU_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_VALUE(CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);

SAME_VALUE(CU_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(CU_ATTRIBUTE_WARP_SIZE, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME_VALUE(CU_ATTRIBUTE_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_VALUE(CU_P2P_ATTRIBUTE_NATIVE_ATOMICS, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
SAME_VALUE(CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(CU_ATTRIBUTE_MEMORY_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME_VALUE(CU_ATTRIBUTE_MEMORY_BUS_WIDTH, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME_VALUE(CU_ATTRIBUTE_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(CU_ATTRIBUTE_MAX_SHARED_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME_VALUE(CU_ATTRIBUTE_MAX_SHARED_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

SAME_VALUE(CU_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(CU_MEM_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(CU_MEM_ON_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(CU_MEM_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(CU_MEM_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

SAME_VALUE(CU_FUNCTION_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(CU_FUNCTION_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_VALUE(CU_FUNCTION_LOCAL_SIZE_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_VALUE(CU_FUNCTION_NUM_REGS, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_VALUE(CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(CU_FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME_VALUE(CU_FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);

SAME_VALUE(CU_TENSOR_MAP_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME_VALUE(CU_TENSOR_MAP_INT64, CU_TENSOR_MAP_DATA_TYPE_INT64);
SAME_VALUE(CU_TENSOR_MAP_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME_VALUE(CU_TENSOR_MAP_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME_VALUE(CU_TENSOR_MAP_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME_VALUE(OUR_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME_VALUE(OUR_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_32B);
SAME_VALUE(OUR_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_64B);
SAME_VALUE(OUR_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME_VALUE(OUR_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME_VALUE(CU_TENSOR_MAP_OOB_FILL_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
SAME_VALUE(OUR_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
SAME_VALUE(OUR_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

SAME_VALUE(OUR_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME_VALUE(OUR_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
           CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME_VALUE(OUR_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_KERNEL);
SAME_VALUE(OUR_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMCPY);
SAME_VALUE(OUR_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_MEMSET);
SAME_VALUE(OUR_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_GRAPH);
SAME_VALUE(OUR_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(CU_GRAPH_PORT_DEFAULT, CU_GRAPH_KERNEL_NODE_PORT_DEFAULT);
SAME_VALUE(CU_GRAPH_PORT_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
SAME_VALUE(CU_GRAPH_EDGE_FULL, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
SAME_VALUE(CU_GRAPH_EDGE_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
SAME_VALUE(OUR_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_VALUE(OUR_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME_VALUE(OUR_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME_VALUE(OUR_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(OUR_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME_VALUE(OUR_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME_VALUE(OUR_MEMHOSTALLOC_WRITECOMBINED, CU_MEMHOSTALLOC_WRITECOMBINED);
SAME_VALUE(OUR_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);

SAME_SIZE(cu_result, CUresult);
SAME_SIZE(cu_device, CUdevice);
SAME_SIZE(cu_deviceptr, CUdeviceptr);
SAME_SIZE(struct cu_uuid, CUuuid);
SAME_SIZE(cu_mem_handle, CUmemGenericAllocationHandle);
SAME_SIZE(struct cu_mem_location, CUmemLocation);
SAME_MEMBER(struct cu_mem_location, type, CUmemLocation, type);
SAME_MEMBER(struct cu_mem_location, id, CUmemLocation, id);
SAME_SIZE(struct cu_mem_properties, CUmemAllocationProp);
SAME_MEMBER(struct cu_mem_properties, type, CUmemAllocationProp, type);
SAME_MEMBER(struct cu_mem_properties, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_MEMBER(struct cu_mem_properties, location, CUmemAllocationProp, location);
SAME_MEMBER(struct cu_mem_properties, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_MEMBER(struct cu_mem_properties, flags, CUmemAllocationProp, allocFlags);
SAME_SIZE(struct cu_mem_access, CUmemAccessDesc);
SAME_MEMBER(struct cu_mem_access, location, CUmemAccessDesc, location);
SAME_MEMBER(struct cu_mem_access, flags, CUmemAccessDesc, flags);
SAME_SIZE(struct cu_tensor_map, CUtensorMap);

SAME_SIZE(union cu_launch_attribute_value, CUlaunchAttributeValue);
SAME_MEMBER(union cu_launch_attribute_value, cluster, CUlaunchAttributeValue, clusterDim);
SAME_MEMBER(union cu_launch_attribute_value, programmatic, CUlaunchAttributeValue,
            programmaticStreamSerializationAllowed);
SAME_SIZE(struct cu_launch_attribute, CUlaunchAttribute);
SAME_MEMBER(struct cu_launch_attribute, id, CUlaunchAttribute, id);
SAME_MEMBER(struct cu_launch_attribute, value, CUlaunchAttribute, value);

SAME_SIZE(struct cu_launch_config, CUlaunchConfig);
SAME_TRIPLE(struct cu_launch_config, grid, CUlaunchConfig, gridDimX, gridDimY, gridDimZ);
SAME_TRIPLE(struct cu_launch_config, block, CUlaunchConfig, blockDimX, blockDimY, blockDimZ);
SAME_MEMBER(struct cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_MEMBER(struct cu_launch_config, stream, CUlaunchConfig, hStream);
SAME_MEMBER(struct cu_launch_config, attributes, CUlaunchConfig, attrs);
SAME_MEMBER(struct cu_launch_config, attribute_count, CUlaunchConfig, numAttrs);

SAME_SIZE(struct cu_kernel_node_params, CUDA_KERNEL_NODE_PARAMS_v3);
SAME_MEMBER(struct cu_kernel_node_params, function, CUDA_KERNEL_NODE_PARAMS_v3, func);
SAME_TRIPLE(struct cu_kernel_node_params, grid, CUDA_KERNEL_NODE_PARAMS_v3, gridDimX, gridDimY, gridDimZ);
SAME_TRIPLE(struct cu_kernel_node_params, block, CUDA_KERNEL_NODE_PARAMS_v3, blockDimX, blockDimY, blockDimZ);
SAME_MEMBER(struct cu_kernel_node_params, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v3, sharedMemBytes);
SAME_MEMBER(struct cu_kernel_node_params, params, CUDA_KERNEL_NODE_PARAMS_v3, kernelParams);
SAME_MEMBER(struct cu_kernel_node_params, extra, CUDA_KERNEL_NODE_PARAMS_v3, extra);
SAME_MEMBER(struct cu_kernel_node_params, kernel, CUDA_KERNEL_NODE_PARAMS_v3, kern);
SAME_MEMBER(struct cu_kernel_node_params, context, CUDA_KERNEL_NODE_PARAMS_v3, ctx);

SAME_MEMBER(struct cu_child_graph_params, graph, CUDA_CHILD_GRAPH_NODE_PARAMS, graph);

SAME_SIZE(struct cu_graph_node_params, CUgraphNodeParams);
SAME_MEMBER(struct cu_graph_node_params, type, CUgraphNodeParams, type);
SAME_MEMBER(struct cu_graph_node_params, reserved0, CUgraphNodeParams, reserved0);
SAME_MEMBER(struct cu_graph_node_params, kernel, CUgraphNodeParams, kernel);
SAME_MEMBER(struct cu_graph_node_params, graph, CUgraphNodeParams, graph);
SAME_MEMBER(struct cu_graph_node_params, reserved1, CUgraphNodeParams, reserved1);
SAME_MEMBER(struct cu_graph_node_params, reserved2, CUgraphNodeParams, reserved2);

SAME_SIZE(struct cu_graph_edge, CUgraphEdgeData);
SAME_MEMBER(struct cu_graph_edge, from_port, CUgraphEdgeData, from_port);
SAME_MEMBER(struct cu_graph_edge, to_port, CUgraphEdgeData, to_port);
SAME_MEMBER(struct cu_graph_edge, type, CUgraphEdgeData, type);
SAME_MEMBER(struct cu_graph_edge, reserved, CUgraphEdgeData, reserved);

/* Functions: the parameter lists of driver.h, with our types replaced, must be those of cuda.h. */
#define cu_result                 CUresult
#define cu_device                 CUdevice
#define cu_deviceptr              CUdeviceptr
#define cu_context                CUcontext
#define cu_stream                 CUstream
#define cu_event                  CUevent
#define cu_library                CUlibrary
#define cu_kernel                 CUkernel
#define cu_function               CUfunction
#define cu_graph                  CUgraph
#define cu_graph_node             CUgraphNode
#define cu_graph_exec             CUgraphExec
#define cu_uuid                   CUuuid_st
#define cu_mem_handle             CUmemGenericAllocationHandle
#define cu_mem_properties         CUmemAllocationProp_st
#define cu_mem_access             CUmemAccessDesc_st
#define cu_tensor_map             CUtensorMap_st
#define cu_launch_config          CUlaunchConfig_st
#define cu_launch_attribute_value CUlaunchAttributeValue_union
#define cu_graph_edge             CUgraphEdgeData_st
#define cu_graph_node_params      CUgraphNodeParams_st

/* Where cuda.h has an enum or its arrays, driver.h has int or void. */
typedef CUresult DeviceGetAttribute(int *, CUdevice_attribute, CUdevice);
typedef CUresult DeviceGetP2PAttribute(int *, CUdevice_P2PAttribute, CUdevice, CUdevice);
typedef CUresult MemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
typedef CUresult KernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice);
typedef CUresult KernelGetAttribute(int *, CUfunction_attribute, CUkernel, CUdevice);
typedef CUresult StreamBeginCapture(CUstream, CUstreamCaptureMode);
typedef CUresult LibraryLoadData(CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *,
                                 void **, unsigned);
typedef CUresult GraphKernelNodeSetAttribute(CUgraphNode, CUkernelNodeAttrID, const CUkernelNodeAttrValue *);
typedef CUresult TensorMapEncodeTiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                      const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                      CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

#define IS_TYPE(symbol, type) __builtin_types_compatible_p(__typeof__(symbol), type)
#define SAME_FUNCTION(member, symbol, parameters)                                                             \
    _Static_assert(IS_TYPE(symbol, CUresult parameters) || IS_TYPE(symbol, DeviceGetAttribute) ||             \
                       IS_TYPE(symbol, DeviceGetP2PAttribute) || IS_TYPE(symbol, KernelSetAttribute) ||       \
                       IS_TYPE(symbol, KernelGetAttribute) || IS_TYPE(symbol, StreamBeginCapture) ||          \
                       IS_TYPE(symbol, LibraryLoadData) || IS_TYPE(symbol, GraphKernelNodeSetAttribute) ||    \
                       IS_TYPE(symbol, TensorMapEncodeTiled) || IS_TYPE(symbol, MemGetAllocationGranularity), \
                   #symbol);
CUDA_DRIVER_FUNCTIONS(SAME_FUNCTION)

static const int compared_version = CUDA_VERSION;

#else

static const int compared_version;

#endif

TEST(test_declarations_agree)
{
    if (!compared_version) {
        fprintf(stderr, "skipped: no cuda.h of CUDA 12.4 or later to compare driver.h with\n");
        skip();
    }
    assert_true(compared_version >= CU_DRIVER_LEAST_VERSION);
}

int main(void) { return test_run(); }
