/* SPDX-License-Identifier: Apache-2.0 */
/* Types and parameters of all device code. No toolkit header is included anywhere: NVRTC and nvcc see the same text.
 *
 * A kernel is `template <class P> struct NAME_body` in a .cuh file. P has the parameters as static constants, and
 * run() is called by all threads of a block, from any kernel with the block size, the cluster and the shared memory
 * that the body requires. NAME.cu gives the entry: a struct of the parameters and a call of run(). The compiler is
 * given the parameters as the macro KERNEL_PARAMS, a sequence of PARAM(NAME)=value; and each also as PARAM_NAME, for
 * optional operands alone. */
#ifndef KERNELS_CUDA_INCLUDE_DEVICE_CUH
#define KERNELS_CUDA_INCLUDE_DEVICE_CUH

/* Begins a member of the struct of parameters, which is an int where its value is one. */
#define PARAM(name) static constexpr auto name

/* Operands that a launch lacks where a parameter is 0 (`has`: its PARAM_NAME, at most 2): their declarations at the end of
 * the entry's list, and the value passed on for one of them. */
#define OPTIONAL(has, ...)    OPTIONAL_IF(has, __VA_ARGS__)
#define OPTIONAL_IF(has, ...) OPTIONAL_##has(__VA_ARGS__)
#define OPTIONAL_0(...)
#define OPTIONAL_1(...)             , __VA_ARGS__
#define OPTIONAL_2(...)             , __VA_ARGS__
#define IF_PRESENT(has, operand)    IF_PRESENT_IF(has, operand)
#define IF_PRESENT_IF(has, operand) IF_PRESENT_##has(operand)
#define IF_PRESENT_0(operand)       nullptr
#define IF_PRESENT_1(operand)       operand
#define IF_PRESENT_2(operand)       operand

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

/* CUtensorMap, passed by value as a __grid_constant__ parameter. */
struct alignas(64) tensor_map {
    u64 opaque[16];
};

/* Programmatic dependent launch: waits until every launch before this one has completed and its stores are visible.
 * Without the launch attribute both do nothing. */
__device__ __forceinline__ void device_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next launch begin its preamble as soon as every block has called this or ended. */
__device__ __forceinline__ void device_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float float_of_bits(u32 bits) { return __int_as_float((int)bits); }
__device__ __forceinline__ u32 bits_of_float(float value) { return (u32)__float_as_int(value); }

/* A word of a workspace is zero until it is written: a value is its own flag and needs neither a fence nor a
 * counter. Zero itself is written as minus zero. */
__device__ __forceinline__ float marked(float value) { return value == 0 ? float_of_bits(0x80000000) : value; }

__device__ __forceinline__ u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

#endif
