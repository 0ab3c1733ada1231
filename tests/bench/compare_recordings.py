# SPDX-License-Identifier: Apache-2.0
"""Compares engines, for GPUs unless told otherwise, with the recordings of transformers that lie beside small checkpoints:

    compare_recordings.py FOLDER|FILE.json... --programs DIRECTORY [--target cpu] [--gpus N] [--jobs 8] [--bound 3e-2] [-- OPTIONS OF ENGBUILD]

A folder is a checkpoint with reference.json and reference_logits.npz (tests/make_recordings.py; float32, with the weights as they
are stored or dequantised), or holds such folders, or FILE.json of tests/e2e/data/references, whose weights are made here. Each gets an engine, whose self test must pass. The logits after each recorded
prompt must lie within --bound of their largest, and the greedy tokens may leave the recorded ones only where the two best
logits of the recording are nearer to each other than twice the largest error. A router chooses otherwise where rounding decides, and the
norm after a delta rule enlarges rounding, so that models with either have --loose-bound. Checkpoints whose activations are rounded to codes, too
(fp8, W8A8), are compared with `-- --compute bf16`: the recordings are without. Exit code 1 if one fails.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from seeded_checkpoint import write_checkpoint  # noqa: E402

CONTEXT = 128
# Fields of configurations with experts or a delta rule.
LOOSE = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "linear_num_value_heads")


def run(*words):
    answer = subprocess.run(words, capture_output=True, text=True)
    if answer.returncode:
        raise ValueError("%s: exit code %d: %s" % (os.path.basename(words[0]), answer.returncode,
                                                   (answer.stdout + answer.stderr).strip()[-300:]))
    return answer.stdout


def read_json(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


def is_loose(folder):
    config = read_json(os.path.join(folder, "config.json"))
    config = config.get("text_config", config)
    return any(config.get(field) for field in LOOSE)


def compare_case(engrun, engine, case, expected, scratch):
    """The error, and where the tokens differ, or None."""
    count, path = len(case["greedy"]), os.path.join(scratch, "logits.npy")
    tokens = run(engrun, engine, "--tokens", ",".join(map(str, case["prompt"])), "-n", str(count), "--ignore-eos",
                 "--print-tokens", "--logits", path)
    tokens = [int(word) for word in tokens.split()]
    found = numpy.load(path)[0][:len(expected)].astype(float)
    error = abs(found - expected).max() / abs(expected).max()
    for i, (a, b) in enumerate(zip(tokens, case["greedy"])):
        if a != b:
            return error, (i, count, case["top1_top2_gap"][i], abs(expected).max())
    return error, None


def recorded(source, scratch):
    """The folder of a checkpoint, its cases, and the logits after the prompt of each."""
    if source.endswith(".json"):
        reference = read_json(source)
        write_checkpoint(scratch, reference)
        return scratch, reference["cases"], [numpy.array(case["logits"], float) for case in reference["cases"]]
    cases = read_json(source, "reference.json")["cases"]
    logits = numpy.load(os.path.join(source, "reference_logits.npz"))
    return source, cases, [logits["logits_%d" % i][-1].astype(float) for i in range(len(cases))]


def compare(source, arguments):
    engrun = os.path.join(arguments.programs, "engrun")
    largest, differing, failures = 0, [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder, cases, logits = recorded(source, scratch)
        bound = arguments.loose_bound if is_loose(folder) else arguments.bound
        engine = os.path.join(scratch, "model.eng")
        run(os.path.join(arguments.programs, "engbuild"), "--model", folder, "--target", arguments.target, "--gpus",
            str(arguments.gpus), "--tune", "off", "--tuning-cache", "none", "--no-accuracy", "--max-batch", "4", "--batch-sizes",
            "1,4", "--prefill-chunks", "32", "--max-context", str(CONTEXT), "--quiet", "-o", engine, *arguments.options)
        run(engrun, engine, "--selftest")
        for case, expected in zip(cases, logits):
            if len(case["prompt"]) + len(case["greedy"]) >= CONTEXT:
                continue
            error, difference = compare_case(engrun, engine, case, expected, scratch)
            largest = max(largest, error)
            if difference:
                at, count, gap, scale = difference
                differing.append("%d of %d (gap %.3f)" % (at, count, gap))
                if gap > 2 * max(error, bound) * scale:
                    failures.append("a prompt of %d: token %d differs, a gap of %.3f" % (len(case["prompt"]), at, gap))
    if largest > bound:
        failures.append("an error above %g" % bound)
    text = "largest error %.4f; tokens differ after %s" % (largest, ", ".join(differing) or "none")
    return text + ("; FAILED: " + "; ".join(failures) if failures else ""), not failures


def attempt(source, arguments):
    try:
        return compare(source, arguments)
    except (OSError, KeyError, ValueError) as error:
        return "FAILED: %s" % error, False


def checkpoints(folders):
    for folder in folders:
        if folder.endswith(".json") or os.path.exists(os.path.join(folder, "reference.json")):
            yield folder
        else:
            yield from checkpoints(sorted(entry.path for entry in os.scandir(folder) if entry.is_dir()))


def main():
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[:words.index("--")], words[words.index("--") + 1:]
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--programs", required=True)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--bound", type=float, default=3e-2)
    parser.add_argument("--loose-bound", type=float, default=2.5e-1)
    arguments = parser.parse_args(words)
    arguments.options = options
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(checkpoints(arguments.folders))
        for folder, (text, good) in zip(folders, pool.map(lambda each: attempt(each, arguments), folders)):
            print("%s: %s" % (os.path.basename(folder), text), flush=True)
            failed += not good
    print("%d checkpoints, %d failed" % (len(folders), failed))
    sys.exit(1 if failed or not folders else 0)


if __name__ == "__main__":
    main()
