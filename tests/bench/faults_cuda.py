# SPDX-License-Identifier: Apache-2.0
"""Faults injected into engines that run on several GPUs, on a machine that has them:

    faults_cuda.py ENGINE --engbench PATH [--times 20] [--at-once 4]

ENGINE is for two GPUs, built with NCCL. Each fault so many times, some at once, on pairs of the machine's GPUs in turn: a
process of two is killed while they join or run, or stopped while they run; in one process the launches of one GPU vanish
(as of one that hangs), or fail. All that is left must end by itself with exit code 3 and a message that names the process
or the rank, within 10 s of the fault, and give its GPU memory back. Prints a line for each fault: how many ended so, and the
longest time. Exit code 1 if any did not. Needs a C compiler."""

import argparse
import concurrent.futures
import ctypes
import glob
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

SOON = 10.0
HERE = os.path.dirname(os.path.abspath(__file__))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def real_driver():
    paths = glob.glob("/usr/lib/x86_64-linux-gnu/libcuda.so.1") + glob.glob("/usr/local/nvidia/lib*/libcuda.so.1")
    for line in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout.splitlines():
        if "libcuda.so.1" in line:
            paths.append(line.split("=>")[1].strip())
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        paths.append(os.path.join(folder, "libcuda.so.1"))
    return next(os.path.realpath(path) for path in paths if os.path.exists(path))


def make_faulty_driver(folder):
    real = os.path.join(folder, "libcuda_real.so")
    # Linked with a library of that name, and no other: the real one would be asked for by its own.
    subprocess.run(["cc", "-shared", "-Wl,-soname,libcuda_real.so", "-x", "c", "/dev/null", "-o", real], check=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", os.path.join(folder, "libcuda.so.1"),
                    os.path.join(HERE, "faulty_cuda.c"), "-Wl,--no-as-needed", real, "-ldl"], check=True)
    os.unlink(real)
    os.symlink(real_driver(), real)


PRCTL = ctypes.CDLL(None).prctl  # found before there are threads, of which a child inherits the locks


def end_with_this_program():
    """Makes a child process end with this program: one that is stopped, or hangs on its GPU, would disturb the next ones there."""
    PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Trial:
    """One run under one fault; `problem` is None if all went as it must."""

    def __init__(self, arguments, folder, fault, number):
        self.command = [arguments.engbench, arguments.engine, "-p", "0", "-n", "500", "-b", "1", "-r", "1000"]
        self.folder, self.fault, self.number, self.gpus = folder, fault, number, arguments.gpus
        self.seconds, self.problem, self.message = 0.0, None, ""

    def start(self, environment, *options):
        first = self.number * 2 % self.gpus
        return subprocess.Popen([*self.command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, preexec_fn=end_with_this_program,
                                env={**os.environ, "CUDA_VISIBLE_DEVICES": "%d,%d" % (first, first + 1), **environment})

    def settle(self, process, begin, words):
        try:
            _, self.message = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            self.problem = "no end"
            return
        self.seconds = time.monotonic() - begin
        self.message = self.message.strip().splitlines()[-1] if self.message.strip() else ""
        if process.returncode != 3:
            self.problem = "exit code %d" % process.returncode
        elif not all(word in self.message for word in words):
            self.problem = "message"
        elif self.seconds > SOON:
            self.problem = "late"

    def run_processes(self, victim, blow, words, after=6.0):
        port = free_port() - 1
        processes = [self.start({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, "--launched") for rank in (0, 1)]
        time.sleep(after + 0.1 * self.number)
        if any(process.poll() is not None for process in processes):
            self.problem = "ended before its fault"
            self.message = " / ".join(process.communicate()[1] for process in processes if process.poll() is not None)
        else:
            begin = time.monotonic()
            processes[victim].send_signal(blow)
            self.settle(processes[1 - victim], begin, words)
        for process in processes:
            process.kill()
            process.wait()

    def run_gpu(self, fault, words):
        environment = {"FAULTY_CUDA_GPU": "1", "FAULTY_CUDA_FAULT": fault,
                       "FAULTY_CUDA_LAUNCH": str(100 + 37 * self.number),
                       "LD_LIBRARY_PATH": self.folder + ":" + os.environ.get("LD_LIBRARY_PATH", "")}
        begin = time.monotonic()
        self.settle(self.start(environment), begin, words)

    def run(self):
        if self.fault == "joining":
            self.run_processes(self.number % 2, signal.SIGKILL, ["process %d" % (self.number % 2)], after=0.5)
        elif self.fault == "killed":
            self.run_processes(self.number % 2, signal.SIGKILL, ["process %d" % (self.number % 2)])
        elif self.fault == "stopped":
            self.run_processes(self.number % 2, signal.SIGSTOP, ["process %d" % (self.number % 2)])
        elif self.fault == "vanish":
            self.run_gpu("vanish", ["waited for rank 1"])
        else:
            self.run_gpu("fail", ["rank 1"])
        return self


def used_memory():
    answer = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                            capture_output=True, text=True, check=True).stdout
    return [int(line) for line in answer.split()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--engbench", default="engbench")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--faults", default="joining,killed,stopped,vanish,fail")
    arguments = parser.parse_args()
    arguments.gpus = len(used_memory()) // 2 * 2
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        make_faulty_driver(folder)
        before = used_memory()
        for fault in arguments.faults.split(","):
            trials = [Trial(arguments, folder, fault, number) for number in range(arguments.times)]
            with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
                done = list(pool.map(Trial.run, trials))
            bad = [trial for trial in done if trial.problem]
            failed += len(bad)
            seconds = sorted(trial.seconds for trial in done)
            print("%-8s %d of %d as they must, median %.1f s, longest %.1f s; e.g. %s" %
                  (fault, len(done) - len(bad), len(done), seconds[len(seconds) // 2], seconds[-1], done[-1].message),
                  flush=True)
            for trial in bad[:3]:
                print("    %s: %s" % (trial.problem, trial.message), flush=True)
        time.sleep(1)
        after = used_memory()
        print("GPU memory in use before %s MiB, after %s MiB" % (before, after))
        failed += sum(b > a + 64 for a, b in zip(before, after))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
