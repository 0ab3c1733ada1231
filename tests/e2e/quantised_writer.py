# SPDX-License-Identifier: Apache-2.0
"""Matrices in the containers of quantised checkpoints. A function takes a module's name, values[rows * columns] and the shape, and gives
(the tensors of the module as write_safetensors takes them, the numbers that they stand for). Plain code after the layouts of the libraries
that write such files; nothing of engbuild is used."""

import array
import bisect
import math
import struct


# ---- numbers of few bits ----

def encode_layers(tensors, encode, arguments):
    """(tensors of the quantised checkpoint, those of one with its numbers): matrices of layers as `encode` has them, all others as they are."""
    quantised, plain = {}, {}
    for name, (shape, values) in tensors.items():
        if len(shape) == 2 and "layers" in name:
            codes, values = encode(name[:-len(".weight")], values, shape, *arguments)
            quantised.update(codes)
        else:
            quantised[name] = (shape, values)
        plain[name] = (shape, values)
    return quantised, plain


def rounded(kind, value):
    """The number of a type of scales nearest to a positive value; for E8M0 the next larger one, so that nothing overflows."""
    if kind == "E8M0":
        return 2.0 ** math.ceil(math.log2(value))
    return numbers_of(kind, bytes_of(kind, [value]))[0]


def bytes_of(kind, values):
    if kind == "E8M0":
        return bytes(127 + int(math.log2(value)) for value in values)
    if kind == "BF16":
        words = array.array("I", array.array("f", values).tobytes())
        return array.array("H", [word + 0x7fff + (word >> 16 & 1) >> 16 for word in words]).tobytes()
    return struct.pack("<%d%s" % (len(values), {"F16": "e", "F32": "f"}[kind]), *values)


def numbers_of(kind, data):
    if kind == "BF16":
        return array.array("f", array.array("I", [half << 16 for half in array.array("H", data)]).tobytes())
    return struct.unpack("<%d%s" % (len(data) // {"F16": 2, "F32": 4}[kind], {"F16": "e", "F32": "f"}[kind]), data)


E4M3 = [(code & 7) / 512 if code < 8 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7) for code in range(127)]
E4M3_MIDDLES = [(a + b) / 2 for a, b in zip(E4M3, E4M3[1:])]
# The element type of scales in a file.
STORED = {"E8M0": "U8"}


class Integers:
    """Unsigned codes in groups of `size` columns (0: all of a row): codes[row][column], scales and zeros[row][group], and `numbers`. Without
    `symmetric` zero points are from 1 on."""

    def __init__(self, values, shape, size, bits, symmetric, kind):
        self.rows, self.columns = shape
        size = size or self.columns
        middle, most = 1 << bits - 1, (1 << bits) - 1
        self.codes, self.scales, self.zeros, self.numbers = [], [], [], array.array("f")
        for row in range(self.rows):
            line, codes, scales, zeros = values[row * self.columns:(row + 1) * self.columns], [], [], []
            for begin in range(0, self.columns, size):
                part = line[begin:begin + size]
                least, largest = min(0.0, *part), max(0.0, *part)
                step = max(-least, largest) / (middle - 0.5) if symmetric else (largest - least) / most
                scale = rounded(kind, max(step, 1e-4))
                zero = middle if symmetric else max(1, min(most, round(-least / scale)))
                found = [max(0, min(most, round(value / scale) + zero)) for value in part]
                codes += found
                scales.append(scale)
                zeros.append(zero)
                self.numbers.extend([(code - zero) * scale for code in found])
            self.codes.append(codes)
            self.scales.append(scales)
            self.zeros.append(zeros)


# ---- words of 32 bits ----

def dense(codes, bits):
    """Codes one after the other, the first in the lowest bits."""
    stream = 0
    for code in reversed(codes):
        stream = stream << bits | code
    return stream.to_bytes(-(-len(codes) * bits // 32) * 4, "little")


def whole(codes, bits):
    """As many whole codes as a word holds."""
    each = 32 // bits
    return b"".join(dense(codes[i:i + each], bits) for i in range(0, len(codes), each))


def words(lines, packed, transposed=False):
    """An I32 tensor with a packed line in each row or, transposed, in each column."""
    rows = [array.array("I", packed(line)) for line in lines]
    shape = [len(rows), len(rows[0])]
    if transposed:
        rows, shape = [array.array("I", column) for column in zip(*rows)], shape[::-1]
    return shape, b"".join(row.tobytes() for row in rows), "I32"


def floats(kind, matrix):
    """A tensor of scales: [rows][columns]."""
    return [len(matrix), len(matrix[0])], bytes_of(kind, [value for row in matrix for value in row]), STORED.get(kind, kind)


def columns_of(matrix):
    return [list(column) for column in zip(*matrix)]


# ---- GPTQ, AWQ ----

def gptq(name, values, shape, bits, size, symmetric=False, version=2, kind="F16"):
    q = Integers(values, shape, size, bits, symmetric, kind)
    less = version == 1  # zero points are stored less one
    zeros = [[zero - less for zero in line] for line in columns_of(q.zeros)]
    return {name + ".qweight": words(q.codes, lambda line: dense(line, bits), True),
            name + ".qzeros": words(zeros, lambda line: dense(line, bits)),
            name + ".scales": floats(kind, columns_of(q.scales)),
            name + ".g_idx": ([q.columns], struct.pack("<%di" % q.columns, *(k // (size or q.columns) for k in range(q.columns))), "I32")}, q.numbers


def awq_gemm(name, values, shape, size, symmetric=False):
    q = Integers(values, shape, size, 4, symmetric, "F16")

    def line_of(line):
        return dense([line[c + i] for c in range(0, len(line), 8) for i in (0, 2, 4, 6, 1, 3, 5, 7)], 4)
    return {name + ".qweight": words(columns_of(q.codes), line_of), name + ".qzeros": words(columns_of(q.zeros), line_of),
            name + ".scales": floats("F16", columns_of(q.scales))}, q.numbers


def awq_width(columns, size):
    """Words of zero points in a row, of eight groups each."""
    multiple = {64: 2, 32: 4}.get(size, 1)
    return -(-(columns // size) // (8 * multiple)) * multiple


def awq_gemv(name, values, shape, size):
    q = Integers(values, shape, size, 4, False, "F16")
    padding = [0] * (8 * awq_width(q.columns, size) - len(q.zeros[0]))
    return {name + ".qweight": words(q.codes, lambda line: dense(line, 4)),
            name + ".qzeros": words([line + padding for line in q.zeros], lambda line: dense(line, 4)),
            name + ".scales": floats("F16", [line + padding for line in q.scales])}, q.numbers


def awq_gemv_fast(name, values, shape, size, zeros="qzeros", symmetric=False):
    """float16 has the products of scales and zero points exactly if `symmetric`: these are 8."""
    q = Integers(values, shape, size, 4, symmetric, "F16")
    padding = [0] * (8 * awq_width(q.columns, size) - len(q.zeros[0]))
    places = [p // 32 * 32 + p % 4 * 8 + p % 32 // 4 for p in range(64)]  # the column at each place of 64
    packed = b"".join(dense([q.codes[r + i][k + place] for i in range(4) for place in places], 4)
                      for r in range(0, q.rows, 4) for k in range(0, q.columns, 64))
    added = [[rounded("F16", scale * zero) for scale, zero in zip(*lines)] for lines in zip(q.scales, q.zeros)]
    numbers = array.array("f")
    for codes, scales, less in zip(q.codes, q.scales, added):
        numbers.extend([code * scales[k // size] - less[k // size] for k, code in enumerate(codes)])
    return {name + ".qweight": ([q.rows // 4, q.columns], packed, "I16"),
            name + ".scales": floats("F16", columns_of([line + padding for line in q.scales])),
            "%s.%s" % (name, zeros): floats("F16", columns_of([[-value for value in line] + padding for line in added]))}, numbers


# ---- compressed-tensors ----

def packed(name, values, shape, bits, size, symmetric, packing=dense, kind="BF16"):
    q = Integers(values, shape, size, bits, symmetric, kind)
    tensors = {name + ".weight_packed": words(q.codes, lambda line: packing(line, bits)),
               name + ".weight_scale": floats(kind, q.scales),
               name + ".weight_shape": ([2], struct.pack("<2q", *shape), "I64")}
    if not symmetric:
        tensors[name + ".weight_zero_point"] = words(columns_of(q.zeros), lambda line: packing(line, bits), True)
    return tensors, q.numbers


def signed_bytes(name, values, shape, symmetric, kind="BF16", size=0):
    """Codes of int8, one scale a row or group."""
    q = Integers(values, shape, size, 8, symmetric, kind)
    tensors = {name + ".weight": (shape, bytes(code ^ 128 for line in q.codes for code in line), "I8"),
               name + ".weight_scale": floats(kind, q.scales)}
    if not symmetric:
        tensors[name + ".weight_zero_point"] = ([q.rows, len(q.zeros[0])], bytes(zero ^ 128 for line in q.zeros for zero in line), "I8")
    return tensors, q.numbers


# ---- e4m3 ----

def e4m3(name, values, shape, block, kind, scales, scalar=None, dtype=None):
    """One scale, of a type, for blocks [rows, columns] (0: all); `scales`: the name of their tensor; `scalar`: its shape where there is one scale."""
    rows, columns = shape
    high, wide = block[0] or rows, block[1] or columns
    codes, numbers, plane = bytearray(rows * columns), array.array("f", values), []
    for top in range(0, rows, high):
        line = []
        for left in range(0, columns, wide):
            runs = [range(row * columns + left, row * columns + min(left + wide, columns)) for row in range(top, min(top + high, rows))]
            largest = max(max(map(abs, values[run.start:run.stop])) for run in runs)
            scale = rounded(kind, max(largest, 1e-6) / 448)
            line.append(scale)
            for run in runs:
                for i in run:
                    code = bisect.bisect(E4M3_MIDDLES, abs(values[i]) / scale)
                    codes[i] = code | (values[i] < 0) << 7
                    numbers[i] = math.copysign(E4M3[code] * scale, values[i])
        plane.append(line)
    extent, data, stored = floats(kind, plane)
    return {name + ".weight": (shape, bytes(codes), "F8_E4M3"),
            "%s.%s" % (name, scales): (extent if scalar is None else scalar, data, dtype or stored)}, numbers


# ---- ModelOpt ----

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nvfp4(name, values, shape):
    rows, columns = shape
    factor = rounded("F32", max(map(abs, values)) / (6 * 448))
    codes, scales, numbers = bytearray(rows * columns // 2), bytearray(), array.array("f", values)
    for begin in range(0, rows * columns, 16):
        largest = max(map(abs, values[begin:begin + 16]))
        scale = max(1, bisect.bisect(E4M3_MIDDLES, largest / (6 * factor)))
        scales.append(scale)
        for i in range(begin, begin + 16):
            code = min(range(8), key=lambda code: abs(E2M1[code] * E4M3[scale] * factor - abs(values[i])))
            codes[i // 2] |= (code | (values[i] < 0) << 3) << i % 2 * 4
            numbers[i] = math.copysign(E2M1[code] * E4M3[scale] * factor, values[i])
    return {name + ".weight": ([rows, columns // 2], bytes(codes), "U8"),
            name + ".weight_scale": ([rows, columns // 16], bytes(scales), "F8_E4M3"),
            name + ".weight_scale_2": ([], bytes_of("F32", [factor]), "F32"),
            name + ".input_scale": ([], bytes_of("F32", [0.5]), "F32")}, numbers


def by_module(name, values, shape, part, encoders):
    """The first of two (encoder, its arguments) for modules that `part` is part of the name of."""
    encode, *arguments = encoders[0 if part in name else 1]
    return encode(name, values, shape, *arguments)


# ---- bitsandbytes ----

def bitsandbytes_8(name, values, shape):
    rows, columns = shape
    largest = [max(map(abs, values[row * columns:(row + 1) * columns])) for row in range(rows)]
    codes = [round(value * 127 / largest[i // columns]) for i, value in enumerate(values)]
    return {name + ".weight": (shape, bytes(code & 255 for code in codes), "I8"),
            name + ".SCB": ([rows], bytes_of("F32", largest), "F32"),
            name + ".weight_format": ([], b"\0", "U8")}, array.array("f", [code * largest[i // columns] / 127 for i, code in enumerate(codes)])
