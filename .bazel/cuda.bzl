# SPDX-License-Identifier: Apache-2.0
"""The CUDA toolkit of the machine as repository @cuda, or its absence.

@cuda//:defs.bzl  CUDA_VERSION ("13.0"; "" without a toolkit), CUDA_NVCC (path), CUDA_ARCHITECTURES (["sm_90", ...])
@cuda//:headers   driver, runtime and library headers for host C; empty without a toolkit

Looked for in: $CUDA_HOME, /usr/local/cuda, the folder of an nvcc in PATH, pip wheels (nvidia-cuda-nvcc, ...)."""

# Roots that pip wheels unpack to: nvidia/cu13 (one tree) or nvidia/cuda_nvcc, nvidia/cuda_runtime, ... (several).
_WHEEL_ROOTS = """
import glob, os, site, sys
folders = site.getsitepackages() + [site.getusersitepackages()] + [p for p in sys.path if p]
roots = {os.path.realpath(r): 1 for f in folders for r in sorted(glob.glob(os.path.join(f, "nvidia", "*")))}
print("\\n".join(r for r in roots if os.path.isdir(r)))
"""

def _wheel_roots(rctx):
    python = rctx.which("python3")
    if not python:
        return []
    found = rctx.execute([python, "-c", _WHEEL_ROOTS])
    return found.stdout.strip().split("\n") if found.return_code == 0 and found.stdout.strip() else []

def _toolkit(rctx):
    """(nvcc, include folders) of the first toolkit that is complete, or (None, [])."""
    home = rctx.os.environ.get("CUDA_HOME", "")
    candidates = [[home]] if home else []
    candidates.append(["/usr/local/cuda"])
    in_path = rctx.which("nvcc")
    if in_path:
        candidates.append([str(in_path.realpath.dirname.dirname)])
    wheels = _wheel_roots(rctx)
    candidates += [[root] for root in wheels] + [wheels]
    for roots in candidates:
        nvcc = [root + "/bin/nvcc" for root in roots if rctx.path(root + "/bin/nvcc").exists]
        runtime = [root for root in roots if rctx.path(root + "/include/cuda_runtime.h").exists]
        if nvcc and runtime:
            return nvcc[0], [root + "/include" for root in roots if rctx.path(root + "/include").exists]
    return None, []

def _version(rctx, nvcc):
    if not nvcc:
        return ""
    words = rctx.execute([nvcc, "--version"]).stdout.replace(",", " ").split(" ")
    for i, word in enumerate(words):
        if word == "release":
            return words[i + 1]
    fail("%s --version prints no release number" % nvcc)

def _architectures(rctx, nvcc):
    """What nvcc compiles for; the variants with a letter ("sm_90a") come with their number."""
    if not nvcc:
        return []
    listed = rctx.execute([nvcc, "--list-gpu-arch"])
    if listed.return_code != 0:
        fail("%s --list-gpu-arch: %s" % (nvcc, listed.stderr))
    return [word.strip().replace("compute_", "sm_") for word in listed.stdout.split("\n") if word.strip()]

_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(["*/*.h", "*/crt/*.h"], allow_empty = True),
    includes = {includes},
    visibility = ["//visibility:public"],
)
"""

def _cuda_toolkit_impl(rctx):
    nvcc, includes = _toolkit(rctx)
    version = _version(rctx, nvcc)
    if not nvcc:
        # buildifier: disable=print
        print("no CUDA toolkit on this machine: device code is not built, everything else is")
    links = []
    for include in includes:
        links.append("include%d" % len(links))
        rctx.symlink(include, links[-1])
    rctx.file("BUILD", _BUILD.format(includes = repr(links)))
    rctx.file("defs.bzl", "\n".join([
        "CUDA_VERSION = %r" % version,
        "CUDA_NVCC = %r" % (nvcc or ""),
        "CUDA_ARCHITECTURES = %r" % _architectures(rctx, nvcc),
        "",
    ]))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    local = True,
    environ = ["CUDA_HOME", "PATH"],
)
