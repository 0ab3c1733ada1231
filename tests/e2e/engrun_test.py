# SPDX-License-Identifier: Apache-2.0
"""engrun on a terminal and in scripts: streaming, interruption, closed pipes, chat, sampling. Flags and bad inputs:
cli_errors_test.py; numbers: reference_test.py."""

import fcntl
import json
import math
import os
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

from harness import (ENGINFO, ENGRUN, FABLES, build_engine, chat_engine, fables_engine, read_npy, receive_all, rows, run, scratch,
                     start_in_step, succeed)

PROMPT = "Once upon a time"
INTERRUPTED = 128 + signal.SIGINT


class Streaming(unittest.TestCase):
    def test_text_comes_piece_by_piece(self):
        """Each piece is written by itself."""
        process, pieces = start_in_step([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "600", "--ignore-eos"])
        with pieces:
            first, rest = pieces.recv(65536), receive_all(pieces)
        process.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertTrue(0 < len(first) < len(first + rest) / 2, (len(first), len(rest)))
        self.assertTrue((first + rest).endswith(b"\n"))

    def test_prompt_from_stdin(self):
        given = run([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "20"])
        for text in (PROMPT, PROMPT + "\n", PROMPT + "\r\n"):
            piped = run([ENGRUN, fables_engine(), "-n", "20"], input=text)
            self.assertEqual((piped.rc, piped.stdout), (0, given.stdout))

    def test_nothing_but_the_answer_on_stdout(self):
        plain = run([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "12"])
        timed = run([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "12", "--timing"])
        self.assertEqual(plain.stderr, "")
        self.assertEqual(timed.stdout, plain.stdout)
        self.assertRegex(timed.stderr, r"tokens/s")
        self.assertRegex(timed.stderr, r"first token [0-9.]+ s after the start")

    def test_tokens_text_and_logits_agree(self):
        with scratch() as folder:
            path = os.path.join(folder, "logits.npy")
            flags = [ENGRUN, fables_engine(), "-p", PROMPT, "-n", "15", "--ignore-eos"]
            text = run(flags).stdout
            ids = [int(word) for word in run(flags + ["--print-tokens", "--logits", path]).stdout.split()]
            logits = read_npy(path)
        self.assertEqual(len(ids), 15)
        self.assertEqual(logits.shape[0], 15)
        for row, token in enumerate(ids):
            values = logits.values[row * logits.shape[1]:(row + 1) * logits.shape[1]]
            self.assertEqual(max(range(len(values)), key=values.__getitem__), token)
        prompt_ids = json.loads(run([ENGRUN, fables_engine(), "--tokenize"], input=json.dumps(PROMPT)).stdout)
        whole = run([ENGRUN, fables_engine(), "--detokenize"], input=json.dumps(prompt_ids + ids)).stdout
        self.assertEqual(json.loads(whole), PROMPT + text[:-1])


class Interruption(unittest.TestCase):
    def interrupt(self, number):
        with scratch() as folder:
            path = os.path.join(folder, "logits.npy")
            # A terminal would send the signal to this process only, too: there is no shell in between.
            process, pieces = start_in_step([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "0", "--ignore-eos", "--print-tokens",
                                             "--logits", path])
            with pieces:
                first = pieces.recv(65536)
                process.send_signal(number)
                output = (first + receive_all(pieces)).decode()
            _, errors = process.communicate()
            self.assertEqual(process.returncode, 128 + number, errors)
            self.assertEqual(errors, b"")
            self.assertTrue(output.endswith("\n"))
            self.assertEqual(read_npy(path).shape[0], len(output.split()), "the logits of what was said are kept")

    def test_ctrl_c(self):
        self.interrupt(signal.SIGINT)

    def test_terminate(self):
        self.interrupt(signal.SIGTERM)

    def test_while_it_waits_for_a_prompt(self):
        process = subprocess.Popen([ENGRUN, fables_engine()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdin.write(b"Once")
        process.stdin.flush()
        while struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)))[0] and process.poll() is None:
            time.sleep(0.01)  # until it has been read
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
        self.assertEqual((process.returncode, output), (INTERRUPTED, b""))


class Sampling(unittest.TestCase):
    def ids(self, *flags):
        result = succeed([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "30", "--ignore-eos", "--print-tokens", *flags])
        return result.stdout

    def test_seeds(self):
        flags = ["--temperature", "1.2", "--top-p", "0.98"]
        self.assertEqual(self.ids(*flags, "--seed", "7"), self.ids(*flags, "--seed", "7"))
        self.assertGreater(len({self.ids(*flags, "--seed", str(seed)) for seed in range(4)}), 1)

    def test_what_amounts_to_greedy(self):
        greedy = self.ids()
        self.assertEqual(self.ids("--temperature", "0", "--seed", "3"), greedy)
        self.assertEqual(self.ids("--temperature", "2", "--top-k", "1"), greedy)
        self.assertEqual(self.ids("--recommended"), greedy)  # the checkpoint has no sampling defaults

    def test_repetition_penalty(self):
        words = self.ids("--repetition-penalty", "1000").split()
        self.assertEqual(len(words), len(set(words)), "no token twice under such a penalty")

    def test_penalties_of_the_answer(self):
        self.assertEqual(self.ids("--presence-penalty", "0", "--frequency-penalty", "0", "--min-p", "0"), self.ids())
        plain, words = self.ids().split(), self.ids("--presence-penalty", "2", "--frequency-penalty", "2").split()
        self.assertGreater(len(set(words)), len(set(plain)))
        self.assertNotEqual(self.ids("--frequency-penalty", "-2").split(), plain)

    def test_logit_bias(self):
        self.assertEqual(self.ids("--logit-bias", "77:100").split(), ["77"] * 30)
        first = self.ids().split()[0]
        self.assertNotIn(first, self.ids("--logit-bias", "3:0.5,%s:-100" % first).split())

    def test_min_p(self):
        flags = ["--temperature", "3", "--seed", "5"]
        self.assertEqual(self.ids(*flags, "--min-p", "1"), self.ids())
        self.assertNotEqual(self.ids(*flags, "--min-p", "0.01"), self.ids(*flags))

    def test_answers_of_a_form(self):
        folder = scratch()
        schema = os.path.join(folder.name, "schema.json")
        with open(schema, "w") as file:
            json.dump({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
                       "required": ["name", "old"], "additionalProperties": False}, file)
        answer = json.loads(succeed([ENGRUN, fables_engine(), "-p", PROMPT, "--json-schema", schema, "-n", "200"]).stdout)
        self.assertEqual(sorted(answer), ["name", "old"])
        self.assertLessEqual(len(answer["name"]), 8)
        self.assertRegex(succeed([ENGRUN, fables_engine(), "-p", PROMPT, "--regex", "[0-9]{4}"]).stdout, r"^[0-9]{4}\n$")
        for words, expected in ((["--regex", "(?=a)"], "look-around"), (["--json", "--regex", "a"], "found several"),
                                (["--json", "--ignore-eos"], "not with --ignore-eos"),
                                (["--json-schema", "/no/such"], "/no/such")):
            with self.subTest(words):
                result = run([ENGRUN, fables_engine(), "-p", PROMPT, *words])
                self.assertNotEqual(result.rc, 0)
                self.assertIn(expected, result.stderr)

    def test_logprobs(self):
        flags = ["--temperature", "1.5", "--seed", "5", "--presence-penalty", "1"]
        with scratch() as folder:
            path = os.path.join(folder, "logits.npy")
            text = succeed([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "20", "--ignore-eos", "--logprobs", "3",
                            "--logits", path, *flags]).stdout
            logits = rows(read_npy(path))
        lines = [json.loads(line) for line in text.splitlines()]
        ids = self.ids(*flags, "-n", "20").split()
        self.assertEqual([str(line["token"]) for line in lines], ids)
        for line, row in zip(lines, logits):
            total = math.log(sum(math.exp(value) for value in row))
            best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:3]
            self.assertEqual([entry["token"] for entry in line["top"]], best)
            for entry in [line, *line["top"]]:
                self.assertAlmostEqual(entry["logprob"], row[entry["token"]] - total, places=3)
        none = succeed([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "2", "--logprobs", "0"]).stdout
        self.assertEqual([json.loads(line)["top"] for line in none.splitlines()], [[], []])

    def test_score(self):
        """Each token of the prompt has the log-probability that its predecessors' continuation gives it."""
        ids = json.loads(run([ENGRUN, fables_engine(), "--tokenize", "--add-special"], input=json.dumps(PROMPT) + "\n").stdout)
        listed = ",".join(map(str, ids))
        printed = succeed([ENGRUN, fables_engine(), "-p", PROMPT, "--score", "--logprobs", "2"]).stdout
        *lines, last = map(json.loads, printed.splitlines())
        self.assertEqual([line["token"] for line in lines], ids[1:])
        for count, line in enumerate(lines, 1):
            with scratch() as folder:
                path = os.path.join(folder, "logits.npy")
                succeed([ENGRUN, fables_engine(), "--tokens", ",".join(map(str, ids[:count])), "-n", "1", "--logits", path])
                (row,) = rows(read_npy(path))
            total = math.log(sum(math.exp(value) for value in row))
            self.assertEqual([entry["token"] for entry in line["top"]], sorted(range(len(row)), key=lambda token: -row[token])[:2])
            for entry in [line, *line["top"]]:
                self.assertAlmostEqual(entry["logprob"], row[entry["token"]] - total, places=3)
        self.assertEqual(list(last), ["tokens", "logprob", "perplexity"])
        self.assertEqual(last["tokens"], len(lines))
        self.assertAlmostEqual(last["logprob"], sum(line["logprob"] for line in lines), places=4)
        plain = succeed([ENGRUN, fables_engine(), "--tokens", listed, "--score"]).stdout
        self.assertEqual([json.loads(line) for line in plain.splitlines()], [{**line, "top": []} for line in lines] + [last])
        result = run([ENGRUN, fables_engine(), "--tokens", "5", "--score"])
        self.assertEqual((result.rc, result.stdout), (1, ""))
        self.assertIn("at least 2 tokens", result.stderr)

    def test_threads_change_nothing(self):
        self.assertEqual(self.ids("--threads", "1"), self.ids("--threads", "3"))


class Chat(unittest.TestCase):
    def test_model_without_template(self):
        result = run([ENGRUN, fables_engine(), "--chat", "-p", "hi"])
        self.assertEqual(result.rc, 1)
        self.assertIn("no chat template", result.stderr)

    def test_turns(self):
        """Every line is a turn; the first answer equals that of the question asked by itself."""
        flags = [ENGRUN, chat_engine(), "--chat", "-n", "10"]
        alone = succeed(flags + ["-p", "Tell me a tale."])
        both = succeed(flags, input="Tell me a tale.\n\nAnd another.\n")
        self.assertTrue(both.stdout.startswith(alone.stdout))
        self.assertGreater(len(both.stdout), len(alone.stdout))

    def test_turns_continue_the_sequence(self):
        """What the sequence has already is not computed again."""
        def prompt_tokens(lines):
            result = succeed([ENGRUN, chat_engine(), "--chat", "-n", "10", "--timing"], input="Tell me a tale.\n" * lines)
            return int(re.search(r"prompt: (\d+) tokens", result.stderr).group(1))

        first = prompt_tokens(1)
        self.assertLess(prompt_tokens(3), 3 * (first + 4))

    def test_prompt_is_the_rendered_text(self):
        """--chat -p TEXT continues exactly the ids of the rendered text."""
        rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        ids = json.loads(run([ENGRUN, chat_engine(), "--tokenize"], input=json.dumps(rendered)).stdout)
        flags = ["-n", "12", "--print-tokens"]
        chat = run([ENGRUN, chat_engine(), "--chat", "--system", "Be brief.", "-p", "Hello", *flags])
        plain = run([ENGRUN, chat_engine(), "--tokens", ",".join(map(str, ids)), *flags])
        self.assertEqual((chat.rc, chat.stdout), (0, plain.stdout))


class Speculation(unittest.TestCase):
    def test_same_text(self):
        first = run([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "90", "--ignore-eos"]).stdout
        command = [ENGRUN, fables_engine(), "-p", first + PROMPT, "-n", "60", "--ignore-eos"]
        for sampling in ([], ["--temperature", "0.4", "--seed", "5"]):
            plain = succeed([*command, *sampling])
            found = succeed([*command, *sampling, "--speculate", "7", "--timing"])
            self.assertEqual(found.stdout, plain.stdout)
            drafted, accepted = map(int, re.search(r"drafts: (\d+) tokens verified, (\d+) accepted",
                                                   found.stderr).groups())
            self.assertTrue(0 < accepted <= drafted, (accepted, drafted))
        self.assertNotIn("note", found.stderr)

    def test_engines_without_such_plans(self):
        engine = build_engine(FABLES, "--verify-rows", "0")
        plain = succeed([ENGRUN, engine, "-p", PROMPT, "-n", "10"])
        found = succeed([ENGRUN, engine, "-p", PROMPT, "-n", "10", "--speculate", "4"])
        self.assertEqual(found.stdout, plain.stdout)
        self.assertIn("note: nothing is speculated", found.stderr)

    def test_draft_engine(self):
        engine = fables_engine()
        command = [ENGRUN, engine, "-p", PROMPT, "-n", "60", "--ignore-eos"]
        for sampling in ([], ["--temperature", "0.4", "--seed", "5"]):
            plain = succeed([*command, *sampling])
            found = succeed([*command, *sampling, "--draft", engine, "--timing"])
            self.assertEqual(found.stdout, plain.stdout)
            drafted, accepted = map(int, re.search(r"drafts: (\d+) tokens verified, (\d+) accepted",
                                                   found.stderr).groups())
            self.assertTrue(20 < accepted <= drafted, (accepted, drafted))
        without = build_engine(FABLES, "--verify-rows", "0")
        for arguments, code, message in (
                ([engine, "--draft", engine, "--speculate", "0"], 2, "speculate is 0"),
                ([without, "--draft", engine], 2, "no verification plans"),
                ([engine, "--draft", "/nonexistent.eng"], 1, "/nonexistent.eng"),
                ([engine, "--draft", engine, "--launched"], 2, "--draft: not with --launched")):
            result = run([ENGRUN, *arguments, "-p", PROMPT])
            self.assertEqual(result.rc, code)
            self.assertIn(message, result.stderr)
        result = run([ENGRUN, engine, "--selftest", "--draft", engine])
        self.assertEqual(result.rc, 2)
        self.assertIn("--draft: not with --selftest", result.stderr)

    def test_not_with_other_work(self):
        result = run([ENGRUN, fables_engine(), "--selftest", "--speculate", "4"])
        self.assertEqual(result.rc, 2)
        self.assertIn("--speculate: not with --selftest", result.stderr)


class Selftest(unittest.TestCase):
    def test_passes(self):
        result = succeed([ENGRUN, fables_engine(), "--selftest"])
        self.assertIn("selftest passed", result.stdout)

    def test_names_every_plan_of_the_file(self):
        info = json.loads(run([ENGINFO, fables_engine(), "--json"]).stdout)
        lines = run([ENGRUN, fables_engine(), "--selftest"]).stdout.splitlines()
        self.assertEqual(len(lines), len(info["plans"]) + 1)
        for line, plan in zip(lines, info["plans"]):
            unit = "token" if plan["kind"] == "prefill" else "row"
            name = "%s plan of %d %s%s: " % (plan["kind"], plan["rows"], unit, "s" if plan["rows"] > 1 else "")
            self.assertTrue(line.startswith(name), (line, name))
            found = re.fullmatch(r"(\d+) tokens, contexts up to (\d+), largest logit error \S+", line[len(name):])
            self.assertTrue(found, line)
            self.assertGreaterEqual(int(found.group(1)), plan["rows"] if plan["kind"] == "decode" else 2)
            if unit == "row":
                self.assertEqual(int(found.group(2)), info["golden"]["plans"]["longest_context"])
        self.assertIn("%d plans, " % len(info["plans"]), lines[-1])


if __name__ == "__main__":
    unittest.main()
