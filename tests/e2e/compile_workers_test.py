# SPDX-License-Identifier: Apache-2.0
"""Processes of engbuild that compile kernels beside a build with many threads. The driver and the compiler are tests/fake_cuda."""

import os
import signal
import socket
import struct
import subprocess
import time
import unittest

from harness import BUILT, ENGBUILD, FABLES, contents, run, scratch

THREADS = 12  # four beyond those of one process
WORKERS = 4
FAKE = {"LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", part) for part in ("whole", "compiler")),
        "FAKE_CUDA_MEMORY": "100000000"}
SLOW = {**FAKE, "FAKE_NVRTC_SLOW": "50"}


def workers_of(process):
    """Process numbers of the workers that a process has started."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % process):
            with open("/proc/%d/task/%s/children" % (process, task), encoding="ascii") as file:
                for child in file.read().split():
                    with open("/proc/%s/cmdline" % child, "rb") as line:
                        if b"--compile-worker" in line.read().split(b"\0"):
                            found.append(int(child))
    except OSError:
        pass  # it has ended
    return found


class CompileWorkers(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def command(self, name, threads, *more):
        return [ENGBUILD, "--model", FABLES, "--target", "cuda", "--tune", "off", "--tuning-cache", "none", "--max-batch", "4",
                "--batch-sizes", "1,4", "--prefill-chunks", "16", "--max-context", "128", "--lean", "--quiet", "--threads", str(threads),
                "-o", os.path.join(self.folder, name), *more]

    def begin(self, name, env=None):
        """A build that has its workers."""
        build = subprocess.Popen(self.command(name, THREADS), env={**os.environ, **SLOW, **(env or {})}, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE)
        self.addCleanup(build.stderr.close)
        end = time.monotonic() + 60
        while len(workers_of(build.pid)) < WORKERS and build.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        workers = workers_of(build.pid)
        self.assertEqual(len(workers), WORKERS)
        return build, workers

    def build_alone(self):
        result = run(self.command("alone.eng", 1), env=FAKE)
        self.assertEqual(result.rc, 0, result.stderr)
        return contents(os.path.join(self.folder, "alone.eng"))

    def test_same_engine(self):
        alone = self.build_alone()
        build, workers = self.begin("m.eng")
        self.assertEqual(build.wait(120), 0, build.stderr.read())
        self.assertEqual(contents(os.path.join(self.folder, "m.eng")), alone)
        for worker in workers:
            self.assertFalse(os.path.exists("/proc/%d" % worker))

    def test_killed_workers(self):
        alone = self.build_alone()
        build, workers = self.begin("m.eng")
        time.sleep(0.1)  # each is asked for a kernel
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        self.assertEqual(build.wait(120), 0, build.stderr.read())
        self.assertEqual(contents(os.path.join(self.folder, "m.eng")), alone)

    def test_killed_build(self):
        build, workers = self.begin("m.eng")
        build.kill()
        build.wait(60)
        end = time.monotonic() + 60
        while any(os.path.exists("/proc/%d" % worker) for worker in workers) and time.monotonic() < end:
            time.sleep(0.01)
        for worker in workers:
            self.assertFalse(os.path.exists("/proc/%d" % worker))

    def test_refused_kernel(self):
        """A kernel that a worker's compiler refuses ends the build as one that its own refuses. Each worker gets one: the compiler is slow."""
        result = run(self.command("m.eng", THREADS), env={**SLOW, "FAKE_NVRTC_REFUSE_IN": "--compile-worker"})
        self.assertEqual(result.rc, 4)
        self.assertIn("refused as FAKE_NVRTC_REFUSE asks", result.stderr)
        alone = run(self.command("m.eng", 1), env={**FAKE, "FAKE_NVRTC_REFUSE": "rope_attention"})
        self.assertEqual(alone.rc, 4)
        self.assertIn("refused as FAKE_NVRTC_REFUSE asks", alone.stderr)

    def test_worker_without_compiler(self):
        alone = self.build_alone()
        result = run(self.command("m.eng", THREADS), env={**SLOW, "FAKE_NVRTC_ABSENT_IN": "--compile-worker"})
        self.assertEqual(result.rc, 0, result.stderr)
        self.assertEqual(contents(os.path.join(self.folder, "m.eng")), alone)

    def test_hostile_requests(self):
        """A worker answers other bytes than a request with an error, and ends with its connection, in the middle of a request, too."""
        for garbage in (b"", b"x" * 100, b"rms_norm\0" + b"\xff" * 20000, bytes(20000)):
            own, other = socket.socketpair()
            worker = subprocess.Popen([ENGBUILD, "--compile-worker", ""], stdin=other, env={**os.environ, **FAKE})
            other.close()
            own.sendall(garbage)
            if len(garbage) > 1000:
                code, _, size = struct.unpack("<iiQ", own.recv(16, socket.MSG_WAITALL))
                self.assertEqual(code, 4)
                self.assertIn(b"there is no kernel", own.recv(size, socket.MSG_WAITALL))
            own.shutdown(socket.SHUT_RDWR)
            own.close()
            self.assertEqual(worker.wait(60), 0)
        result = run([ENGBUILD, "--compile-worker"])
        self.assertEqual(result.rc, 2)


if __name__ == "__main__":
    unittest.main()
