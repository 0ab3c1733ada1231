# SPDX-License-Identifier: Apache-2.0
"""Several processes that share an engine's GPUs, without a GPU: the fake driver's kernels compute nothing, but its NCCL
exchanges data between processes. This test covers how the processes find each other, what they print, and every failure
of one of them. Machines with GPUs check the results."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from harness import BUILT, ENGBENCH, ENGBUILD, ENGRUN, FABLES, SANITIZED, run, scratch, succeed, tally

FOLDERS = {name: os.path.join(BUILT, "tests", "fake_cuda", name) for name in
           ("whole", "compiler", "libraries", "incomplete")}
# GPUs with little memory: the tuner fills as much of it as it is given with random numbers.
FAKE = {"LD_LIBRARY_PATH": ":".join(FOLDERS[name] for name in ("whole", "compiler", "libraries")), "FAKE_CUDA_DEVICES": "4",
        "FAKE_CUDA_MEMORY": "100000000"}
SMALL = ["--max-batch", "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", "--quiet"]
TOKENS = ["--tokens", "1,2,3", "-n", "6", "--ignore-eos", "--print-tokens"]
RANKS = 2  # the shipped model has 6 heads and 2 KV heads
# Seconds within which every process must notice a failed one, on a machine that is busy; NCCL's own limit is a minute.
SOON = 40
ENOUGH_SECONDS = 300  # for all processes to end


def torchrun(rank, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def mpirun(rank, port):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(RANKS), "MASTER_PORT": str(port),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(RANKS)}


def token(*texts):
    """Variables to add to the processes' environments: one text for all, or one for each; None: not set."""
    return {rank: {"ENG_JOB_TOKEN": text} for rank, text in enumerate(texts * RANKS if len(texts) == 1 else texts) if text}


class Ended:
    def __init__(self, process, seconds, start=None):
        start = start or time.monotonic()
        self.stdout, self.stderr = process.communicate(timeout=seconds)
        self.seconds = time.monotonic() - start
        self.rc = process.returncode


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = scratch()
        cls.engine = cls.build("m.eng")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.scratch.name, name)

    @classmethod
    def build(cls, output, *options, env=None):
        result = run([ENGBUILD, "--model", FABLES, "--target", "cuda", "--gpus", str(RANKS), "-o", cls.path(output),
                      "--tuning-cache", cls.path("records"), *SMALL, *options], env={**FAKE, **(env or {})})
        assert result.rc == 0, result.stderr
        return cls.path(output)

    def free_port(self):
        """A port that no other program gets: one that asks for this very port, as the first process does, may share it."""
        reserved = socket.socket()
        self.addCleanup(reserved.close)
        reserved.bind(("127.0.0.1", 0))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserved.getsockname()[1]

    def start(self, launcher, commands, envs=None):
        """One process for each command; envs: variables of each process besides the launcher's."""
        port = self.free_port() - 1  # the first process listens on the next port
        processes = []
        for rank, command in enumerate(commands):
            env = {**os.environ, **FAKE, **launcher(rank, port), **((envs or {}).get(rank, {}))}
            processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True))
            self.addCleanup(processes[-1].kill)
        return processes

    def finish(self, processes, seconds=ENOUGH_SECONDS):
        start = time.monotonic()
        ended = [Ended(process, seconds, start) for process in processes]
        for process in processes:
            process.stdout.close()
            process.stderr.close()
        return ended

    def both(self, *options, engine=None, launcher=torchrun, envs=None):
        command = [ENGRUN, engine or self.engine, "--launched", *options]
        return self.finish(self.start(launcher, [command] * RANKS, envs))

    def test_the_first_one_prints(self):
        alone = succeed([ENGRUN, self.engine, *TOKENS], env=FAKE)
        for launcher in (torchrun, mpirun):
            with self.subTest(launcher=launcher.__name__):
                ended = self.both(*TOKENS, launcher=launcher)
                self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)
                self.assertEqual([process.stdout for process in ended], [alone.stdout, ""])
        ended = self.both("--selftest")
        self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)

    def test_an_address_of_ones_own(self):
        address = "127.0.0.1:%d" % self.free_port()
        ended = self.both(*TOKENS, "--address", address, envs={0: {"MASTER_ADDR": "no.such.host"}})
        self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun here")
    def test_mpirun_itself(self):
        alone = run([ENGRUN, self.engine, *TOKENS], env=FAKE)
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), ENGRUN, self.engine, "--launched"]
        env = {**FAKE, "MASTER_PORT": str(self.free_port() - 1)}
        together = succeed([*command, *TOKENS], env=env)
        self.assertEqual(together.stdout, alone.stdout)
        refused = run([*command, *TOKENS, "--temperature", "-1"], env=env)
        self.assertNotEqual(refused.rc, 0)
        self.assertIn("temperature", refused.stderr)

    def test_bench_and_logits(self):
        command = [ENGBENCH, self.engine, "--launched", "-p", "16", "-n", "8", "-b", "1,4", "-c", "16", "-r", "2", "--json"]
        ended = self.finish(self.start(torchrun, [command] * RANKS))
        self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)
        self.assertEqual(len(json.loads(ended[0].stdout)["results"]), 3)
        self.assertEqual(ended[1].stdout, "")
        logits = self.path("logits.npy")
        ended = self.both(*TOKENS, "--logits", logits)
        self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)
        self.assertGreater(os.path.getsize(logits), 6 * 4 * 512)

    def expect_failure(self, ended, words, codes=(3,)):
        """Every process prints it, each in one line."""
        for process in ended:
            self.assertIn(process.rc, codes, process.stderr)
            self.assertEqual(process.stdout, "")
            self.assertEqual(process.stderr.count("\n"), 1, process.stderr)
            for word in words:
                self.assertIn(word, process.stderr)

    def test_refusals(self):
        # A developer's machine may have a real one, which must not be found here.
        without = ":".join(FOLDERS[name] for name in ("whole", "compiler", "incomplete"))
        lean, other = self.build("lean.eng", "--lean"), self.build("other.eng", "--max-context", "512")
        cases = [
            (token("one"), [self.engine, other], ["process 1", "another engine file than process 0"]),
            ({1: {"LD_LIBRARY_PATH": without}}, [self.engine] * 2, ["NCCL: expected the function"]),
            ({0: {"LD_LIBRARY_PATH": without}}, [self.engine] * 2, ["NCCL: expected the function"]),
            ({1: {"FAKE_NCCL_VERSION": "21700"}}, [self.engine] * 2, ["NCCL", "found 2.17.0"]),
            ({1: {"FAKE_NCCL_VERSION": "22810"}}, [self.engine] * 2, ["one version of NCCL", "22810 in process 1"]),
            ({1: {"FAKE_CUDA_MEMORY": "2000000"}}, [self.engine] * 2, ["rank 1", "bytes free"]),
            ({1: {"FAKE_CUDA_DEVICES": "1"}}, [self.engine] * 2, ["GPU 1"]),
            ({}, [lean] * 2, ["NCCL", "--lean"]),
        ]
        for envs, engines, words in cases:
            with self.subTest(envs=envs, words=words):
                commands = [[ENGRUN, engine, "--launched", *TOKENS] for engine in engines]
                ended = self.finish(self.start(torchrun, commands, envs))
                self.expect_failure(ended, words, codes=(2, 3))
                self.assertLess(max(process.seconds for process in ended), SOON)
        tally("refusals", len(cases))

    def test_one_token(self):
        alone = run([ENGRUN, self.engine, *TOKENS], env=FAKE)
        for name in ("ENG_JOB_TOKEN", "TORCHELASTIC_RUN_ID"):
            with self.subTest(name):
                ended = self.both(*TOKENS, envs={rank: {name: "one for all"} for rank in range(RANKS)})
                self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)
                self.assertEqual([process.stdout for process in ended], [alone.stdout, ""])

    def test_who_is_not_of_the_job(self):
        """The wrong process ends with a reason; process 0 waits for the right one until the launcher's limit."""
        other = self.build("stranger.eng", "--max-context", "500")
        cases = [
            ({}, [self.engine, other], "another engine file than process 0"),
            (token("one", "two"), [self.engine] * 2, "another job token than process 0"),
            (token("one", None), [self.engine] * 2, "without a job token, but process 0"),
            (token(None, "two"), [self.engine] * 2, "with a job token, but process 0"),
        ]
        for envs, engines, words in cases:
            with self.subTest(words=words):
                first, second = self.start(torchrun, [[ENGRUN, engine, "--launched", *TOKENS] for engine in engines], envs)
                refused = Ended(second, SOON)
                self.assertEqual(refused.rc, 2, refused.stderr)
                self.assertIn("process 1", refused.stderr)
                self.assertIn(words, refused.stderr)
                self.assertIsNone(first.poll())
                first.kill()
                self.finish([first])
                second.stderr.close()
                second.stdout.close()
        tally("refused alone", len(cases))

    def test_usage(self):
        cases = [
            ([], {}, ["torchrun", "mpirun"]),
            ([], {**torchrun(0, 1), "WORLD_SIZE": "two"}, ["WORLD_SIZE", "two"]),
            ([], {**torchrun(0, 29000), "WORLD_SIZE": "3"}, ["process 0 of 3", "2 GPUs"]),
            (["--chat"], torchrun(0, 29000), ["--launched", "stdin"]),
        ]
        for options, env, words in cases:
            with self.subTest(words=words):
                refused = run([ENGRUN, self.engine, "--launched", *TOKENS, *options], env={**FAKE, **env})
                self.assertEqual(refused.rc, 2, refused.stderr)
                for word in words:
                    self.assertIn(word, refused.stderr)
        refused = run([ENGRUN, self.engine, *TOKENS, "--address", "x:1"], env=FAKE)
        self.assertEqual(refused.rc, 2, refused.stderr)

    def test_other_inputs(self):
        """Another prompt, other sampling options, and options that decide when and how many steps are queued."""
        first = [ENGRUN, self.engine, "--launched"]
        for others in ([*first, "--tokens", "1,2,4", *TOKENS[2:]], [*first, *TOKENS, "--temperature", "1", "--seed", "2"],
                       [*first, *TOKENS, "--logits", self.path("others.npy")], [*first, *TOKENS, "-n", "7"]):
            with self.subTest(others=others):
                commands = [[*first, *TOKENS], others]
                ended = self.finish(self.start(torchrun, commands))
                self.expect_failure(ended, ["process 1 was given other inputs than process 0"], codes=(2, 3))
                self.assertLess(max(process.seconds for process in ended), SOON)

    def test_an_answer_that_ends_early(self):
        """A step is in flight then; the processes end without an error."""
        ended = self.both("--tokens", "1,2,3", "-n", "400", "--print-tokens")
        self.assertEqual([process.rc for process in ended], [0] * RANKS, ended[0].stderr + ended[1].stderr)

    def wait_for(self, path):
        end = time.monotonic() + ENOUGH_SECONDS
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(os.path.exists(path), "NCCL was not asked")

    def start_and_join(self, name, env):
        """Processes that have found each other and are asking NCCL to join."""
        lost = [self.path("%s-%d" % (name, rank)) for rank in range(RANKS)]
        processes = self.start(torchrun, [[ENGRUN, self.engine, "--launched", *TOKENS]] * RANKS,
                               {rank: {**env, "FAKE_NCCL_LOST": lost[rank]} for rank in range(RANKS)})
        for path in lost:
            self.wait_for(path + ".joins")
        return processes

    def test_a_process_that_is_killed_while_all_join(self):
        """NCCL's own limit is a minute."""
        for victim in range(RANKS):
            with self.subTest(victim=victim):
                processes = self.start_and_join("killed-%d" % victim, {"FAKE_NCCL_NEVER": "1"})
                start = time.monotonic()
                processes[victim].kill()
                survivor = Ended(processes[1 - victim], ENOUGH_SECONDS)
                self.assertLess(time.monotonic() - start, SOON)
                self.assertEqual(survivor.rc, 3, survivor.stderr)
                self.assertIn("process %d" % victim, survivor.stderr)
                self.assertIn("stopped responding: its process has ended", survivor.stderr)
                self.finish(processes[victim:victim + 1])

    def test_nccl_that_loses_a_process_before_it_is_missed(self):
        """NCCL's first error does not name the cause: while all join, and when it connects for the first sum."""
        for setting, never in (("FAKE_NCCL_LOST", {"FAKE_NCCL_NEVER": "1"}), ("FAKE_NCCL_LOST_LATER", {})):
            with self.subTest(setting=setting):
                lost = self.path(setting)
                processes = self.start(torchrun, [[ENGRUN, self.engine, "--launched", *TOKENS]] * RANKS,
                                       {0: {**never, setting: lost}, 1: {**never, "FAKE_CUDA_HANG": "1"}})
                self.wait_for(lost + ".joins")
                with open(lost, "w", encoding="ascii"):
                    time.sleep(0.2)
                processes[1].kill()
                survivor = Ended(processes[0], ENOUGH_SECONDS)
                self.assertEqual(survivor.rc, 3, survivor.stderr)
                self.assertIn("process 1", survivor.stderr)
                self.assertIn("stopped responding: its process has ended", survivor.stderr)
                self.finish(processes[1:])

    @unittest.skipIf(SANITIZED, "what a GPU that hangs may still touch is never freed")
    def test_a_process_that_is_killed_or_stopped(self):
        """While all wait for a step that never ends."""
        for victim, blow, words in ((1, signal.SIGKILL, ["process 1", "stopped responding: its process has ended"]),
                                    (0, signal.SIGKILL, ["process 0", "stopped responding: its process has ended"]),
                                    (1, signal.SIGSTOP, ["process 1", "stopped responding: nothing received for 5 s"])):
            with self.subTest(victim=victim, blow=blow):
                processes = self.start_and_join("hangs-%d-%d" % (victim, blow), {"FAKE_CUDA_HANG": "1"})
                time.sleep(0.5)  # a step has perhaps not begun then, which makes no difference
                start = time.monotonic()
                processes[victim].send_signal(blow)
                survivor = Ended(processes[1 - victim], ENOUGH_SECONDS)
                self.assertLess(time.monotonic() - start, SOON)
                processes[victim].kill()
                self.assertEqual(survivor.rc, 3, survivor.stderr)
                for word in words:
                    self.assertIn(word, survivor.stderr)
                self.finish(processes[victim:victim + 1])

    @unittest.skipIf(SANITIZED, "what a GPU that hangs may still touch is never freed")
    def test_a_gpu_that_hangs(self):
        """The driver may hang, too, even when the process ends."""
        for driver in ({}, {"FAKE_CUDA_SLOW_EXIT": "60"}):
            with self.subTest(driver=driver):
                start = time.monotonic()
                ended = self.both("--selftest", envs={1: {"FAKE_CUDA_HANG": "1", **driver}})
                self.assertLess(time.monotonic() - start, 50)
                self.expect_failure(ended, ["rank 1", "did not end within 9"])


if __name__ == "__main__":
    unittest.main()
