# SPDX-License-Identifier: Apache-2.0
"""Models that several ranks share (engbuild --gpus N), on the CPU: N ranks give the same tokens as one, and as the
references."""

import itertools
import json
import os
import random
import unittest

from harness import (ALL_BLOCKS, ENGBENCH, ENGBUILD, ENGINFO, ENGRUN, FABLES, LOGIT_TOLERANCE, MAKE_CHECKPOINT, SANITIZED,
                     FablesReference, ReferenceTest, build_engine, contents, needs_shared, output, output_json,
                     read_json, recorded_cases, run, sanitized_elsewhere, scratch, shared, tally)

REGION_ALIGNMENT = 4096  # alignment of each rank's weights
# Partial sums are added in another order than on one rank: tolerance for the arithmetic's own error in float32. Matrix
# instructions for bf16 also round activations.
RANK_TOLERANCE = 1e-4
PLAIN = ["--isa", "portable"]
# Numbers of ranks: those that divide the attention heads, the KV heads (or are a multiple) and intermediate_size.
FABLES_RANKS, STORIES_RANKS = [2], [2, 4]
TINY_RANKS = {"llama3": [2, 4], "llama-tied-sharded": [2, 4], "mistral-window": [2, 4], "qwen2": [2, 4], "qwen3": [2, 4],
              "granite": [2], "phi3": [2], "phi3-longrope": [2], "phi4-mini": [2], "mixtral": [2],
              "qwen2_moe": [2], "qwen3_moe": [2], "granitemoe": [2], "ernie4_5_moe": [2], "glm4_moe": [2], "gpt_oss": [2],
              "deepseek_v2": [2], "deepseek_v3": [2], "lfm2": [2], "qwen3_next": [2],
              "smollm3": [2], "seed_oss": [2], "glm4": [2], "exaone4": [2], "olmo2": [2], "olmo3": [2], "olmoe": [2], "gemma": [2], "gemma2": [2], "gemma3": [2],
              "cohere2": [2], "stablelm": [2], "starcoder2": [2], "nemotron": [2], "gpt2": [2], "gpt_neox": [2]}


def tiny(name):
    return shared("models", "hf-tiny", name)


def stories():
    return shared("models", "stories260K")


def gpus(ranks):
    return ["--gpus", str(ranks)]


def recorded(name):
    return recorded_cases(tiny(name))


class RanksTest(ReferenceTest):
    of_one_rank = {}  # (engine, prompt, count): what logits() gave

    def check_same_logits(self, one, several, prompt, count, what):
        """The same tokens, and logits that differ by rounding only. Returns the largest difference."""
        asked = (one, tuple(prompt), count)
        if asked not in self.of_one_rank:
            self.of_one_rank[asked] = self.logits(one, prompt, count, *PLAIN)
        ids, expected = self.of_one_rank[asked]
        found_ids, found = self.logits(several, prompt, count, *PLAIN)
        largest = 0
        for step, (row, wanted) in enumerate(zip(found, expected)):
            self.check_logits(row, wanted, RANK_TOLERANCE, "%s, step %d" % (what, step))
            largest = max(largest, max(abs(a - b) for a, b in zip(row, wanted)))
            best, second = sorted(wanted)[:-3:-1]
            if found_ids[step] != ids[step]:
                self.assertLess(best - second, 2 * RANK_TOLERANCE, "%s, step %d is no tie" % (what, step))
                return largest
        self.assertEqual(found_ids, ids)
        return largest


class Fables(FablesReference, RanksTest):
    """The shipped model: 6 heads, 2 KV heads."""

    label = "fables on 2 ranks"
    threads = ("1", "2", "3", "8")  # fewer than ranks, as many, more, more than there are processors

    @classmethod
    def setUpClass(cls):
        cls.cases = read_json(FABLES, "reference.json")["cases"]
        cls.one = build_engine(FABLES)
        cls.engine = build_engine(FABLES, *gpus(2))

    def test_logits_are_those_of_one_rank(self):
        largest = max(self.check_same_logits(self.one, self.engine, case["ids"], 16, case["prompt"])
                      for case in self.cases[:2 if SANITIZED else None])
        self.assertGreater(largest, 0, "sums of two parts are rounded otherwise; is this an engine of one rank?")

    @sanitized_elsewhere
    def test_long_prompts(self):
        """Several chunks, the last of them short; tokens before the prompt's end need no logits."""
        words = [token for case in self.cases for token in case["ids"] + case["greedy"]]
        for options in ([], ["--prefill-chunks", "1"], ["--prefill-chunks", "7"], ["--prefill-chunks", "3,50"],
                        ["--max-batch", "1", "--max-context", "400"]):
            engine = build_engine(FABLES, *options, *gpus(2))
            for length in (2, 50, 51, 299):
                with self.subTest(options=options, length=length):
                    prompt = (words * 10)[:length]
                    self.check_same_logits(self.one, engine, prompt, 3, "%d tokens" % length)

    def test_options(self):
        case = self.cases[0]
        for options in (["--dtype", "f32"], ["--dtype", "fp16"], ["--batch-sizes", "3"], ["--max-context", "128"]):
            with self.subTest(options=options):
                engine = build_engine(FABLES, *options, *gpus(2))
                self.check_greedy(engine, case["ids"], case["greedy"], case["gaps"])
                _, (row,) = self.logits(engine, case["ids"])
                self.check_logits(row, case["logits"], LOGIT_TOLERANCE, str(options))

    @sanitized_elsewhere
    def test_kv_cache_in_fewer_bits(self):
        """Each rank rounds its own heads' keys and values, as one rank does."""
        for dtype, tolerance in {"bf16": 0.25, "fp16": 0.05, "int8": 0.5, "fp8": 1.5}.items():
            with self.subTest(dtype):
                one, several = build_engine(FABLES, "--kv-dtype", dtype), build_engine(FABLES, "--kv-dtype", dtype, *gpus(2))
                _, (expected,) = self.logits(one, self.cases[0]["ids"])
                _, (found,) = self.logits(several, self.cases[0]["ids"])
                self.check_logits(found, expected, tolerance, dtype)

    def test_runs_are_identical(self):
        """The parts of a sum are added in the order of the ranks, whichever arrives first."""
        prompt = ",".join(map(str, self.cases[0]["ids"]))
        with scratch() as folder:
            logits = []
            for i in range(6):
                path = os.path.join(folder, "%d.npy" % i)
                output([ENGRUN, self.engine, "--tokens", prompt, "-n", "24", "--ignore-eos", "--logits", path])
                logits.append(contents(path))
            self.assertEqual(len(set(logits)), 1)

    def test_sampling(self):
        """All ranks draw the same token, the one that a single rank draws."""
        seeds = range(3 if SANITIZED else 10)
        answers = set()
        for seed in seeds:
            flags = ["-p", "Once upon a time", "-n", "40", "--ignore-eos", "--print-tokens", "--temperature", "1.1",
                     "--top-k", "50", "--top-p", "0.97", "--repetition-penalty", "1.2", "--seed", str(seed), *PLAIN]
            expected = output([ENGRUN, self.one, *flags])
            self.assertEqual(output([ENGRUN, self.engine, *flags]), expected, "seed %d" % seed)
            answers.add(expected)
        self.assertEqual(len(answers), len(seeds))

    def test_text_and_chat(self):
        for flags in (["-p", "Once upon a time"], ["-p", "The fox", "--timing"], ["-p", "A", "-n", "1"]):
            expected = output([ENGRUN, self.one, "-n", "30", *flags])
            self.assertEqual(output([ENGRUN, self.engine, "-n", "30", *flags]), expected)

    def test_selftest(self):
        for threads in ("1", "2", "5"):
            output([ENGRUN, self.engine, "--selftest", "--threads", threads])

    def test_batches(self):
        """Several sequences at once (their tokens: tests/ranks_test.c)."""
        report = output_json([ENGBENCH, self.engine, "-p", "16,40", "-n", "4", "-b", "1,3,8", "-c", "32", "-r", "1",
                              "--json"])
        self.assertEqual([(row["test"], row["batch"]) for row in report["results"]],
                         [("pp16", 1), ("pp40", 1), ("tg4", 1), ("tg4", 3), ("tg4", 8), ("first token", 1)])
        for row in report["results"]:
            self.assertGreater(row["mean"], 0)

    def test_trace(self):
        with scratch() as folder:
            path = os.path.join(folder, "trace.json")
            output([ENGBENCH, self.engine, "--trace", path, "-p", "16", "-b", "1"])
            names = [event.get("name", "") for event in read_json(path)]
        self.assertEqual(sum("all_reduce" in name for name in names), 2 * (1 + 2 * 5))
        self.assertEqual(sum("all_gather" in name for name in names), 2)


class Stories(RanksTest):
    """8 heads, 4 KV heads, an inner width that is odd on 4 ranks."""

    @needs_shared("models", "stories260K")
    def test_tokens(self):
        ids = read_json(stories(), "greedy_reference.json")["greedy_ids_from_bos"]
        self.assertEqual(len(ids), 101)
        for ranks in STORIES_RANKS:
            for model in ("stories260K", "stories260K-bf16"):
                with self.subTest(model, ranks=ranks):
                    engine = build_engine(shared("models", model), *gpus(ranks))
                    self.assertEqual(self.generate(engine, [1], 100), ids[1:])
                    output([ENGRUN, engine, "--selftest"])

    @sanitized_elsewhere
    @needs_shared("models", "stories260K")
    def test_logits(self):
        ids = read_json(stories(), "greedy_reference.json")["greedy_ids_from_bos"]
        for ranks in STORIES_RANKS:
            for prompt in (ids[:1], ids[:20], ids[:90]):
                with self.subTest(ranks=ranks, prompt=len(prompt)):
                    self.check_same_logits(build_engine(stories()), build_engine(stories(), *gpus(ranks)), prompt, 10,
                                           "%d ranks" % ranks)

    @needs_shared("models", "stories260K")
    def test_long_prompts(self):
        ids = read_json(stories(), "greedy_reference.json")["greedy_ids_from_bos"]
        cases = list(itertools.product(STORIES_RANKS, ("1", "7", "2,30")))
        for ranks, chunks in cases[::2] if SANITIZED else cases:
            with self.subTest(ranks=ranks, chunks=chunks):
                engine = build_engine(stories(), "--prefill-chunks", chunks, *gpus(ranks))
                self.assertEqual(self.generate(engine, ids[:75], 26), ids[75:])


@needs_shared("models", "hf-tiny")
class Architectures(RanksTest):
    """4 heads, 2 KV heads: one KV head on each of 2 ranks, or on two of 4."""

    def engines(self):
        """(name, ranks, engine)"""
        for name in ALL_BLOCKS if SANITIZED else TINY_RANKS:
            for ranks in TINY_RANKS[name][:1] if SANITIZED else TINY_RANKS[name]:
                yield name, ranks, build_engine(tiny(name), *gpus(ranks))

    def test_recorded_tokens(self):
        count = ties = 0
        for name, ranks, engine in self.engines():
            for prompt, _, greedy, gaps in recorded(name):
                with self.subTest(name, ranks=ranks, prompt=len(prompt)):
                    ties += self.check_greedy(engine, prompt, greedy, gaps)
                    count += len(greedy)
        tally("greedy tokens on ranks (%d ties)" % ties, count)

    def test_recorded_logits(self):
        count = 0
        for name, ranks, engine in self.engines():
            for prompt, expected, _, _ in recorded(name):
                with self.subTest(name, ranks=ranks, prompt=len(prompt)):
                    _, (found,) = self.logits(engine, prompt)
                    self.check_logits(found, expected[-1], LOGIT_TOLERANCE, name)
                    count += 1
        tally("rows of logits on ranks", count)

    def test_logits_are_those_of_one_rank(self):
        for name, ranks, engine in self.engines():
            with self.subTest(name, ranks=ranks):
                self.check_same_logits(build_engine(tiny(name)), engine, recorded(name)[3][0], 12, name)

    def test_selftest(self):
        for name, ranks, engine in self.engines():
            with self.subTest(name, ranks=ranks):
                output([ENGRUN, engine, "--selftest"])
                output([ENGINFO, engine, "--verify"])


@unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
class Shapes(RanksTest):
    """Random checkpoints whose sizes do not divide well."""

    # (type, heads, KV heads, inner width, vocabulary, tied, ranks)
    SHAPES = [
        ("llama", 3, 1, 33, 101, False, 3),   # the last rank has a token less; a KV head on all
        ("llama", 3, 1, 33, 101, True, 3),
        ("qwen2", 6, 3, 48, 19, True, 3),
        ("qwen3", 10, 5, 35, 64, False, 5),
        ("mistral", 12, 4, 60, 257, False, 12),
        ("llama", 16, 2, 48, 17, False, 16),  # two tokens on the first ranks, then one, then none
        ("qwen2", 16, 16, 16, 5, True, 16),
        ("olmo2", 6, 3, 33, 101, False, 3),   # norms over the width: every KV head on one rank,
        ("olmo2", 12, 4, 36, 19, True, 12),   # or on three
    ]

    def checkpoint(self, folder, shape):
        kind, heads, kv_heads, inner, vocab, tied, _ = shape
        config = {"model_type": kind, "architectures": [kind.capitalize() + "ForCausalLM"], "hidden_size": 40,
                  "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": heads,
                  "num_key_value_heads": kv_heads, "head_dim": 8, "vocab_size": vocab, "max_position_embeddings": 64,
                  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": tied,
                  "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
        if kind == "qwen2":
            del config["head_dim"]
            config["hidden_size"] = 8 * heads
        if kind == "mistral":
            config["sliding_window"] = 6
        shape_folder, model = os.path.join(folder, "shape"), os.path.join(folder, "model")
        os.mkdir(shape_folder)
        with open(os.path.join(shape_folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        output([MAKE_CHECKPOINT, "--config", shape_folder, "-o", model, "--dtype", "f32"])
        return model

    def test_any_shape(self):
        for shape in self.SHAPES[::2] if SANITIZED else self.SHAPES:
            with self.subTest(shape=shape), scratch() as folder:
                vocab, ranks = shape[4], shape[6]
                model = self.checkpoint(folder, shape)
                one = build_engine(model, "--prefill-chunks", "4,16")
                several = build_engine(model, "--prefill-chunks", "4,16", *gpus(ranks))
                # Every token of the vocabulary, on each rank.
                prompts = [[t % vocab for t in range(first, first + 23)] for first in range(0, min(vocab, 115), 23)]
                for prompt in prompts:
                    self.check_same_logits(one, several, prompt, 6, str(shape))
                output([ENGRUN, several, "--selftest"])
                output([ENGINFO, several, "--verify"])
        tally("shapes", len(self.SHAPES))

    @sanitized_elsewhere
    def test_any_dtype(self):
        with scratch() as folder:
            model = self.checkpoint(folder, self.SHAPES[0])
            for dtype in ("f32", "bf16", "fp16"):
                one = build_engine(model, "--dtype", dtype)
                self.check_same_logits(one, build_engine(model, "--dtype", dtype, *gpus(3)), [1, 100, 67, 33, 34], 8, dtype)

    def test_what_cannot_be_shared_is_refused(self):
        cases = [("llama", 3, 1, 33, 101, False, 2), ("llama", 6, 2, 33, 101, False, 2), ("llama", 12, 4, 36, 101, False, 3)]
        words = ["3 attention heads", "33 rows of the MLP", "4 KV heads"]
        for shape, word in zip(cases, words):
            with self.subTest(shape=shape), scratch() as folder:
                model, path = self.checkpoint(folder, shape), os.path.join(folder, "m.eng")
                result = run([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", path,
                              *gpus(shape[6])])
                self.assertEqual(result.rc, 1, result.stderr)
                self.assertIn("%d GPUs cannot share %s" % (shape[6], word), result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
                self.assertFalse(os.path.exists(path))


TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2}
FEW_EXPERTS = {"num_experts": 8, "moe_intermediate_size": 48}
GEMMA4 = {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 16,
          "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": 320, "hidden_size_per_layer_input": 0}
QWEN3_5 = {**TEXT, "model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2,
           "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
           "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}


@unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
class Unrecorded(RanksTest):
    """Families that hf-tiny does not have, on two ranks and on one. architectures_test.py compares both with recordings."""

    FAMILIES = {
        "gemma4, inputs of layers": {**GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16},
        "gemma4, a KV head on both ranks": {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        "gemma4, experts": {**GEMMA4, **FEW_EXPERTS, "enable_moe_block": True, "top_k_experts": 3},
        "qwen3_5": QWEN3_5,
        "qwen3_5_moe": {**QWEN3_5, **FEW_EXPERTS, "model_type": "qwen3_5_moe_text", "num_experts_per_tok": 3, "shared_expert_intermediate_size": 64},
    }

    def test_logits_are_those_of_one_rank(self):
        prompt = [(7 * i + 3) % 320 for i in range(60)]
        for name, config in list(self.FAMILIES.items())[::2 if SANITIZED else 1]:
            with self.subTest(name), scratch() as folder:
                shape, model = os.path.join(folder, "shape"), os.path.join(folder, "model")
                os.mkdir(shape)
                with open(os.path.join(shape, "config.json"), "w", encoding="utf-8") as file:
                    json.dump(config, file)
                output([MAKE_CHECKPOINT, "--config", shape, "-o", model, "--dtype", "f32"])
                several = build_engine(model, *gpus(2))
                self.assertGreater(self.check_same_logits(build_engine(model), several, prompt, 12, name), 0)
                output([ENGRUN, several, "--selftest"])


class Files(RanksTest):
    def build(self, path, *options, model=FABLES):
        return output([ENGBUILD, "--model", model, "--target", "cpu", "--quiet", "-o", path,
                       *([] if "--tune" in options else ["--tune", "off"]), *options])

    def test_one_rank_is_the_default(self):
        with scratch() as folder:
            one, default = os.path.join(folder, "one"), os.path.join(folder, "default")
            self.build(one, "--gpus", "1", "--tuning-cache", "none")
            self.build(default, "--tuning-cache", "none")
            self.assertEqual(contents(one), contents(default))
            self.assertNotIn("parallel", output_json([ENGINFO, one, "--json"])["manifest"])

    def test_same_bytes(self):
        with scratch() as folder:
            paths = [os.path.join(folder, name) for name in ("a", "b", "c")]
            for path, threads in zip(paths, ("1", "4", "1")):
                self.build(path, *gpus(2), "--threads", threads, "--tuning-cache", "none")
            self.assertEqual(contents(paths[0]), contents(paths[2]))
            # Default tunables depend on the threads; packed weights and results do not.
            manifests = [output_json([ENGINFO, path, "--json"])["manifest"] for path in paths]
            self.assertEqual(manifests[0], manifests[1])

    def test_enginfo(self):
        for ranks in FABLES_RANKS:
            engine = build_engine(FABLES, *gpus(ranks))
            manifest = output_json([ENGINFO, engine, "--json"])["manifest"]
            one = output_json([ENGINFO, build_engine(FABLES), "--json"])["manifest"]
            self.assertEqual(manifest["parallel"]["ranks"], ranks)
            self.assertGreater(manifest["parallel"]["comm_bytes"], 256 * 192 * 4)  # rows of the largest chunk
            weights = manifest["memory"]["weights_bytes"]
            self.assertEqual(weights % (ranks * REGION_ALIGNMENT), 0)
            # Only norms are stored more than once, and the padding of each region to a page.
            self.assertLess(weights, one["memory"]["weights_bytes"] * 1.3)
            self.assertEqual(manifest["kv_cache"]["page_bytes"], one["kv_cache"]["page_bytes"] // ranks)
            self.assertEqual(manifest["model"], one["model"], "the model is the whole one's")
            output([ENGINFO, engine])
            output([ENGINFO, engine, "--verify"])
            self.assertIn("all_reduce", output([ENGINFO, engine, "--tactics"]))

    @needs_shared("models", "hf-tiny")
    def test_shared_kv_heads(self):
        """4 ranks with 2 KV heads: a page has one head on each."""
        pages = [output_json([ENGINFO, build_engine(tiny("llama3"), *gpus(ranks)), "--json"])["manifest"]["kv_cache"]
                 ["page_bytes"] for ranks in (1, 2, 4)]
        self.assertEqual(pages, [pages[0], pages[0] // 2, pages[0] // 2])

    def test_dry_run(self):
        with scratch() as folder:
            report = output_json([ENGBUILD, "--model", FABLES, "--target", "cpu", "--dry-run", "--json", *gpus(2)],
                                 cwd=folder)
            self.assertEqual(os.listdir(folder), [])
        info = output_json([ENGINFO, build_engine(FABLES, *gpus(2)), "--json"])
        for name in ("arena_bytes", "step_bytes", "state_bytes"):
            self.assertEqual(report["memory"][name], info["manifest"]["memory"][name], name)
        # The figures are those of each rank.
        self.assertEqual(report["ranks"], 2)
        self.assertEqual(report["memory"]["weights_bytes"] * 2, info["manifest"]["memory"]["weights_bytes"])
        self.assertEqual(report["memory"]["comm_bytes"], info["manifest"]["parallel"]["comm_bytes"])
        self.assertEqual(report["memory"]["page_bytes"], info["manifest"]["kv_cache"]["page_bytes"])
        self.assertEqual([(plan["kind"], plan["rows"], plan["launches"]) for plan in report["plans"]],
                         [(plan["kind"], plan["rows"], plan["launches"]) for plan in info["plans"]])

    def test_dump(self):
        command = [ENGBUILD, "--model", FABLES, "--target", "cpu", "--dry-run", "--quiet", "--dump-after", "shard"]
        text = output(command + gpus(2))
        self.assertIn("; 2 ranks\n", text)
        self.assertIn("%embedded[T,192] = all_reduce(x=%embedded.part)\n", text)
        self.assertIn("%qkv4[T,160] = matmul(", text)
        self.assertIn(" = all_gather(", text)
        self.assertEqual(text.count("all_reduce"), 4 * (1 + 2 * 5))  # decode, prefill, mixed and verify
        text = output(command)
        self.assertNotIn("ranks", text)
        self.assertNotIn("all_", text)

    def test_tuning(self):
        """Records of a rank's shapes are stored and found again, beside those of one rank."""
        with scratch() as folder:
            cache, path = os.path.join(folder, "records"), os.path.join(folder, "m.eng")
            small = ["--max-batch", "1", "--prefill-chunks", "16", "--tune", "quick", "--tuning-cache", cache]
            measured = [output_json([ENGBUILD, "--model", FABLES, "--target", "cpu", "--quiet", "--json", "-o", path, *small,
                                     *gpus(ranks)])["tactics_measured"] for ranks in (2, 2, 1, 1, 2)]
            self.assertGreater(measured[0], 0)
            self.assertGreater(measured[2], 0)
            self.assertEqual([measured[i] for i in (1, 3, 4)], [0, 0, 0])
            case = read_json(FABLES, "reference.json")["cases"][0]
            self.check_greedy(path, case["ids"], case["greedy"], case["gaps"])

    def test_damage_in_any_region_is_noticed(self):
        engine = build_engine(FABLES, *gpus(2))
        good = bytearray(contents(engine))
        region = output_json([ENGINFO, engine, "--json"])["manifest"]["memory"]["weights_bytes"] // 2
        generator = random.Random(5)
        weights = 4096  # the first section; its offset is aligned, nothing lies before it
        with scratch() as folder:
            path = os.path.join(folder, "m.eng")
            for rank in range(2):
                at = weights + rank * region + generator.randrange(1 << 20)
                good[at] ^= 16
                with open(path, "wb") as file:
                    file.write(good)
                good[at] ^= 16
                for command in ([ENGRUN, path, "--tokens", "1", "-n", "1"], [ENGINFO, path, "--verify"]):
                    result = run(command)
                    self.assertEqual(result.rc, 1, result.stderr)
                    self.assertIn("chunk %d" % rank, result.stderr)
            with open(path, "wb") as file:
                file.write(good)
            output([ENGINFO, path, "--verify"])

    def test_refusals(self):
        cases = [(FABLES, 3, "3 GPUs cannot share 320 rows of the MLP equally (config.json: intermediate_size)"),
                 (FABLES, 4, "4 GPUs cannot share 6 attention heads equally (config.json: num_attention_heads)"),
                 (FABLES, 16, "16 GPUs cannot share 6 attention heads equally")]
        if os.path.exists(stories()):
            cases += [(stories(), 3, "3 GPUs cannot share 8 attention heads"),
                      (stories(), 8, "8 GPUs cannot share 172 rows of the MLP")]
        if os.path.exists(tiny("llama3")):
            cases += [(tiny(name), 3, "3 GPUs cannot share %d attention heads" % max(numbers))
                      for name, numbers in TINY_RANKS.items()]
        for model, ranks, words in cases:
            for more in ([], ["--dry-run"]):
                with self.subTest(model=model, ranks=ranks, more=more), scratch() as folder:
                    result = run([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o",
                                  os.path.join(folder, "m.eng"), *gpus(ranks), *more])
                    self.assertEqual(result.rc, 1, result.stderr)
                    self.assertIn(words, result.stderr)
                    self.assertEqual(result.stderr.count("\n"), 1)
                    self.assertEqual(os.listdir(folder), [])
        tally("refusals", len(cases))


if __name__ == "__main__":
    unittest.main()
