# SPDX-License-Identifier: Apache-2.0
"""Every external repository of the build, in one call from WORKSPACE. Nothing is downloaded: libraries and
the CUDA toolkit are those of the machine."""

load("//.bazel:cuda.bzl", "cuda_toolkit")
load("//.bazel:debian.bzl", "debian_bazel_repositories")
load("//.bazel:system_library.bzl", "system_library")

def eng_workspace():
    debian_bazel_repositories()

    system_library(name = "jansson", pc = "jansson", header = "jansson.h", lib = "jansson", debian = "libjansson-dev")
    system_library(name = "pcre2", pc = "libpcre2-8", header = "pcre2.h", lib = "pcre2-8", debian = "libpcre2-dev")
    system_library(name = "utf8proc", pc = "libutf8proc", header = "utf8proc.h", lib = "utf8proc", debian = "libutf8proc-dev")
    system_library(
        name = "xxhash",
        pc = "libxxhash",
        header = "xxhash.h",
        lib = "xxhash",
        debian = "libxxhash-dev",
        # Header only: it is hot, and one library less to find at run time.
        defines = ["XXH_INLINE_ALL="],
    )
    system_library(name = "sodium", pc = "libsodium", header = "sodium.h", lib = "sodium", debian = "libsodium-dev")
    system_library(
        name = "microhttpd",
        pc = "libmicrohttpd",
        header = "microhttpd.h",
        lib = "microhttpd",
        debian = "libmicrohttpd-dev",
    )
    system_library(name = "edit", pc = "libedit", header = "histedit.h", lib = "edit", debian = "libedit-dev")
    system_library(name = "zlib", pc = "zlib", header = "zlib.h", lib = "z", debian = "zlib1g-dev")
    system_library(name = "cmocka", pc = "cmocka", header = "cmocka.h", lib = "cmocka", debian = "libcmocka-dev")

    cuda_toolkit(name = "cuda")
