# SPDX-License-Identifier: Apache-2.0
"""Device code: each .cu file is compiled by nvcc in the normal build, so that warnings and register spills fail it.
Without a toolkit the targets are empty groups."""

load("@cuda//:defs.bzl", "CUDA_ARCHITECTURES", "CUDA_NVCC", "CUDA_VERSION")

def cuda_cubins(name, report, srcs, architectures, hdrs = [], visibility = ["//visibility:public"]):
    """Cubins of each .cu file for each architecture that nvcc knows, and a group of them all.

    report: a target of one text file with the resources of every entry; architectures: ["sm_90a", ...]; a file may
    restrict itself to some (.bazel/compile_device.py); hdrs: the .cuh files they include, from the root of the tree."""
    cubins, reports = [], []
    for architecture in architectures:
        if architecture.rstrip("a") not in CUDA_ARCHITECTURES:
            continue
        for src in srcs:
            stem = "%s.%s" % (src[:-len(".cu")], architecture)
            native.genrule(
                name = stem,
                srcs = [src] + hdrs,
                outs = [stem + ".cubin", stem + ".resources.txt"],
                # The version stands in the command so that another toolkit compiles anew.
                cmd = ": CUDA %s; python3 $(location //.bazel:compile_device.py) %s %s $(location %s) $(OUTS)" %
                      (CUDA_VERSION, CUDA_NVCC, architecture, src),
                tools = ["//.bazel:compile_device.py"],
                message = "Compiling for " + architecture,
            )
            cubins.append(stem + ".cubin")
            reports.append(stem + ".resources.txt")
    native.filegroup(name = name, srcs = cubins, visibility = visibility)
    if reports:
        native.genrule(
            name = report,
            srcs = reports,
            outs = [report + ".txt"],
            cmd = "LC_ALL=C sort $(SRCS) > $@",
            visibility = visibility,
        )
    else:
        native.filegroup(name = report, visibility = visibility)
