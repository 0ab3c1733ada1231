# SPDX-License-Identifier: Apache-2.0
"""Makes a model repeat itself, so that drafts of its own text are right: for measurements of speculation.

    cycle_checkpoint.py FOLDER N

Changes FOLDER/model.safetensors in place, a checkpoint of make_checkpoint in bf16 with an LM head of its own. Attention and MLPs add next to
nothing to the residual (2^-8 of what they did), and row t + 1 of the LM head is row t of the embedding, in cycles of N tokens: the next
token follows from the last one alone. Steps read and compute as much as before. Needs numpy.
"""

import json
import sys

import numpy

EXPONENT, LESS = 0x7f80, 8 << 7  # of bf16; its lowest bit has the value 1 << 7


def main():
    path, cycle = sys.argv[1] + "/model.safetensors", int(sys.argv[2])
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r+")
    begin = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8:begin]))

    def tensor(name):
        entry = header[name]
        if entry["dtype"] != "BF16":
            raise SystemExit("%s: expected BF16, found %s" % (name, entry["dtype"]))
        first, end = entry["data_offsets"]
        return data[begin + first:begin + end].view("<u2").reshape(entry["shape"])

    embedding = numpy.array(tensor("model.embed_tokens.weight"))
    tokens = numpy.arange(len(embedding))
    first = tokens // cycle * cycle
    tensor("lm_head.weight")[first + (tokens - first + 1) % numpy.minimum(cycle, len(embedding) - first)] = embedding
    for name in header:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            bits = tensor(name)
            bits[:] = numpy.where((bits & EXPONENT) > LESS, bits - LESS, 0)
    data.flush()


if __name__ == "__main__":
    main()
