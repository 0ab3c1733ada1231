# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to text, as in the README: build the shipped model, inspect it, generate text, measure it."""

import csv
import fcntl
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest

from harness import (ENGBENCH, ENGBUILD, ENGINFO, ENGRUN, FABLES, INSTRUCTION_SETS, SANITIZED, build_engine, chat_model, changed_model,
                     environment, fables_engine, needs_shared, output, output_json, read_json, read_npy, receive_all, run,
                     sanitized_elsewhere, scratch, shared, start_in_step, succeed, tally)

PROMPT = "Once upon a time"
SEEDS = 4 if SANITIZED else 8
STORY_TOKENS = 308  # tokens from that prompt, including the end token


class PipelineTest(unittest.TestCase):
    def say(self, *flags, engine=None, count=40, **kwargs):
        """Generated text."""
        return output([ENGRUN, engine or fables_engine(), "-n", str(count), *flags], **kwargs)

    def tokens(self, *flags, engine=None, count=40):
        return [int(word) for word in self.say("--print-tokens", *flags, engine=engine, count=count).split()]


class Build(PipelineTest):
    def test_first_command(self):
        """Only the flags of model and output: tuned, reported, ready to generate text."""
        with scratch() as folder:
            environment = {"XDG_CACHE_HOME": os.path.join(folder, "cache")}
            path = os.path.join(folder, "m.eng")
            small = ["--max-batch", "1", "--prefill-chunks", "16"] if SANITIZED else []
            command = [ENGBUILD, "--model", FABLES, "-o", path, *small]
            first = succeed(command, env=environment)
            for word in ("fables", "llama", "decode", "prefill", path):
                self.assertIn(word, first.stdout)
            for stage in ("pack", "tune", "golden", "write"):
                self.assertIn(stage + ": done in", first.stderr, "progress goes to stderr, as lines when piped")
            self.assertNotIn("\r", first.stderr)
            self.assertTrue(os.path.exists(os.path.join(folder, "cache", "engbuild", "tuning.records")))
            self.assertTrue(self.say("-p", PROMPT, engine=path).startswith(", there was a little fox named Mira."))
            again = succeed(command, env=environment)
            self.assertIn("(0 measured", again.stdout)
            self.assertEqual(sorted(os.listdir(folder)), ["cache", "m.eng"])

    def test_default_output(self):
        with scratch() as folder:
            output([ENGBUILD, "--model", FABLES, "--tune", "off"], cwd=folder)
            self.assertEqual(os.listdir(folder), ["model.eng"])

    def test_quiet(self):
        with scratch() as folder:
            result = run([ENGBUILD, "--model", FABLES, "--tune", "off", "--quiet", "-o", os.path.join(folder, "m.eng")])
            self.assertEqual((result.rc, result.stderr), (0, ""))

    def test_output_through_a_link(self):
        """A symbolic link stays; its target is replaced."""
        with scratch() as folder:
            target, link = os.path.join(folder, "real.eng"), os.path.join(folder, "link.eng")
            with open(target, "w", encoding="utf-8") as file:
                file.write("old")
            os.symlink("real.eng", link)
            output([ENGBUILD, "--model", FABLES, "--tune", "off", "-o", link])
            self.assertTrue(os.path.islink(link))
            output([ENGINFO, target, "--verify"])
            self.assertEqual(sorted(os.listdir(folder)), ["link.eng", "real.eng"])

    @sanitized_elsewhere
    def test_dry_run_tells_the_memory(self):
        count = 0
        for options in ([], ["--dtype", "f32"], ["--kv-dtype", "bf16", "--max-context", "100"], ["--max-batch", "3"],
                        ["--batch-sizes", "2,5", "--prefill-chunks", "7,33"]):
            with self.subTest(options=options), scratch() as folder:
                report = output_json([ENGBUILD, "--model", FABLES, "--dry-run", "--json", *options], cwd=folder)
                self.assertEqual(os.listdir(folder), [], "a dry run writes nothing")
                info = output_json([ENGINFO, build_engine(FABLES, *options), "--json"])
                manifest, memory = info["manifest"], report["memory"]
                for name in ("weights_bytes", "arena_bytes", "step_bytes", "state_bytes"):
                    self.assertEqual(memory[name], manifest["memory"][name], name)
                self.assertEqual(memory["page_bytes"], manifest["kv_cache"]["page_bytes"])
                self.assertEqual(memory["pages_per_sequence"], manifest["kv_cache"]["pages_per_slot"])
                self.assertEqual(report["limits"]["max_batch"], manifest["limits"]["slots"])
                self.assertEqual(report["limits"]["max_context"], manifest["limits"]["max_context"])
                self.assertEqual(report["parameters"], manifest["model"]["parameters"])
                self.assertEqual([(plan["kind"], plan["rows"], plan["launches"]) for plan in report["plans"]],
                                 [(plan["kind"], plan["rows"], plan["launches"]) for plan in info["plans"]])
                for plan in report["plans"]:
                    self.assertGreater(plan["estimate_us"], 0)
                count += 1
        tally("dry runs", count)

    def test_build_report(self):
        with scratch() as folder:
            path = os.path.join(folder, "m.eng")
            report = output_json([ENGBUILD, "--model", FABLES, "--tune", "off", "--json", "-o", path])
            self.assertEqual(report["output"], path)
            self.assertEqual(report["file_bytes"], os.path.getsize(path))
            self.assertEqual(report["tactics_measured"], 0)
            dry = output_json([ENGBUILD, "--model", FABLES, "--dry-run", "--json"])
            self.assertEqual(dry["memory"], report["memory"])

    def test_dry_run_without_weights(self):
        """config.json is sufficient for a dry run."""
        with scratch() as folder:
            shutil.copy(os.path.join(FABLES, "config.json"), folder)
            planned = output_json([ENGBUILD, "--model", folder, "--dry-run", "--json"])
            whole = output_json([ENGBUILD, "--model", FABLES, "--dry-run", "--json"])
            self.assertEqual(planned["memory"], whole["memory"])
            self.assertEqual(os.listdir(folder), ["config.json"])

    @needs_shared("configs", "Llama-3.2-1B-Instruct")
    def test_dry_run_of_a_large_model(self):
        report = output_json([ENGBUILD, "--model", shared("configs", "Llama-3.2-1B-Instruct"), "--dry-run", "--json"])
        self.assertEqual(report["parameters"], 1235814400)
        self.assertGreater(report["memory"]["weights_bytes"], 2 * 1235814400)
        text = output([ENGBUILD, "--model", shared("configs", "Llama-3.2-1B-Instruct"), "--dry-run"])
        self.assertIn("nothing was written", text)

    @sanitized_elsewhere
    def test_graph_after_every_pass(self):
        refused = run([ENGBUILD, "--model", FABLES, "--dry-run", "--dump-after", "?"]).stderr
        names = re.search(r"expected one of ([^;]*);", refused).group(1).split(", ")
        self.assertEqual(names[0], "import")
        self.assertGreater(len(names), 4)
        graphs = []
        for name in names:
            with self.subTest(name):
                result = succeed([ENGBUILD, "--model", FABLES, "--dry-run", "--dump-after", name, "--quiet"])
                graphs.append(result.stdout)
                self.assertGreater(result.stdout.count("\n"), 50)
                for op in ("embed", "matmul", "attention", "sample"):
                    self.assertIn(op, result.stdout)
        before = graphs[0]
        for after, name in zip(graphs[1:], names[1:]):
            if name != "dead_code" and "not for target" not in after:
                self.assertNotEqual(before, after, "%s changes the graph" % name)
                before = after
        self.assertGreater(graphs[0].count(" = add("), graphs[-1].count(" = add("), "fusion leaves fewer")
        tally("passes", len(names))

    @sanitized_elsewhere
    def test_candidates(self):
        text = output([ENGBUILD, "--model", FABLES, "--list-candidates", "--max-batch", "1", "--quiet"])
        self.assertIn(" legal", text)
        self.assertGreater(text.count("\n"), 20)

    @sanitized_elsewhere
    def test_built_engine_speaks_whatever_the_tuning(self):
        untuned = self.tokens("-p", PROMPT)
        for level in ("quick", "full"):
            engine = build_engine(FABLES, "--tune", level, "--max-batch", "1", "--prefill-chunks", "16")
            self.assertEqual(self.tokens("-p", PROMPT, engine=engine), untuned, level)


class Speak(PipelineTest):
    def processor_ticks(self, process):
        """Processor time that a program has used. Requires: the process has not been waited for."""
        with open("/proc/%d/stat" % process.pid, encoding="ascii") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))

    def test_text_streams(self):
        """Each token is written at once: when the first piece arrives, few others have been computed."""
        process, pieces = start_in_step([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "1000", "--ignore-eos"])
        with pieces:
            first = pieces.recv(1 << 20)
            running, used = process.poll() is None, self.processor_ticks(process)
            rest = receive_all(pieces)
        used_at_end = self.processor_ticks(process)
        _, errors = process.communicate()
        self.assertEqual((process.returncode, errors), (0, b""))
        self.assertTrue(running)
        self.assertTrue((first + rest).decode().startswith(", there was a little fox"))
        self.assertLess(len(first), len(rest) / 2)
        self.assertLess(used, used_at_end / 2)

    def test_reader_goes_away(self):
        """`engrun ... | head` ends without a message, by the signal that shells expect."""
        reader, writer = os.pipe()
        room = 64  # bytes: the rest of the pipe is full, so that the program cannot end before its reader goes
        filled = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096) - room
        os.write(writer, bytes(filled))
        process = subprocess.Popen([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "1000", "--ignore-eos"], stdin=subprocess.DEVNULL,
                                   stdout=writer, stderr=subprocess.PIPE, env=environment())
        os.close(writer)
        while struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0] == filled and process.poll() is None:
            time.sleep(0.01)
        os.close(reader)
        _, errors = process.communicate()
        self.assertEqual((process.returncode, errors), (-signal.SIGPIPE, b""))

    def test_end_token(self):
        unlimited = self.tokens("-p", PROMPT, count=0)
        self.assertEqual((unlimited[-1], len(unlimited)), (1, STORY_TOKENS))
        stopped = self.tokens("-p", PROMPT, count=400)
        going = self.tokens("-p", PROMPT, "--ignore-eos", count=400)
        self.assertEqual(len(stopped), STORY_TOKENS)
        self.assertEqual(len(going), 400)
        self.assertEqual(going[:STORY_TOKENS], stopped)
        text = self.say("-p", PROMPT, count=400)
        self.assertNotIn("<|end|>", text)
        kept = self.say("-p", PROMPT, "--keep-special", count=400)
        self.assertEqual(kept.rstrip("\n"), text.rstrip("\n") + "<|end|>")

    def test_prompt_from_stdin(self):
        expected = self.say("-p", PROMPT)
        for text in (PROMPT, PROMPT + "\n", PROMPT + "\r\n"):
            self.assertEqual(self.say(input=text), expected)
        self.assertNotEqual(self.say(input=PROMPT + "\n\n"), expected, "one newline is taken off, no more")

    def test_prompt_as_tokens(self):
        ids = read_json(FABLES, "reference.json")["cases"][0]["ids"]
        expected = self.say("-p", PROMPT)
        for separator in (",", " ", ", "):
            self.assertEqual(self.say("--tokens", separator.join(map(str, ids))), expected)

    def test_count(self):
        for count in (1, 2, 17):
            self.assertEqual(len(self.tokens("-p", PROMPT, count=count)), count)
        self.assertEqual(len(output([ENGRUN, fables_engine(), "-p", PROMPT, "--print-tokens"]).split()), 128)

    def test_seed(self):
        def draw(*flags):
            return self.tokens("-p", PROMPT, "--temperature", "1", *flags)

        self.assertEqual(draw("--seed", "7"), draw("--seed", "7"))
        self.assertGreater(len({tuple(draw()) for _ in range(4)}), 1)
        answers = {tuple(draw("--seed", str(seed))) for seed in range(SEEDS)}
        self.assertGreaterEqual(len(answers), SEEDS - 1)
        self.assertEqual(draw("--seed", "18446744073709551615"), draw("--seed", "18446744073709551615"))
        self.assertEqual(draw("--seed", "7", "--threads", "1"), draw("--seed", "7", "--threads", "3"))

    def test_no_randomness_is_greedy(self):
        greedy = self.tokens("-p", PROMPT)
        for flags in (["--temperature", "0"], ["--seed", "5"], ["--temperature", "0", "--top-p", "0.5", "--top-k", "9"],
                      ["--temperature", "2", "--top-k", "1"], ["--temperature", "2", "--top-p", "0.000001"],
                      ["--temperature", "0.0001"], ["--repetition-penalty", "1"]):
            with self.subTest(flags=flags):
                self.assertEqual(self.tokens("-p", PROMPT, *flags), greedy)

    @sanitized_elsewhere
    def test_temperature(self):
        """At a low temperature every seed gives the same text; at a high one each differs."""
        def distinct(temperature, *flags):
            return len({tuple(self.tokens("-p", PROMPT, "--temperature", temperature, "--seed", str(seed), *flags,
                                          count=12)) for seed in range(SEEDS)})

        self.assertEqual(distinct("0.0001"), 1)
        self.assertEqual(distinct("3"), SEEDS)

    @sanitized_elsewhere
    def test_top_k_and_top_p_bound_the_choice(self):
        """With k = 2 a token is always one of the two most probable ones at its position."""
        with scratch() as folder:
            path = os.path.join(folder, "logits.npy")
            for flags, most in ((["--top-k", "2"], 2), (["--top-k", "5"], 5), (["--top-p", "0.5"], None)):
                ids = self.tokens("-p", PROMPT, "--temperature", "4", "--seed", "3", *flags, "--logits", path)
                logits = read_npy(path)
                width = logits.shape[1]
                self.assertEqual(logits.shape, (len(ids), 1536))
                ranks = []
                for i, token in enumerate(ids):
                    row = logits.values[i * width:(i + 1) * width]
                    ranks.append(sum(value > row[token] for value in row))
                if most:
                    self.assertLess(max(ranks), most)
                self.assertGreater(max(ranks), 0, "greedy would be no test")

    def test_repetition_penalty(self):
        greedy = self.tokens("-p", PROMPT, "--ignore-eos", count=200)
        penalised = self.tokens("-p", PROMPT, "--ignore-eos", "--repetition-penalty", "1.5", count=200)
        self.assertGreater(len(set(penalised)), len(set(greedy)))
        self.assertEqual(penalised, self.tokens("-p", PROMPT, "--ignore-eos", "--repetition-penalty", "1.5", count=200))

    def test_recommended(self):
        """generation_config.json is used on request; flags take precedence."""
        with scratch() as folder:
            model = changed_model(folder, generation={"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.8,
                                                      "repetition_penalty": 1.1})
            engine = build_engine(model)
            sampling = output_json([ENGINFO, engine, "--json"])["manifest"]["sampling"]
            for name, value in (("temperature", 0.9), ("top_k", 20), ("top_p", 0.8), ("repetition_penalty", 1.1)):
                self.assertAlmostEqual(sampling[name], value, places=6)
            flags = ["-p", PROMPT, "--seed", "4"]
            self.assertEqual(self.tokens(*flags, engine=engine), self.tokens("-p", PROMPT), "greedy unless asked")
            given = ["--temperature", "0.9", "--top-k", "20", "--top-p", "0.8", "--repetition-penalty", "1.1"]
            self.assertEqual(self.tokens(*flags, "--recommended", engine=engine), self.tokens(*flags, *given))
            self.assertEqual(self.tokens(*flags, "--recommended", "--temperature", "2", engine=engine),
                             self.tokens(*flags, *given, "--temperature", "2"))

    def test_another_activation(self):
        """The build compares its plans with the plain reference, which has the activation from the plan."""
        with scratch() as folder:
            model = changed_model(folder, config={"hidden_act": "gelu_pytorch_tanh"})
            dump = run([ENGBUILD, "--model", model, "--target", "cpu", "--dry-run", "--dump-after", "import"])
            self.assertIn("epilogue=2 ", dump.stdout)  # ACTIVATION_GELU_TANH
            self.assertNotIn("epilogue=1 ", dump.stdout)
            text = [run([ENGRUN, engine, "-p", "Once upon a time", "-n", "100", "--ignore-eos", "--quiet"])
                    for engine in (fables_engine(), build_engine(model))]
            self.assertEqual([result.rc for result in text], [0, 0])
            self.assertNotEqual(text[0].stdout, text[1].stdout)

    def test_timing(self):
        result = run([ENGRUN, fables_engine(), "-p", PROMPT, "-n", "5", "--timing"])
        self.assertEqual(result.stdout, self.say("-p", PROMPT, count=5))
        for word in ("load", "prompt", "answer", "first token"):
            self.assertIn(word, result.stderr)


class Chat(PipelineTest):
    def test_model_without_template(self):
        result = run([ENGRUN, fables_engine(), "--chat", "-p", "hello"])
        self.assertEqual((result.rc, result.stdout), (1, ""), result.stderr)
        self.assertIn("the engine has no chat template", result.stderr)
        self.assertIn("chat_template.jinja", result.stderr)

    def test_conversation(self):
        """The shipped model with ChatML's token names: its answers are poor, but it answers."""
        with scratch() as folder:
            engine = build_engine(chat_model(folder))
            self.assertEqual(output_json([ENGINFO, engine, "--json"])["manifest"]["tokens"]["chat_format"], "none")
            self.assertIn("chat:       templates default\n", output([ENGINFO, engine]))
            chat = [ENGRUN, engine, "--chat", "-n", "20"]
            one = output([*chat, "-p", "Tell me of a fox."])
            self.assertTrue(one.strip())
            self.assertNotIn("<|im_", one)
            self.assertEqual(output([*chat], input="Tell me of a fox.\n"), one)
            two = output([*chat], input="Tell me of a fox.\n\nAnd of a hen?\n")
            self.assertTrue(two.startswith(one))
            self.assertGreater(len(two), len(one))
            self.assertNotEqual(output([*chat, "--system", "Be brief.", "-p", "Tell me of a fox."]), one)
            self.assertEqual(output([*chat], input=""), "")
            # One message is rendered as the template says.
            text = "<|im_start|>user\nTell me of a fox.<|im_end|>\n<|im_start|>assistant\n"
            ids = json.loads(output([ENGRUN, engine, "--tokenize"], input=json.dumps(text) + "\n"))
            self.assertEqual(self.say("--tokens", ",".join(map(str, ids)), engine=engine, count=20), one)


class Inspect(PipelineTest):
    def test_selftest(self):
        text = output([ENGRUN, fables_engine(), "--selftest"])
        tokens, error, tolerance = re.search(r"passed: \d+ plans, (\d+) tokens.*error ([0-9.e+-]+), tolerance ([0-9.e+-]+)",
                                             text).groups()
        self.assertGreater(int(tokens), 0)
        self.assertLess(float(error), float(tolerance))
        for options in (["--dtype", "f32"], ["--kv-dtype", "bf16"], ["--kv-dtype", "fp16"], ["--kv-dtype", "int8"],
                        ["--kv-dtype", "fp8"], ["--max-context", "16"],
                        ["--max-batch", "1", "--prefill-chunks", "1"]):
            with self.subTest(options=options):
                output([ENGRUN, build_engine(FABLES, *options), "--selftest"])
        for name in INSTRUCTION_SETS:
            with self.subTest(name):
                self.assertIn(run([ENGRUN, fables_engine(), "--selftest", "--isa", name]).rc, (0, 3))

    def test_altered_weights(self):
        """One flipped bit of a weight: detected before anything is computed."""
        with open(fables_engine(), "rb") as file:
            data = bytearray(file.read())
        with open(os.path.join(FABLES, "model.safetensors"), "rb") as file:
            sample = file.read()[-4096:-4064]  # stored unchanged: the norms at the end, or an embedding row
        info = output_json([ENGINFO, fables_engine(), "--json"])
        weights_end = len(data) - 4096
        position = data.find(sample)
        if position < 0:
            position = weights_end - info["manifest"]["memory"]["weights_bytes"] // 2
        data[position] ^= 4
        with scratch() as folder:
            path = os.path.join(folder, "altered.eng")
            with open(path, "wb") as file:
                file.write(data)
            for command in ([ENGRUN, path, "--selftest"], [ENGRUN, path, "-p", PROMPT], [ENGINFO, path, "--verify"],
                            [ENGBENCH, path, "-p", "4", "-n", "1", "-r", "1"]):
                result = run(command)
                self.assertEqual((result.rc, result.stdout), (1, ""), result.stderr)
                self.assertIn("weights", result.stderr)
                self.assertIn(path, result.stderr)

    def test_info(self):
        engine = fables_engine()
        text = output([ENGINFO, engine])
        for word in ("fables", "llama", "BF16", "1024 tokens", "vocabulary 1536"):
            self.assertIn(word, text)
        self.assertIn("verified", output([ENGINFO, engine, "--verify"]))
        info = output_json([ENGINFO, engine, "--json"])
        self.assertNotIn("verified", info)
        self.assertEqual(info["file_bytes"], os.path.getsize(engine))
        self.assertEqual(info["manifest"]["model"]["parameters"], 1710144)
        self.assertEqual(info["manifest"]["limits"], {"slots": 8, "max_context": 1024})
        self.assertEqual(info["manifest"]["tokens"], {"tokenizer": True, "chat_format": "none", "bos": 0, "eos": [1]})
        both = output_json([ENGINFO, engine, "--json", "--verify", "--tactics"])
        self.assertIn("verified", both)
        self.assertGreater(len(both["tactics"]), 0)
        for plan in info["plans"]:
            self.assertGreater(plan["bytes"], plan["weight_bytes"])

    @sanitized_elsewhere
    def test_records(self):
        engine = build_engine(FABLES, "--tune", "quick", "--max-batch", "1", "--prefill-chunks", "16")
        lines = output([ENGINFO, engine, "--records"]).splitlines()
        records = [json.loads(line.split(" ", 1)[1]) for line in lines]
        shown = output_json([ENGINFO, engine, "--records", "--json"])["records"]  # to 9 digits
        self.assertEqual([(record["key"], record["values"]) for record in records],
                         [(record["key"], record["values"]) for record in shown])
        for line, record in zip(lines, records):
            self.assertRegex(line, r"^[0-9a-f]{16} \{")
            self.assertIn("matmul", record["key"])
            self.assertGreater(record["median_us"], 0)
            self.assertGreaterEqual(record["spread_us"], 0)
            self.assertGreater(record["roofline_us"], 0)
            self.assertGreater(record["candidates"], 1)
            self.assertEqual(record["level"], "quick")
        self.assertEqual(len({record["key"] for record in records}), len(records))
        tally("tuning records", len(records))


class Bench(PipelineTest):
    FLAGS = ["-p", "32", "-n", "8", "-b", "1,2"]
    ROWS = [("pp32", 1), ("tg8", 1), ("tg8", 2), ("first token", 1)]

    def test_json(self):
        report = output_json([ENGBENCH, fables_engine(), *self.FLAGS, "-r", "2", "--json"])
        self.assertGreater(report["read_bandwidth"]["best_gb_per_second"], 0.1)
        self.assertGreaterEqual(report["threads"], 1)
        self.assertEqual([(row["test"], row["batch"]) for row in report["results"]], self.ROWS)
        for row in report["results"]:
            self.assertEqual(row["repetitions"], 2)
            self.assertGreater(row["mean"], 0)
            self.assertGreaterEqual(row["spread"], 0)
            self.assertGreater(row["ms_per_step"], 0)
        self.assertEqual([row["unit"] for row in report["results"]], ["tokens/s"] * 3 + ["seconds"])
        for row in report["results"][1:3]:
            self.assertGreater(row["weight_gb_per_second"], 0)

    @sanitized_elsewhere
    def test_figures_agree(self):
        """One repetition: rate and time describe the same measurement."""
        engine = fables_engine()
        results = output_json([ENGBENCH, engine, *self.FLAGS, "-r", "1", "--json"])["results"]
        plans = output_json([ENGINFO, engine, "--json"])["plans"]
        for row, tokens in zip(results, (32, 1, 2)):
            self.assertAlmostEqual(row["mean"] * row["ms_per_step"] / 1000 / tokens, 1, places=6)
            self.assertEqual(row["spread"], 0)
        for row in results[1:3]:
            read = next(plan["weight_bytes"] for plan in plans
                        if (plan["kind"], plan["rows"]) == ("decode", row["batch"]))
            self.assertAlmostEqual(row["weight_gb_per_second"] * row["ms_per_step"] / read * 1e6, 1, places=5)

    @sanitized_elsewhere
    def test_csv_and_md(self):
        command = [ENGBENCH, fables_engine(), *self.FLAGS, "-r", "2"]
        table = list(csv.DictReader(io.StringIO(output([*command, "--csv"]))))
        self.assertEqual([(row["test"], int(row["batch"])) for row in table], self.ROWS)
        for row in table:
            self.assertGreater(float(row["mean"]), 0)
        text = output([*command, "--md"])
        lines = [line for line in text.splitlines() if line.startswith("|")]
        self.assertEqual(len(lines), 2 + len(self.ROWS))
        self.assertEqual(len({line.count("|") for line in lines}), 1)

    def test_context_and_zero(self):
        report = output_json([ENGBENCH, fables_engine(), "-p", "0", "-n", "4", "-c", "100", "-r", "1", "--json"])
        self.assertEqual([(row["test"], row["context"]) for row in report["results"]],
                         [("tg4", 100), ("first token", 0)])


if __name__ == "__main__":
    unittest.main()
