# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of weights that follow from names: a description has names, shapes, means and spreads of tensors, and this module
makes the same model.safetensors of it everywhere, with the standard library alone."""

import hashlib
import json
import math
import operator
import os
import struct

# A sum of two bytes has these.
MEAN, DEVIATION = 255, math.sqrt((256 ** 2 - 1) / 6)


def bfloat16(value):
    """The two bytes of the nearest bfloat16, ties to even."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def weights(name, shape, mean, spread):
    """Bytes of a tensor in bfloat16: mean and standard deviation are the given ones."""
    count = math.prod(shape)
    noise = hashlib.shake_128(name.encode()).digest(2 * count)
    table = [bfloat16(mean + spread * (total - MEAN) / DEVIATION) for total in range(2 * MEAN + 1)]
    return b"".join(map(table.__getitem__, map(operator.add, noise[::2], noise[1::2])))


def write_tensors(path, tensors):
    """tensors: [name, shape, mean, spread] of each."""
    header, parts, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape, mean, spread in tensors:
        parts.append(weights(name, shape, mean, spread))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def write_checkpoint(folder, description):
    """config.json and model.safetensors."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(description["config"], file)
    write_tensors(os.path.join(folder, "model.safetensors"), description["tensors"])
