# SPDX-License-Identifier: Apache-2.0
"""All that Debian 12's bazel-bootstrap (4.2.3) needs to build without a network, and nothing else.

Debian's build carries no release label, so it reports an empty version; every upstream release (5 to 7 are
meant to work) reports its own and gets nothing from this file. The repositories below are the ones that
upstream's built-in WORKSPACE suffix would download."""

_DEFS = """
cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_library = native.objc_library
"""

_TOOLCHAIN_TYPE = """
package(default_visibility = ["//visibility:public"])

toolchain_type(name = "toolchain_type")
"""

_COVERAGE = """
package(default_visibility = ["//visibility:public"])

filegroup(name = "coverage_report_generator")
"""

def _files_impl(rctx):
    for path, content in rctx.attr.files.items():
        rctx.file(path, content)

_files_repository = repository_rule(
    implementation = _files_impl,
    attrs = {"files": attr.string_dict()},
)

def debian_bazel_repositories():
    if native.bazel_version != "":
        return

    # Debian's own bazel-rules-cc is newer than this Bazel understands.
    _files_repository(
        name = "rules_cc",
        files = {
            "BUILD": "",
            "cc/BUILD": _TOOLCHAIN_TYPE,
            "cc/defs.bzl": _DEFS,
        },
    )
    _files_repository(name = "remote_coverage_tools", files = {"BUILD": _COVERAGE})
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")  # bazel-rules-java
    native.local_repository(name = "platforms", path = "/usr/share/bazel/tools/platforms")  # bazel-platforms
