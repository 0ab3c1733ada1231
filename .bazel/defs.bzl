# SPDX-License-Identifier: Apache-2.0
"""Rules of this repository: C libraries, programs and tests with one set of flags."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", find_cc_toolchain = "find_cpp_toolchain")

# Instruction-set flags are chosen by file name in .bazelrc; -ffast-math never, contraction never, so that a
# result depends on the source alone.
_COPTS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-ffp-contract=off",
    # Tables for stack unwinding without frame pointers: 5 % of libeng.so, and C throws nothing.
    "-fno-asynchronous-unwind-tables",
]

# The fuzz config compiles with clang, whose -Wconversion means more than gcc's; under sanitizers gcc warns of what
# cannot happen (its manual says so).
_WARNINGS_ARE_ERRORS = select({
    "//.bazel:asan": ["-Wno-error"],
    "//.bazel:tsan": ["-Wno-error"],
    "//.bazel:fuzz": ["-Wno-error", "-Wno-sign-conversion"],
    "//conditions:default": ["-Werror"],
})

_COPTS_ALL = _COPTS + _WARNINGS_ARE_ERRORS + select({
    "//.bazel:tsan": ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread"],
    "//conditions:default": [],
})

_LINKOPTS = select({
    "//.bazel:tsan": ["-fsanitize=thread"],
    "//conditions:default": [],
})

# cmocka passes every test a state, which most do not use.
_TEST_COPTS = ["-Wno-unused-parameter"]

_ISA_SUFFIXES = ["_avx2.c", "_avx512.c", "_avx512vnni.c", "_avx512bf16.c", "_amx.c"]

def _by_platform(srcs):
    """The sources, less those for instruction sets that the platform does not have."""
    isa = [src for src in srcs if [1 for suffix in _ISA_SUFFIXES if src.endswith(suffix)]]
    if not isa:
        return srcs
    return [src for src in srcs if src not in isa] + select({
        "@platforms//cpu:x86_64": isa,
        "//conditions:default": [],
    })

def eng_library(name, srcs = [], hdrs = [], deps = [], copts = [], visibility = ["//visibility:public"], **kwargs):
    native.cc_library(
        name = name,
        srcs = _by_platform(srcs),
        hdrs = hdrs,
        deps = deps,
        copts = _COPTS_ALL + copts,
        linkstatic = True,
        visibility = visibility,
        **kwargs
    )

def eng_binary(name, srcs, deps = [], copts = [], linkopts = [], visibility = ["//visibility:public"], **kwargs):
    """A program (or, with linkshared, a library); an empty group of that name while its sources do not exist."""
    if not srcs and not kwargs.get("linkshared"):
        native.filegroup(name = name, visibility = visibility)
        return
    native.cc_binary(
        name = name,
        srcs = srcs,
        deps = deps,
        copts = _COPTS_ALL + copts,
        linkopts = [
            "-Wl,--gc-sections",
            # For the tarball of //:dist, where bin/ and lib/ stand side by side.
            "-Wl,-rpath,$$ORIGIN" if kwargs.get("linkshared") else "-Wl,-rpath,$$ORIGIN/../lib",
        ] + linkopts + _LINKOPTS,
        visibility = visibility,
        **kwargs
    )

def eng_test(name, srcs, deps = [], copts = [], linkopts = [], timeout = "long", **kwargs):
    native.cc_test(
        name = name,
        srcs = srcs + ["//.bazel:lsan_suppressions.c"],
        deps = deps + ["@cmocka//:cmocka"],
        copts = _COPTS_ALL + _TEST_COPTS + copts,
        linkopts = linkopts + _LINKOPTS,
        linkstatic = True,
        timeout = timeout,
        **kwargs
    )

def _suite(name, tests):
    # An empty list would mean every test of the package.
    if tests:
        native.test_suite(name = name, tests = tests)

def unit_tests(name, srcs, helpers = [], deps = [], data = [], linkopts = [], **kwargs):
    """One cmocka test for each file, named as the file without its ending, and a suite of them all.

    helpers: sources and headers that the tests share, here and (as :testing) in the folders above. The files are
    exported: //tests/gpu links those of device kernels into one program."""
    native.exports_files(srcs, visibility = ["//tests:__subpackages__"])
    eng_library(
        name = "testing",
        srcs = [helper for helper in helpers if helper.endswith(".c")],
        hdrs = [helper for helper in helpers if helper.endswith(".h")],
        testonly = True,
        copts = _TEST_COPTS,
        deps = deps + ["@cmocka//:cmocka"],
    )
    for src in srcs:
        eng_test(
            name = src[:-len(".c")],
            srcs = [src],
            deps = [":testing"] + deps,
            data = data,
            linkopts = linkopts,
            **kwargs
        )
    _suite(name, [src[:-len(".c")] for src in srcs])

def python_tests(name, srcs, data = [], timeout = "long", tags = [], **kwargs):
    """One test for each Python file (standard library only), named as the file without its ending."""
    for src in srcs:
        native.sh_test(
            name = src[:-len(".py")],
            srcs = ["//.bazel:run_python.sh"],
            args = ["$(rootpath %s)" % src],
            data = [src] + data,
            timeout = timeout,
            tags = tags,
            **kwargs
        )
    _suite(name, [src[:-len(".py")] for src in srcs])

def fuzz_tests(name, srcs, deps = [], data = {}, **kwargs):
    """A fuzz target for each file, named as the file without its ending; its corpus is corpus/NAME beside it.

    As a test it replays the corpus and tries 10,000 seeded mutations; with --config=fuzz it is a libFuzzer
    program. data: further files by target name."""
    for src in srcs:
        target = src[:-len(".c")]
        folder, _, file = target.rpartition("/")
        corpus = "%s/corpus/%s" % (folder, file[:-len("_fuzz")])
        native.cc_test(
            name = target,
            srcs = [src, folder + "/cost.c"] + native.glob([folder + "/*.h"]) + select({
                "//.bazel:fuzz": [folder + "/libfuzzer_mutator.c"],
                "//conditions:default": [folder + "/standalone_driver.c"],
            }),
            args = [native.package_name() + "/" + corpus],
            copts = _COPTS_ALL,
            data = native.glob([corpus + "/**"], allow_empty = True) + data.get(target, []),
            linkopts = select({
                "//.bazel:fuzz": ["-fsanitize=fuzzer"],
                "//conditions:default": [],
            }) + _LINKOPTS,
            linkstatic = True,
            timeout = "eternal",
            deps = deps,
            **kwargs
        )
    _suite(name, [src[:-len(".c")] for src in srcs])

def _bool_setting_impl(ctx):
    return []

bool_setting = rule(
    implementation = _bool_setting_impl,
    doc = "--//FOLDER:NAME",
    build_setting = config.bool(flag = True),
)

def _with_tsan_impl(settings, attr):
    return {
        "//.bazel:with_tsan": True,
        "//command_line_option:platform_suffix": "-tsan",
        "//command_line_option:strip": "never",
    }

_with_tsan = transition(
    implementation = _with_tsan_impl,
    inputs = [],
    outputs = [
        "//.bazel:with_tsan",
        "//command_line_option:platform_suffix",
        "//command_line_option:strip",
    ],
)

def _tsan_program_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = out, target_file = ctx.executable.program, is_executable = True)
    return [DefaultInfo(executable = out, runfiles = ctx.runfiles([out]))]

tsan_program = rule(
    implementation = _tsan_program_impl,
    doc = "A program as --config=tsan builds it, for tests of another configuration.",
    attrs = {
        "program": attr.label(executable = True, cfg = _with_tsan),
        "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
    },
    executable = True,
)

def _eng_static_archive_impl(ctx):
    archives = []
    for dep in ctx.attr.deps:
        for linker_input in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linker_input.libraries:
                archive = library.pic_static_library or library.static_library
                if archive and archive not in archives:
                    archives.append(archive)
    cc = find_cc_toolchain(ctx)
    out = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.run_shell(
        outputs = [out],
        inputs = depset(archives, transitive = [cc.all_files]),
        command = """set -eu
out=$1 ld=$2 objcopy=$3 ar=$4
shift 4
"$ld" -r -o "$out.o" --whole-archive "$@"
"$objcopy" --localize-hidden "$out.o"
rm -f "$out"
"$ar" rcsD "$out" "$out.o"
rm "$out.o"
""",
        arguments = [out.path, cc.ld_executable, cc.objcopy_executable, cc.ar_executable] +
                    [archive.path for archive in archives],
        mnemonic = "MergeArchive",
    )
    return [DefaultInfo(files = depset([out]))]

eng_static_archive = rule(
    implementation = _eng_static_archive_impl,
    doc = "One archive of a library and all libraries of this repository below it; hidden names become local.",
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
