# SPDX-License-Identifier: Apache-2.0
"""embed_sources.py FILE...: prints a C file that defines device_sources and device_source_count (kernels/cuda/nvrtc.h).

Paths are given from the root of the tree, as in #include, which is the current folder."""

import sys

ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\r": "\\r", "?": "\\?"}


def literal(line):
    """One line of text as a C string literal, with its newline."""
    return '"' + "".join(escaped(byte) for byte in line.encode()) + '\\n"'


def escaped(byte):
    character = chr(byte)
    if character in ESCAPES:
        return ESCAPES[character]
    # Octal takes at most three digits, so that what follows cannot run into it.
    return character if 0x20 <= byte < 0x7f else "\\%03o" % byte


def main(arguments):
    paths = sorted(set(arguments))
    print('#include "kernels/cuda/nvrtc.h"\n\nconst struct device_source device_sources[] = {')
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        print('    {"%s",' % path)
        for line in text.split("\n")[:-1] if text.endswith("\n") else text.split("\n"):
            print("     " + literal(line))
        print('     ""},')
    # An array has at least one element; the count leaves it out.
    print("    {0, 0},\n};\nconst size_t device_source_count = sizeof device_sources / sizeof *device_sources - 1;")


if __name__ == "__main__":
    main(sys.argv[1:])
