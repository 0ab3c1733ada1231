# SPDX-License-Identifier: Apache-2.0
"""A library of the machine as a repository: @NAME//:NAME, found by pkg-config or else by its header."""

_BUILD = """
cc_library(
    name = {name},
    hdrs = glob(["include/**"], allow_empty = True),
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

def _probe(rctx):
    """Compiler and linker words, or None where the library is missing."""
    pkg_config = rctx.which("pkg-config")
    if pkg_config:
        found = rctx.execute([pkg_config, "--cflags", "--libs", rctx.attr.pc])
        if found.return_code == 0:
            return [word for word in found.stdout.replace("\n", " ").split(" ") if word]
    for prefix in ["/usr/include/", "/usr/local/include/"]:
        if rctx.path(prefix + rctx.attr.header).exists:
            return ["-l" + rctx.attr.lib]
    return None

def _system_library_impl(rctx):
    words = _probe(rctx)
    if words == None:
        fail(("\n\nThe library '%s' (header <%s>) is missing on this machine.\n" +
              "expected: pkg-config knows '%s', or the header stands in /usr/include\n" +
              "to do:    apt-get install %s   (.ci/install installs everything that the build needs)\n") %
             (rctx.attr.lib, rctx.attr.header, rctx.attr.pc, rctx.attr.debian))

    defines = list(rctx.attr.defines)
    includes = []
    link = []
    for word in words:
        if word.startswith("-I"):
            # A prefix that the compiler does not search by itself is linked into the repository.
            include = "include/%d" % len(includes)
            rctx.symlink(word[2:], include)
            includes.append(include)
        elif word.startswith("-D"):
            defines.append(word[2:])
        else:
            link.append(word)

    # Header-only use (xxHash) must leave no dependency behind.
    if link:
        link = ["-Wl,--as-needed"] + link + ["-Wl,--no-as-needed"]
    rctx.file("BUILD", _BUILD.format(
        name = repr(rctx.name),
        defines = repr(defines),
        includes = repr(includes),
        linkopts = repr(link),
    ))

system_library = repository_rule(
    implementation = _system_library_impl,
    local = True,
    environ = ["PATH", "PKG_CONFIG_PATH"],
    attrs = {
        "pc": attr.string(mandatory = True, doc = "pkg-config name"),
        "header": attr.string(mandatory = True, doc = "header to look for where pkg-config is missing"),
        "lib": attr.string(mandatory = True, doc = "linker name where pkg-config is missing"),
        "defines": attr.string_list(doc = "macros for every user of the library"),
        "debian": attr.string(mandatory = True, doc = "Debian package that holds it"),
    },
)
