# SPDX-License-Identifier: Apache-2.0
"""enginfo describes the file, as text and as JSON, and --verify detects changed weights."""

import json
import os
import unittest

from harness import ENGINFO, FABLES, MAKE_CHECKPOINT, build_engine, fables_engine, run, scratch, succeed, write


class Info(unittest.TestCase):
    def info(self, *flags):
        result = run([ENGINFO, fables_engine(), *flags])
        self.assertEqual((result.rc, result.stderr), (0, ""))
        return result.stdout

    def test_json_says_what_was_built(self):
        engine = build_engine(FABLES, "--max-batch", "3", "--max-context", "200", "--prefill-chunks", "8,32")
        result = succeed([ENGINFO, engine, "--json"])
        info = json.loads(result.stdout)
        self.assertEqual(info["file_bytes"], os.path.getsize(engine))
        self.assertEqual([plan["rows"] for plan in info["plans"] if plan["kind"] == "prefill"], [8, 32])
        self.assertEqual(max(plan["rows"] for plan in info["plans"] if plan["kind"] == "decode"), 3)
        text = json.dumps(info["manifest"])
        for fact in ("llama", "cpu", "1536", "200"):
            self.assertIn(fact, text)
        self.assertGreater(info["golden"]["tokens"], 0)
        self.assertNotIn("verified", info)
        self.assertNotIn("tactics", info)
        self.assertNotIn("records", info)

    def test_weights_of_a_step(self):
        """A decode step reads every weight once, except for table lookups; the embedding is also the LM head."""
        info = json.loads(self.info("--json"))
        with open(os.path.join(FABLES, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        matrices = layers * (hidden * width * (2 * heads + 2 * kv_heads) + 3 * hidden * config["intermediate_size"])
        matrices += hidden * config["vocab_size"]
        for plan in info["plans"]:
            self.assertGreaterEqual(plan["weight_bytes"], 2 * matrices)
            self.assertLess(plan["weight_bytes"], 2 * matrices * 1.02)

    @unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
    def test_weights_of_experts(self):
        """A step reads the matrices of the experts that its rows choose, on average over rows that choose at random."""
        layers, hidden, inner, experts, chosen, heads, width = 2, 64, 48, 16, 2, 4, 16
        with scratch() as folder:
            shape, model = os.path.join(folder, "shape"), os.path.join(folder, "model")
            os.makedirs(shape)
            write(os.path.join(shape, "config.json"), json.dumps({
                "model_type": "qwen3_moe", "hidden_size": hidden, "intermediate_size": 96, "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": heads, "head_dim": width, "vocab_size": 320, "max_position_embeddings": 64, "num_experts": experts,
                "num_experts_per_tok": chosen, "moe_intermediate_size": inner}).encode())
            succeed([MAKE_CHECKPOINT, "--config", shape, "-o", model])
            engine = build_engine(model, "--batch-sizes", "1,4", "--max-batch", "4", "--prefill-chunks", "64", "--max-context", "64")
            plans = json.loads(succeed([ENGINFO, engine, "--json"]).stdout)["plans"]
        others = layers * (4 * hidden * heads * width + hidden * experts) + hidden * 320
        decode = [plan for plan in plans if plan["kind"] == "decode"]
        self.assertEqual(sorted(plan["rows"] for plan in decode), [1, 4])
        for plan in decode:
            read = round(experts * (1 - (1 - chosen / experts) ** plan["rows"]))
            matrices = others + layers * read * 3 * hidden * inner
            self.assertGreaterEqual(plan["weight_bytes"], 2 * matrices, plan)
            self.assertLess(plan["weight_bytes"], 2 * matrices * 1.05, plan)

    def test_words(self):
        text = self.info()
        for word in ("model:", "fables", "llama", "memory:", "decode:", "prefill:", "golden:"):
            self.assertIn(word, text)
        self.assertNotIn("verified:", text)
        self.assertIn("verified:", self.info("--verify"))
        self.assertIn("seconds", json.loads(self.info("--verify", "--json"))["verified"])

    def test_records(self):
        lines = self.info("--records").splitlines()
        records = json.loads(self.info("--records", "--json"))["records"]
        self.assertEqual(len(lines), len(records))
        self.assertGreater(len(records), 0)
        for line, record in zip(lines, records):
            self.assertEqual(json.loads(line.split(" ", 1)[1]), record)

    def test_tactics(self):
        engine = build_engine(FABLES, "--tune", "quick", "--max-batch", "2", "--prefill-chunks", "16")
        result = run([ENGINFO, engine, "--tactics"])
        self.assertEqual((result.rc, result.stderr), (0, ""))
        data = json.loads(run([ENGINFO, engine, "--tactics", "--json"]).stdout)
        self.assertNotIn("records", data)
        tables = result.stdout.strip().split("\n\n")[1:]
        self.assertEqual(len(tables), len(data["tactics"]))
        self.assertEqual(len(data["plans"]), len(tables))
        for plan, tactics, table in zip(data["plans"], data["tactics"], tables):
            title, heads, *lines = table.splitlines()
            rows = []  # a launch's figures, then, further to the right, its kernel and the runner-up
            for line in lines:
                if line.startswith("      "):
                    rows[-1].append(line)
                else:
                    rows.append([line])
            self.assertEqual((plan["kind"], plan["rows"], plan["launches"]),
                             (tactics["kind"], tactics["rows"], tactics["launches"]))
            self.assertTrue(title.startswith("%s of %d row" % (plan["kind"], plan["rows"])), title)
            for head in ("op", "launches", "us", "GB/s", "TFLOP/s", "% roofline", "choice"):
                self.assertIn(head, heads)
            self.assertEqual(len(rows), len(tactics["tactics"]))
            self.assertEqual(sum(entry["launches"] for entry in tactics["tactics"]), plan["launches"])
            for (row, *below), entry in zip(rows, tactics["tactics"]):
                self.assertTrue(row.strip().startswith(entry["shape"]), row)
                self.assertEqual(entry["measured"], entry["op"] == "matmul")
                self.assertEqual("not tuned" in row, not entry["tuned"])
                if not entry["measured"]:
                    continue
                self.assertEqual(row[heads.index("choice"):], entry["choice"], "columns are aligned")
                self.assertIn("panels_per_tile=%d" % entry["tunables"]["panels_per_tile"], below[0])
                times = [float(word) for word in row.split() if word.replace(".", "").isdigit()]
                self.assertTrue(any(abs(time - entry["median_us"]) < 0.00501 for time in times), row)
                self.assertAlmostEqual(entry["roofline_percent"], 100 * entry["roofline_us"] / entry["median_us"], 3)
                self.assertEqual(" cache " in row, entry["roofline_percent"] > 100, row)
                self.assertAlmostEqual(entry["tflops"], entry["flops"] / entry["median_us"] * 1e-6, 5)
                self.assertGreater(entry["gb_per_second"], 0)
                if entry["candidates"] > 1:
                    runner_up = entry["runner_up"]
                    self.assertGreater(runner_up["median_us"], 0)
                    self.assertNotEqual(runner_up["tunables"], entry["tunables"])
                    words = below[1].split()
                    self.assertEqual(words[0], "runner-up")
                    self.assertLess(abs(float(words[1]) - runner_up["median_us"]), 0.00501)
                    self.assertEqual(entry["choice"],
                                     "fastest" if entry["median_us"] < runner_up["median_us"] else "tie")
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 132)

    def test_tactics_of_an_untuned_engine(self):
        text = self.info("--tactics")
        self.assertIn("none of them measured", text)
        self.assertIn("not measured", text)
        result = run([ENGINFO, fables_engine(), "--tactics", "--records"])
        self.assertEqual((result.rc, result.stdout), (2, ""))
        both = json.loads(self.info("--tactics", "--records", "--json"))
        self.assertTrue(both["tactics"] and both["records"])

    def test_changed_weights(self):
        with open(fables_engine(), "rb") as file:
            data = bytearray(file.read())
        data[len(data) // 2] ^= 1
        with scratch() as folder:
            path = os.path.join(folder, "changed.eng")
            with open(path, "wb") as file:
                file.write(data)
            self.assertEqual(run([ENGINFO, path]).rc, 0, "weights are not hashed without --verify")
            result = run([ENGINFO, path, "--verify"])
        self.assertEqual((result.rc, result.stdout), (1, ""))
        self.assertIn("weights", result.stderr)


if __name__ == "__main__":
    unittest.main()
