# SPDX-License-Identifier: Apache-2.0
"""compile_device.py NVCC ARCHITECTURE SOURCE CUBIN REPORT: compiles one .cu file; warnings and spills are errors.

REPORT gets one line for each entry: what it takes of a multiprocessor. A file with a line "// architectures: 90a 100a"
is compiled for those alone: for others both outputs are empty."""

import os
import re
import subprocess
import sys
import tempfile

ONLY = re.compile(r"^// architectures:((?: \d+a?)+)$", re.M)
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(.*)")
SHARED = re.compile(r"(\d+) bytes smem")


def report(source, architecture, log):
    """The lines of ptxas -v, one entry after the other."""
    lines, entry, frame = [], None, (0, 0, 0)
    for line in log.splitlines():
        if ENTRY.search(line):
            entry = ENTRY.search(line).group(1)
        if FRAME.search(line):
            frame = FRAME.search(line).groups()
        if entry and USED.search(line):
            registers, rest = USED.search(line).groups()
            shared = SHARED.search(rest)
            lines.append("%s %s %s: %s registers, %s bytes static shared memory, %s bytes stack, %s bytes spilled" % (
                source, entry, architecture, registers, shared.group(1) if shared else 0, frame[0],
                int(frame[1]) + int(frame[2])))
            entry, frame = None, (0, 0, 0)
    return lines


def main(nvcc, architecture, source, cubin, report_path):
    with open(source, encoding="utf-8") as file:
        only = ONLY.search(file.read())
    if only and architecture[len("sm_"):] not in only.group(1).split():
        open(cubin, "wb").close()
        open(report_path, "w", encoding="utf-8").close()
        return 0
    command = [nvcc, "-cubin", "-arch=" + architecture, "-std=c++17", "-O3", "-I.", "-Werror=all-warnings",
               "-Xptxas=-v,--warn-on-spills,--warning-as-error", "-o", cubin, source]
    # nvcc names its temporary files by its process number, which is the same in every sandbox.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env={**os.environ, "TMPDIR": folder})
    log = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        sys.stderr.write("%s\n%s" % (" ".join(command), log))
        return 1
    lines = report(source, architecture, log)
    if not lines:
        sys.stderr.write("%s for %s: expected an entry, found none in:\n%s" % (source, architecture, log))
        return 1
    with open(report_path, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
