"""Device code: each .cu file is compiled by nvcc in the normal build, so that warnings and register spills fail it.
Without a toolkit the targets are empty groups."""

load("@cuda//:defs.bzl", "CUDA_FOUND", "CUDA_INCLUDES", "CUDA_NVCC", "CUDA_VERSION")

def cuda_cubins(name, srcs, arch, hdrs = [], copts = [], visibility = ["//visibility:public"]):
    """One cubin beside each .cu file, and a group of them all.

    arch: "sm_90a"; hdrs: the .cuh and .h files they include, from the root of the tree."""
    words = [
        CUDA_NVCC,
        "-cubin",
        "-arch=" + arch,
        "-std=c++17",
        "-O3",
        "-Werror=all-warnings",
        "-Xptxas=--warn-on-spills,--warning-as-error",
        "-I.",
    ] + ["-I" + include for include in CUDA_INCLUDES] + copts
    cubins = [src[:-len(".cu")] + ".cubin" for src in srcs] if CUDA_FOUND else []
    for cubin in cubins:
        src = cubin[:-len(".cubin")] + ".cu"
        native.genrule(
            name = cubin[:-len(".cubin")] + "_cubin",
            srcs = [src] + hdrs,
            outs = [cubin],
            # The version stands in the command so that another toolkit compiles anew.
            cmd = ": CUDA %s; %s -o $@ $(location %s)" % (CUDA_VERSION, " ".join(words), src),
            message = "Compiling for " + arch,
        )
    native.filegroup(name = name, srcs = cubins, visibility = visibility)
