# SPDX-License-Identifier: Apache-2.0
"""Kernels on the host. all_reduce (all_reduce_on_host.cu): what it computes, what it leaves in the buffers, and whom it blames, for
every way of sharing rows and some shapes. rope_append (rope_append_on_host.cu), rope_query (rope_query_on_host.cu), latent_append
(latent_append_on_host.cu), mean_squares (mean_squares_on_host.cu), group_norm (group_norm_on_host.cu), multiply (multiply_on_host.cu), xielu (xielu_on_host.cu), select_columns (select_columns_on_host.cu), draft (draft_on_host.cu), quantise (quantise_on_host.cu), router (router_on_host.cu), norm_router (norm_router_on_host.cu), sample
(sample_on_host.cu), rms_norm (rms_norm_on_host.cu), rope_attention (rope_attention_on_host.cu), other attention (attention_on_host.cu), short_conv (short_conv_on_host.cu), state_space (state_space_on_host.cu) and delta_rule
(delta_rule_on_host.cu): what they compute, and that they read and write nothing else, for some shapes of every tunable. Matmuls with coded weights (matmul_on_host.cu), a router with the matmul that it is for (routed_matmul_on_host.cu) or with both (routed_mlp_on_host.cu) and embed with a coded table (embed_on_host.cu): for every encoding. How fast
they are, and what a GPU's memory does to their stores, is for GPUs."""

import concurrent.futures
import functools
import itertools
import os
import random
import shutil
import subprocess
import tempfile
import unittest

from matmul_cases import (BF16, E4M3, F16, F32, I8, blocks, coded_routed_mlps, codes_of_both, expert_gemv, expert_gemvs, expert_mmas, gemv, gemvs,
                          grouped, groupeds, mma, mmas, plain, plain_routed_mlps, routed, routed_mlp, routeds, selections, wgmma, wgmmas)
from recurrent_cases import delta_rule, delta_rule_chunks, delta_rules, short_conv, short_convs, state_space, state_space_chunks, state_spaces
from router_cases import norm_routers, routers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
C_COMPILER = shutil.which(os.environ.get("CC", "gcc"))
# Compiling takes longer than running.
COMPILE = [COMPILER, "-std=c++17", "-O0", "-w", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-pthread", "-I", ROOT]
HEADERS = ["tests/emulation/cuda_on_host.h", "kernels/all_reduce/all_reduce_one_shot.cuh",
           "kernels/all_reduce/all_reduce_two_shot.cuh", "tests/emulation/paged_on_host.h", "kernels/rope_append/rope_append.cuh",
           "kernels/mean_squares/mean_squares.cuh", "kernels/rope_query/rope_query.cuh", "kernels/multiply/multiply.cuh", "kernels/xielu/xielu.cuh", "kernels/select_columns/select_columns.cuh", "kernels/quantise/quantise.cuh", "kernels/rms_norm/rms_norm.cuh", "kernels/router/router.cuh", "kernels/norm_router/norm_router.cuh",
           "kernels/rope_attention/rope_attention.cuh", "kernels/attention/attention_generic.cuh",
           "kernels/attention/attention_latent.cuh", "kernels/attention/attention_prefill.cuh", "kernels/latent_append/latent_append.cuh",
           "kernels/sample/philox.h", "kernels/sample/sample.cuh", "kernels/draft/draft.cuh", "tests/emulation/recurrent_on_host.h", "kernels/short_conv/short_conv.cuh",
           "kernels/delta_rule/delta_rule.cuh", "kernels/delta_rule/delta_rule_chunk.cuh",
           "kernels/state_space/state_space.cuh", "kernels/state_space/state_space_chunk.cuh", "kernels/group_norm/group_norm.cuh"]
MATMUL_HEADERS = ["kernels/matmul/matmul_%s.cuh" % name for name in ("gemv", "grouped", "mma", "wgmma")] + ["kernels/routed_mlp/routed_mlp.cuh"]
C_HEADER = "kernels/matmul/panel.h"  # and what packs weights
C_SOURCES = ["kernels/matmul/coded_panel.c", "kernels/matmul/pack_codes.c", "formats/encoding/encoding.c", "formats/encoding/encoding_values.c",
             "formats/encoding/dtype.c"]
# All else in a case is a parameter of its kernel.
MACROS = ["BODY", "TWO_SHOT", "VALID", "MISSING", "SPOIL", "BLOCKS_IN_ALL", "SLOTS", "POSITIONS", "IN_PLACE", "COPIES_LATE", "RUNS",
          "WALKERS", "TOKENS", "CHUNKED", "BY_NORM"]
INT8_KV, E4M3_KV = CODED_KV = [16, 24]  # enum encoding_id of pages with codes that the kernels take: int8_channel, e4m3_channel
ROWS = [(1, 1), (2, 2), (2, 1), (0, 2), (0, 0), (1, 0), (2, 0), (0, 1), (1, 2)]  # HAS_RESIDUAL, HAS_NORM
SECONDS = 600
# A change to a kernel is tested with all cases, ENG_EMULATE=all. Without it so many run of each list, drawn at random and
# always the same.
ALL, SOME = os.environ.get("ENG_EMULATE") == "all", 5
PROGRAMS = 2 if ALL else 1  # of a test, compiled at once; what all programs share takes two seconds of each, a case a tenth
FOLDER = tempfile.TemporaryDirectory()


def two_shots():
    draw = random.Random(5)
    for halves, ranks, (residual, norm) in itertools.product((1, 2), (2, 3, 4), ROWS):
        if (ranks + residual + norm + halves) % 2 and ranks != 3:
            continue  # half of them, to save time
        rows = draw.choice([1, 2, 5, 9])
        yield {"SOURCE": "all_reduce", "TWO_SHOT": 1, "THREADS": draw.choice([32, 64]), "BLOCKS": draw.choice([1, 2, 3]), "HALVES": halves,
               "ROWS": rows, "VALID": draw.choice([rows, max(1, rows - 2)]), "WIDTH": draw.choice([64, 256, 512]),
               "RANKS": ranks, "HAS_RESIDUAL": residual, "HAS_NORM": norm, "X_DTYPE": draw.choice([BF16, BF16, F32]),
               "OUT_DTYPE": draw.choice([BF16, F32]), "MISSING": -1}


def one_shots():
    draw = random.Random(6)
    for ranks, (residual, norm) in itertools.product((2, 3, 4), ((1, 1), (0, 0), (1, 0), (0, 1))):
        rows = draw.choice([1, 3])
        yield {"SOURCE": "all_reduce", "TWO_SHOT": 0, "THREADS": draw.choice([32, 64, 128]), "CLUSTER": 1, "ROWS": rows,
               "VALID": draw.choice([rows, max(1, rows - 1)]), "WIDTH": draw.choice([64, 256, 512]), "RANKS": ranks,
               "HAS_RESIDUAL": residual, "HAS_NORM": norm, "X_DTYPE": draw.choice([BF16, F32]),
               "OUT_DTYPE": draw.choice([BF16, F32]), "MISSING": -1}


def missing_ranks():
    common = {"SOURCE": "all_reduce", "THREADS": 32, "WIDTH": 256, "X_DTYPE": BF16, "OUT_DTYPE": BF16}
    for ranks, missing in ((2, 0), (3, 1), (4, 3)):
        yield {**common, "TWO_SHOT": 0, "CLUSTER": 1, "ROWS": 2, "VALID": 2, "RANKS": ranks, "HAS_RESIDUAL": 1, "HAS_NORM": 1,
               "MISSING": missing}
        for halves, shared in ((1, 1), (2, 2)) if ranks % 2 else ((1, 2), (2, 1)):  # each case waits for seconds
            yield {**common, "TWO_SHOT": 1, "BLOCKS": 2, "HALVES": halves, "ROWS": 9, "VALID": 9, "RANKS": ranks,
                   "HAS_RESIDUAL": shared, "HAS_NORM": shared, "MISSING": missing}


def page_bytes(case, layers):
    """As op_kv_layout counts a layer's block of a page."""
    rows = case["KV_HEADS"] * case["PAGE_TOKENS"]
    planes = 1 if case.get("VALUE_DIM") else 2
    if case["KV_DTYPE"] < 16:
        return layers * planes * rows * case["HEAD_DIM"] * (4 if case["KV_DTYPE"] == F32 else 2)
    return layers * planes * (-(-rows * case["HEAD_DIM"] // 256) * 256 + 4 * rows)


def rotations():
    """Parts of a head, none (0: all of it), norms of heads and of whole widths."""
    shapes = [(24, 12, 0, 0), (24, 16, 1, 0), (128, 96, 1, 0), (128, 0, 0, 0), (64, 0, 1, 0), (6, 4, 0, 0), (32, 24, 1, 1),
              (128, 0, 1, 1), (20, 6, 1, 1), (254, 2, 1, 1)]
    for kv_dtype, (head_dim, rotary, norm, scope) in itertools.product([BF16] + CODED_KV, shapes):
        case = {"SOURCE": "rope_append", "VALID": 6, "ROWS": 7, "HEADS": 6, "KV_HEADS": 2, "HEAD_DIM": head_dim, "PAGE_TOKENS": 4,
                "PAGES_PER_SLOT": 3, "SLOT_COUNT": 3, "KV_DTYPE": kv_dtype, "X_DTYPE": BF16, "HAS_NORM": norm, "ROTARY_DIM": rotary,
                "NORM_SCOPE": scope}
        case["PAGE_BYTES"] = page_bytes(case, 1) + 64
        yield case
        if kv_dtype == E4M3_KV:
            yield {**case, "HAS_KV_SCALES": 1}


def rotations_with_means():
    """Norms of whole widths whose mean squares are given."""
    for i, (kv_dtype, (head_dim, rotary)) in enumerate(itertools.product([BF16] + CODED_KV, [(32, 24), (128, 0), (20, 6), (254, 2), (512, 0)])):
        if kv_dtype != BF16 and head_dim % 16:
            continue  # no codes of such heads
        case = {"SOURCE": "rope_append", "VALID": 5, "ROWS": 6, "HEADS": 4, "KV_HEADS": 1 + i % 2, "HEAD_DIM": head_dim, "PAGE_TOKENS": 4,
                "PAGES_PER_SLOT": 3, "SLOT_COUNT": 3, "KV_DTYPE": kv_dtype, "X_DTYPE": [BF16, F16][i % 2], "HAS_NORM": 1, "ROTARY_DIM": rotary,
                "NORM_SCOPE": 1, "NORM_DTYPE": [BF16, F16][i // 2 % 2], "HAS_MEANS": 1}
        yield {**case, "PAGE_BYTES": page_bytes(case, 1) + 64}


def mean_squares():
    """Vectors of 8, 4 and 2 elements, fewer elements than threads and more; a KV head, as many as heads, none."""
    for i, (heads, kv_heads, head_dim) in enumerate([(1, 1, 2), (3, 1, 20), (6, 2, 254), (5, 5, 128), (20, 4, 128), (4, 1, 512), (6, 0, 64)]):
        yield {"SOURCE": "mean_squares", "VALID": 2, "ROWS": 3, "HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "RANKS": 2 + i,
               "X_DTYPE": [BF16, F16][i % 2]}


def group_norms():
    """Vectors of 8, 4 and 1 columns, one group and several, a mean that is given."""
    for i, (groups, width, means) in enumerate([(2, 2048, 0), (3, 36, 0), (2, 14, 0), (8, 512, 0), (1, 2056, 1), (1, 7, 1), (1, 4100, 0)]):
        yield {"SOURCE": "group_norm", "VALID": 2, "ROWS": 3, "GROUPS": groups, "WIDTH": width, "EPS_BITS": 0x3727C5AC, "HAS_MEANS": means,
               "WEIGHT_DTYPE": [BF16, F32, F16][i % 3], "X_DTYPE": [BF16, F16, F32][i % 3]}


def normalised_rotations():
    """Norms of v, of heads that have weights of their own, without their means, or with weights after the rotation; the largest heads."""
    shapes = [(512, 0, 1, 0, 1, 0), (512, 128, 0, 0, 1, 0), (64, 0, 1, 2, 0, 1), (80, 20, 1, 2, 1, 1), (24, 12, 1, 0, 1, 1), (254, 2, 1, 2, 0, 0),
              (128, 0, 1, 3, 0, 0), (48, 24, 1, 3, 1, 0)]
    for kv_dtype, (head_dim, rotary, norm, scope, norm_v, centred) in itertools.product([BF16] + CODED_KV, shapes):
        if kv_dtype != BF16 and head_dim % 16:
            continue  # no codes of such heads
        case = {"SOURCE": "rope_append", "VALID": 5, "ROWS": 6, "HEADS": 4, "KV_HEADS": 2, "HEAD_DIM": head_dim, "PAGE_TOKENS": 4,
                "PAGES_PER_SLOT": 3, "SLOT_COUNT": 3, "KV_DTYPE": kv_dtype, "X_DTYPE": BF16, "HAS_NORM": norm, "ROTARY_DIM": rotary,
                "NORM_SCOPE": scope, "NORM_V": norm_v, "CENTRED": centred}
        yield {**case, "PAGE_BYTES": page_bytes(case, 1) + 64}


def queries():
    """rope_query: heads of every size, in place and not."""
    for i, (head_dim, rotary, norm, dtype) in enumerate([(512, 512, 1, BF16), (256, 256, 1, F16), (128, 32, 0, BF16), (20, 6, 1, F16), (254, 2, 1, BF16)]):
        yield {"SOURCE": "rope_query", "VALID": 5, "ROWS": 7, "HEADS": 1 + i, "HEAD_DIM": head_dim, "ROTARY_DIM": rotary, "HAS_NORM": norm,
               "X_DTYPE": dtype, "IN_PLACE": i % 2}


def products():
    """multiply: by a value and by a weight, vectors of 8, 4 and 1 elements, each dtype."""
    for i, (width, dtypes) in enumerate([(256, (BF16, F32, BF16)), (36, (F16, F32, F16)), (13, (BF16, BF16, F32)), (2816, (F32, F32, F32))]):
        for by_weight in (0, 1):
            yield {"SOURCE": "multiply", "VALID": 3, "ROWS": 4, "WIDTH": width, "HAS_BY": 1 - by_weight, "HAS_WEIGHT": by_weight,
                   "WEIGHT_DTYPE": [BF16, F32, F16][i % 3], **dict(zip(("X_DTYPE", "BY_DTYPE", "OUT_DTYPE"), dtypes))}


def learned_activations():
    """xielu: vectors of 8, 4 and 1 elements, each dtype, in place and not."""
    for i, (width, dtype) in enumerate([(256, BF16), (36, F16), (13, BF16), (2816, F32)]):
        yield {"SOURCE": "xielu", "VALID": 3, "ROWS": 4, "WIDTH": width, "NUMBERS_DTYPE": [BF16, F32, F16][i % 3], "X_DTYPE": dtype, "IN_PLACE": i % 2}


def drafts():
    """draft: rows shorter and longer than a block has threads; with feedback and without."""
    for vocab in (1, 33, 1024, 5003):
        for feedback in (0, 1):
            yield {"SOURCE": "draft", "VALID": 4, "ROWS": 5, "COUNT_INDEX": 1, "VOCAB": vocab, "IN_ROWS": 5, "FEEDBACK": feedback}


def sample(vocab, cluster, threads=128, **changes):
    return {"SOURCE": "sample", "VALID": 3, "ROWS": 4, "COUNT_INDEX": 1, "VOCAB": vocab, "SLOT_COUNT": 5, "IN_ROWS": 4, "FEEDBACK": 1,
            "HAS_OPTIONS": 1, "VERIFIES": 0, "CLUSTER": cluster, "THREADS": threads, **changes}


def samples():
    """One load of each thread and several, vectors and single logits, blocks alone and clusters; keys that are kept and logits that
    every pass reads again; with options and without; several rows of a slot."""
    yield sample(517, 1)
    yield sample(1032, 2)
    yield sample(1031, 2, FEEDBACK=0)
    yield sample(2600, 4, THREADS=160)
    yield sample(3001, 1, THREADS=256)
    yield sample(1032, 2, HAS_OPTIONS=0)
    yield sample(1032, 2, FEEDBACK=0, VERIFIES=1)
    yield sample(517, 1, FEEDBACK=0, VERIFIES=1, ROWS=6, IN_ROWS=6, VALID=5, SLOT_COUNT=3)
    yield sample(12304, 1, THREADS=512, VALID=2, ROWS=2)
    yield sample(12301, 1, THREADS=512, VALID=1, ROWS=1)


def norms():
    """rms_norm: rows that stay in registers and longer ones, vectors and single elements; each option alone and with others."""
    options = [{}, {"HAS_ADD_TO": 1, "HAS_COPY": 1, "OUT_DTYPE": F32}, {"HAS_ADD_TO": 1, "HAS_FACTOR": 1, "OUT_DTYPE": F32},
               {"HAS_ADD_TO": 1, "HAS_FACTOR": 1, "HAS_COPY": 1, "HAS_BIAS": 1, "CENTRED": 1, "OUT_DTYPE": F32}, {"HAS_BIAS": 1, "CENTRED": 1}, {"HAS_RESIDUAL": 1, "PARTS": 3},
               {"HAS_RESIDUAL": 1, "PARTS": 1, "CENTRED": 1, "HAS_BIAS": 1, "OUT_DTYPE": F32}]
    for i, (hidden, option) in enumerate(itertools.product((96, 333, 4400), options)):
        yield {"SOURCE": "rms_norm", "VALID": 2, "ROWS": 3, "HIDDEN": hidden, "THREADS": (160 if "PARTS" in option else 32) if hidden > 4000 else 64, "OUT_DTYPE": BF16,
               "WEIGHT_DTYPE": [BF16, F32, F16][i % 3], "BIAS_DTYPE": [F32, BF16][i % 2], "FACTOR_DTYPE": [BF16, F16, F32][i % 3],
               "COPY_DTYPE": [BF16, F16][i % 2], "HAS_ADD_TO": 0, "HAS_COPY": 0, "HAS_BIAS": 0, "HAS_FACTOR": 0, "HAS_RESIDUAL": 0, "PARTS": 1, **option}


def quantisations():
    """quantise, and rms_norm that makes codes: e4m3 and int8, one group of a row, threads with several groups and without any."""
    norm = {"WEIGHT_DTYPE": F32, "HAS_ADD_TO": 0, "HAS_COPY": 0, "COPY_DTYPE": BF16, "HAS_BIAS": 0, "BIAS_DTYPE": F32, "HAS_FACTOR": 0, "FACTOR_DTYPE": F32, "HAS_RESIDUAL": 0, "PARTS": 1}
    for i, (codes, (width, threads)) in enumerate(itertools.product((E4M3, I8), ((16, 32), (592, 64), (2064, 96), (1024, 32)))):
        case = {"SOURCE": "quantise", "VALID": 6, "ROWS": 7, "WIDTH": width, "THREADS": threads, "OUT_DTYPE": codes}
        yield {**case, "X_DTYPE": [BF16, F16][i % 2], "BY_NORM": 0}
        yield {**case, "X_DTYPE": F32, "BY_NORM": 1, "HIDDEN": width, **norm, "HAS_RESIDUAL": i % 2}


def latent_rows():
    """latent_append: widths of both parts, even ones that are no multiple of anything; rows of their own and columns of wider ones."""
    for kv_dtype, (head_dim, value_dim, heads) in itertools.product([BF16] + CODED_KV, [(576, 512, 2), (48, 32, 5), (80, 78, 1), (96, 20, 3)]):
        case = {"SOURCE": "latent_append", "VALID": 6, "ROWS": 7, "HEADS": heads, "KV_HEADS": 1, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim,
                "PAGE_TOKENS": 16, "PAGES_PER_SLOT": 3, "SLOT_COUNT": 3, "KV_DTYPE": kv_dtype, "X_DTYPE": [BF16, F16][heads % 2],
                "Q_PITCH": 0, "Q_FIRST": 0, "KV_PITCH": 0}
        case["PAGE_BYTES"] = page_bytes(case, 1) + 64
        yield case
        yield {**case, "Q_FIRST": 2 * heads + 1, "Q_PITCH": 2 * heads + 9 + heads * (head_dim - value_dim), "KV_PITCH": head_dim + 6}


SCALE_BITS = 0x3E800000  # 0.25
PAGED = {"COUNT_INDEX": 1, "KV_HEADS": 2, "X_DTYPE": BF16, "KV_DTYPE": BF16, "WINDOW": 0, "SCALE_BITS": SCALE_BITS, "COPIES_LATE": 0,
         "CAP_BITS": 0, "HAS_SINKS": 0, "SINKS_DTYPE": F32}
CAP = 0x40000000  # 2: scores of this test go beyond it


def listed(values):
    return ", ".join(map(str, values))


def decode(positions, group, **changes):
    """A step of rope_attention for sequences at these positions; one row more is not valid."""
    case = {**PAGED, "SOURCE": "rope_attention", "POSITIONS": listed(positions), "ROWS": len(positions) + 1,
            "SLOT_COUNT": (len(positions) + 1) // 2 * 2 + 1, "PAGE_TOKENS": 32, "HAS_NORM": 1, "NORM_DTYPE": BF16, "ROTARY_DIM": 0,
            "SPLITS": 1, "WARPS": 2, "TILE_TOKENS": 16, "HEAD_TILES": 1, "STAGES": 3, "BULK": 0, "ALONE_TILES": 1, **changes}
    return {**case, "HEADS": group * case["KV_HEADS"], "PAGES_PER_SLOT": (max(positions) + 1) // case["PAGE_TOKENS"] + 1,
            "PAGE_BYTES": page_bytes(case, 2)}


def decodes():
    """Each tunable, alone and with others; contexts of one token, at the ends of tiles and pages, of one split and of all."""
    yield decode([0, 15, 31, 100], 4, HEAD_DIM=64, COPIES_LATE=1)
    yield decode([0, 62, 63, 140], 1, HEAD_DIM=128, BULK=1, SPLITS=3, COPIES_LATE=1, HAS_NORM=0, PAGE_TOKENS=64, X_DTYPE=F16,
                 KV_DTYPE=F16)
    yield decode([40, 5], 7, HEAD_DIM=80, WARPS=3, STAGES=4, BULK=1, ROTARY_DIM=32, X_DTYPE=F16, KV_DTYPE=BF16, NORM_DTYPE=F16)
    yield decode([97, 16], 16, HEAD_DIM=64, HEAD_TILES=2, SPLITS=4, WARPS=1, STAGES=2, COPIES_LATE=1, NORM_DTYPE=F32)
    yield decode([33, 120], 16, HEAD_DIM=64, HEAD_TILES=1, SPLITS=2, WARPS=4, TILE_TOKENS=32, STAGES=5, BULK=1, KV_DTYPE=F16)
    yield decode([70], 20, HEAD_DIM=64, KV_HEADS=1, HEAD_TILES=1, SPLITS=5, WARPS=1, BULK=1, STAGES=4)
    yield decode([50], 28, HEAD_DIM=64, KV_HEADS=1, HEAD_TILES=4, SPLITS=2, WARPS=2, TILE_TOKENS=32, STAGES=2, COPIES_LATE=1)
    yield decode([30, 90], 2, HEAD_DIM=256, SPLITS=2, WARPS=2, STAGES=3, BULK=1, COPIES_LATE=1, X_DTYPE=F16, KV_DTYPE=F16,
                 NORM_DTYPE=F32)
    yield decode([0, 47, 64], 3, HEAD_DIM=20, SPLITS=2, WARPS=2, COPIES_LATE=1)
    yield decode([17, 80], 2, HEAD_DIM=18, ROTARY_DIM=6, STAGES=2, SPLITS=3, WARPS=1, HAS_NORM=0, X_DTYPE=F16, KV_DTYPE=F16)
    yield decode([3, 35, 149], 4, HEAD_DIM=128, WINDOW=36, SPLITS=2, BULK=1, WARPS=1, TILE_TOKENS=32, STAGES=3)
    yield decode([31, 100, 148], 4, HEAD_DIM=64, WINDOW=17, SPLITS=2, WARPS=2, TILE_TOKENS=16, STAGES=6, PAGE_TOKENS=16)
    yield decode([15, 200], 1, HEAD_DIM=64, KV_HEADS=1, SPLITS=8, WARPS=4, ALONE_TILES=2, BULK=1, COPIES_LATE=1, PAGE_TOKENS=16)
    yield decode([3, 35, 149], 4, HEAD_DIM=128, WINDOW=36, SPLITS=2, BULK=1, WARPS=1, TILE_TOKENS=32, RING_PAGES=3)
    yield decode([0, 15, 31, 100], 4, HEAD_DIM=64, CAP_BITS=CAP, HAS_SINKS=1)
    yield decode([97, 16], 16, HEAD_DIM=64, HEAD_TILES=2, SPLITS=4, WARPS=1, HAS_SINKS=1)
    yield decode([3, 35, 149], 4, HEAD_DIM=128, WINDOW=36, SPLITS=2, WARPS=1, TILE_TOKENS=32, CAP_BITS=CAP)
    for i, encoding in enumerate(CODED_KV):
        yield decode([63, 120], 4, HEAD_DIM=64, KV_DTYPE=encoding, SPLITS=2, CAP_BITS=CAP, HAS_SINKS=1)
        for late in (0, 1):
            yield decode([0, 31, 100], 4, HEAD_DIM=128, KV_DTYPE=encoding, BULK=late, SPLITS=3, COPIES_LATE=late)
            yield decode([15, 70], 7, HEAD_DIM=80, KV_DTYPE=encoding, BULK=1 - late, WARPS=1, STAGES=2, COPIES_LATE=1,
                         X_DTYPE=[F16, BF16][i % 2], ROTARY_DIM=40)
            yield decode([63, 120], 16, HEAD_DIM=64, KV_DTYPE=encoding, BULK=late, WINDOW=40, HEAD_TILES=2, TILE_TOKENS=32, STAGES=4,
                         SPLITS=2, COPIES_LATE=late)
        yield decode([0, 47, 64], 3, HEAD_DIM=48, KV_DTYPE=encoding, SPLITS=2, WARPS=2)
        yield decode([90], 2, HEAD_DIM=256, KV_DTYPE=encoding, SPLITS=2, WARPS=3, X_DTYPE=F16, COPIES_LATE=1)
    for late in (0, 1):
        yield decode([15, 70], 7, HEAD_DIM=[80, 128][late], KV_DTYPE=E4M3_KV, BULK=late, WARPS=2, SPLITS=2, STAGES=2, COPIES_LATE=late,
                     X_DTYPE=[F16, BF16][late], HAS_NORM=late, HAS_SINKS=1 - late, HAS_KV_SCALES=1)


def other_decodes():
    """Norms of v, of heads that have weights of their own, without their means; norms with weights after the rotation, and of whole widths
    whose mean squares are given; k and v that are in the pages; the largest heads."""
    for i, (encoding, late) in enumerate([(BF16, 0), (BF16, 1)] + [(encoding, late) for encoding in CODED_KV for late in (0, 1)]):
        yield decode([0, 47, 64], 3, HEAD_DIM=48, KV_DTYPE=encoding, NORM_V=1, SPLITS=2, COPIES_LATE=late, BULK=late)
        yield decode([15, 70], 5, HEAD_DIM=80, KV_DTYPE=encoding, NORM_SCOPE=2, CENTRED=1, ROTARY_DIM=20, WARPS=3, BULK=1 - late,
                     NORM_DTYPE=[BF16, F32][late])
        yield decode([9, 70], 4, HEAD_DIM=[64, 256][late], KV_DTYPE=encoding, NORM_SCOPE=3, ROTARY_DIM=[0, 64][late], WARPS=2, BULK=1 - late,
                     NORM_DTYPE=[BF16, F32][late])
        yield decode([7, 64], 2 + i, HEAD_DIM=[128, 48][late], KV_DTYPE=encoding, NORM_SCOPE=1, HAS_MEANS=1, SPLITS=1 + late, BULK=late,
                     NORM_DTYPE=[F32, BF16][late])
        yield decode([0, 31, 100], 4, HEAD_DIM=128, KV_DTYPE=encoding, APPENDED=1, SPLITS=3, COPIES_LATE=late, BULK=late)
        yield decode([63, 120], 16, HEAD_DIM=64, KV_DTYPE=encoding, APPENDED=1, WINDOW=40, HEAD_TILES=1 + i % 2, SPLITS=2, WARPS=1, HAS_NORM=late)
        yield decode([63, 80], 8, HEAD_DIM=512, KV_DTYPE=encoding, KV_HEADS=1, APPENDED=late, NORM_V=1 - late, SPLITS=2, BULK=late, COPIES_LATE=1)
    yield decode([40, 5], 2, HEAD_DIM=18, NORM_V=1, CENTRED=1, NORM_SCOPE=2, STAGES=2, SPLITS=3, WARPS=1, X_DTYPE=F16, KV_DTYPE=F16)
    yield decode([17, 80], 2, HEAD_DIM=18, ROTARY_DIM=6, APPENDED=1, SPLITS=3, WARPS=1)


def attention(kernel, rows, group, **changes):
    """`rows`: (slot, position) of each. Two rows more are not valid."""
    slots, positions = zip(*rows)
    case = {**PAGED, "SOURCE": "attention", "BODY": kernel, "SLOTS": listed(slots), "POSITIONS": listed(positions),
            "ROWS": len(rows) + 2, "SLOT_COUNT": max(slots) + 1, "PAGE_TOKENS": 32, "SPLIT": 1, "KEY_TILE": 64, "IN_PLACE": 0,
            **changes}
    return {**case, "HEADS": group * case["KV_HEADS"], "PAGES_PER_SLOT": max(positions) // case["PAGE_TOKENS"] + 1,
            "PAGE_BYTES": page_bytes(case, 2)}


def run_of(slot, first, count):
    return [(slot, first + i) for i in range(count)]


def scattered(rows, group, **changes):
    case = attention("attention_generic_body", rows, group, **{"WARPS_Q": 1, "SCATTERED": 0, **changes})
    slots = min(case["SLOT_COUNT"], case["ROWS"]) if case["SCATTERED"] else 1
    return {**case, "BLOCKS_IN_ALL": (case["ROWS"] * group - slots) // (16 * case["WARPS_Q"]) + slots}


def scattereds():
    """Rows of one sequence and of several, in any order."""
    mixed = run_of(2, 30, 9) + [(0, 5)] + run_of(1, 63, 4) + [(0, 0), (2, 77)]
    yield scattered(mixed, 2, HEAD_DIM=64, WARPS_Q=2, KEY_TILE=32, COPIES_LATE=1)
    yield scattered(mixed, 7, HEAD_DIM=80, SPLIT=2, KEY_TILE=32, KV_HEADS=1)
    yield scattered(mixed, 4, HEAD_DIM=128, SPLIT=4, X_DTYPE=F16, KV_DTYPE=F16, COPIES_LATE=1)
    yield scattered(run_of(1, 95, 20), 1, HEAD_DIM=64, WARPS_Q=1, KEY_TILE=16, WINDOW=30, PAGE_TOKENS=16)
    yield scattered(mixed, 3, HEAD_DIM=20, SPLIT=2, KEY_TILE=32, WINDOW=20, IN_PLACE=1)
    yield scattered(run_of(1, 95, 20), 1, HEAD_DIM=64, KEY_TILE=16, WINDOW=30, PAGE_TOKENS=16, RING_PAGES=4)
    yield scattered(run_of(0, 0, 7), 2, HEAD_DIM=256, WARPS_Q=1, SPLIT=1, KEY_TILE=16, KV_HEADS=1, COPIES_LATE=1)
    yield scattered(mixed, 1, HEAD_DIM=18, X_DTYPE=F16, KV_DTYPE=F16, WARPS_Q=4, PAGE_TOKENS=48)
    yield scattered(mixed, 2, HEAD_DIM=36, X_DTYPE=BF16, KV_DTYPE=F16, SPLIT=2, KEY_TILE=32)
    yield scattered(mixed, 2, HEAD_DIM=64, X_DTYPE=F32, KV_DTYPE=F32, KEY_TILE=16, COPIES_LATE=1)
    yield scattered(mixed, 4, HEAD_DIM=128, SPLIT=4, CAP_BITS=CAP, HAS_SINKS=1)
    yield scattered(run_of(1, 95, 20), 1, HEAD_DIM=64, KEY_TILE=16, WINDOW=30, PAGE_TOKENS=16, HAS_SINKS=1)
    for encoding in CODED_KV:
        yield scattered(mixed, 4, HEAD_DIM=128, KV_DTYPE=encoding, WARPS_Q=2, KEY_TILE=32, COPIES_LATE=1)
        yield scattered(mixed, 7, HEAD_DIM=80, KV_DTYPE=encoding, X_DTYPE=F16, SPLIT=2, KEY_TILE=32, WINDOW=20, PAGE_TOKENS=16)
        yield scattered(mixed, 3, HEAD_DIM=48, KV_DTYPE=encoding, SPLIT=4)
        yield scattered(run_of(1, 95, 20), 1, HEAD_DIM=64, KV_DTYPE=encoding, X_DTYPE=F32, KEY_TILE=16)


def tiles_of_slots():
    """A block has rows of one slot: decode rows beside chunks of prompts, tiles that are full and others, more rows than a warp has lanes."""
    mixed = [(3, 70), (0, 5), (4, 0)] + run_of(2, 30, 37) + run_of(1, 63, 9)
    yield scattered(mixed, 2, HEAD_DIM=64, WARPS_Q=2, KEY_TILE=32, SCATTERED=1, COPIES_LATE=1)
    yield scattered(mixed, 1, HEAD_DIM=80, SPLIT=2, KEY_TILE=32, KV_HEADS=1, SCATTERED=1, SLOT_COUNT=9)
    yield scattered(mixed, 7, HEAD_DIM=64, SPLIT=4, X_DTYPE=F16, KV_DTYPE=F16, WINDOW=20, PAGE_TOKENS=16, SCATTERED=1)
    yield scattered(mixed, 3, HEAD_DIM=20, KEY_TILE=16, IN_PLACE=1, SCATTERED=1, CAP_BITS=CAP, HAS_SINKS=1)
    yield scattered([(s, 9 * s) for s in range(6)], 4, HEAD_DIM=32, KEY_TILE=16, SCATTERED=1)
    yield scattered(run_of(0, 20, 33), 16, HEAD_DIM=48, KV_DTYPE=E4M3_KV, KV_HEADS=1, WARPS_Q=4, SCATTERED=1)


def wide_scattereds():
    """Heads whose columns of v two blocks share: even parts and others, each way of reading pages."""
    mixed = run_of(2, 30, 5) + [(0, 5)] + run_of(1, 63, 2) + [(0, 0), (2, 77)]
    yield scattered(mixed, 8, HEAD_DIM=512, KV_HEADS=1, WARPS_Q=2, KEY_TILE=32, COPIES_LATE=1)
    yield scattered(mixed, 2, HEAD_DIM=512, SPLIT=4, X_DTYPE=F16, KV_DTYPE=F16)
    yield scattered(mixed, 1, HEAD_DIM=272, SPLIT=2, KEY_TILE=32, COPIES_LATE=1)
    yield scattered(mixed, 2, HEAD_DIM=330, KV_HEADS=1, KEY_TILE=16, WINDOW=30)
    yield scattered(mixed, 1, HEAD_DIM=320, KV_HEADS=1, X_DTYPE=F32, KV_DTYPE=F32, KEY_TILE=16, CAP_BITS=CAP, HAS_SINKS=1)
    yield scattered(mixed, 1, HEAD_DIM=264, KV_HEADS=1, X_DTYPE=BF16, KV_DTYPE=F16, KEY_TILE=16)
    for encoding in CODED_KV:
        yield scattered(mixed, 4, HEAD_DIM=512, KV_HEADS=1, KV_DTYPE=encoding, KEY_TILE=16)
        yield scattered(mixed, 2, HEAD_DIM=288, KV_HEADS=1, KV_DTYPE=encoding, SPLIT=2, KEY_TILE=32)


def latent(rows, heads, **changes):
    case = attention("attention_latent_body", rows, heads, **{"KV_HEADS": 1, "WARPS_Q": 1, "WARPS_V": 4, "GROUPS": 1, **changes})
    return {**case, "BLOCKS_IN_ALL": -(-case["ROWS"] * heads // (16 * case["WARPS_Q"])) * case["GROUPS"] * case["SPLIT"]}


def latents():
    """v as a part of k: rows of one sequence and of several, each tunable, columns that warps do not share evenly."""
    mixed = run_of(2, 30, 9) + [(0, 5)] + run_of(1, 63, 4) + [(0, 0), (2, 77)]
    yield latent(mixed, 2, HEAD_DIM=48, VALUE_DIM=32, COPIES_LATE=1)
    yield latent(mixed, 3, HEAD_DIM=56, VALUE_DIM=40, WARPS_Q=2, KEY_TILE=32, X_DTYPE=F16, KV_DTYPE=F16)
    yield latent([(0, 0), (1, 70), (2, 130)], 16, HEAD_DIM=576, VALUE_DIM=512, WARPS_V=8, COPIES_LATE=1)
    yield latent(run_of(1, 0, 40), 5, HEAD_DIM=144, VALUE_DIM=128, WARPS_Q=4, KEY_TILE=32, COPIES_LATE=1)
    yield latent([(0, 0), (1, 70), (2, 330), (3, 64)], 16, HEAD_DIM=48, VALUE_DIM=32, GROUPS=3, COPIES_LATE=1)
    yield latent([(0, 0), (1, 70), (2, 330), (3, 64)], 16, HEAD_DIM=80, VALUE_DIM=64, SPLIT=2, GROUPS=2, KEY_TILE=32)
    yield latent([(0, 5), (2, 330)], 5, HEAD_DIM=48, VALUE_DIM=32, SPLIT=4, WARPS_V=2, COPIES_LATE=1)
    yield latent(mixed, 3, HEAD_DIM=56, VALUE_DIM=40, WARPS_Q=2, KEY_TILE=32, GROUPS=5, X_DTYPE=F16, KV_DTYPE=F16)
    yield latent(run_of(1, 95, 20), 1, HEAD_DIM=8, VALUE_DIM=8, WARPS_V=2, KEY_TILE=16, PAGE_TOKENS=48)
    yield latent(mixed, 3, HEAD_DIM=56, VALUE_DIM=40, WARPS_V=4, KEY_TILE=16, WARPS_Q=2, GROUPS=2, COPIES_LATE=1)
    yield latent(mixed, 20, HEAD_DIM=72, VALUE_DIM=72, WARPS_V=2, WARPS_Q=4, KEY_TILE=64, SCALE_BITS=0x3F000000)
    for encoding in CODED_KV:
        yield latent(mixed, 4, HEAD_DIM=96, VALUE_DIM=64, KV_DTYPE=encoding, COPIES_LATE=1)
        yield latent(mixed, 7, HEAD_DIM=80, VALUE_DIM=80, KV_DTYPE=encoding, X_DTYPE=F16, WARPS_V=2, KEY_TILE=16, PAGE_TOKENS=16)


def short_latents():
    """Blocks with one row: contexts that a tile of each block of a cluster holds, up to the last token, and longer ones; tokens that other rows
    of the step write; columns and warps of every tunable."""
    rows = [(0, 0), (1, 31), (2, 63), (3, 64)] + run_of(4, 29, 4) + [(5, 200)] + run_of(6, 0, 2)
    shape = {"HEAD_DIM": 144, "VALUE_DIM": 128, "SPLIT": 2, "KEY_TILE": 32}
    for late in (0, 1):
        yield latent(rows, 16, **shape, COPIES_LATE=late)
        yield latent(rows, 32, **shape, WARPS_Q=2, GROUPS=2 + late, X_DTYPE=F16, KV_DTYPE=F16, COPIES_LATE=late)
        yield latent([(0, 127), (1, 128), (2, 77)], 16, HEAD_DIM=160, VALUE_DIM=128, SPLIT=4 >> late, KEY_TILE=32 << late, WARPS_V=2, GROUPS=11, COPIES_LATE=late)
    yield latent([(0, 199), (1, 255), (2, 256)], 16, HEAD_DIM=576, VALUE_DIM=512, SPLIT=8, KEY_TILE=32, COPIES_LATE=1)
    yield latent([(1, 300)], 16, HEAD_DIM=576, VALUE_DIM=512, SPLIT=8, WARPS_V=8)
    for positions in ((199, 255), (256, 700)):  # two warps share the columns of 8 tokens
        yield latent(list(enumerate(positions)), 16, HEAD_DIM=576, VALUE_DIM=512, SPLIT=8, WARPS_V=8, KEY_TILE=32, GROUPS=2, COPIES_LATE=1)
    yield latent(rows, 32, HEAD_DIM=144, VALUE_DIM=128, SPLIT=2, KEY_TILE=32, WARPS_V=8, WARPS_Q=2, GROUPS=2)  # 9 products: not alike
    yield latent([(0, 70), (1, 127)], 16, HEAD_DIM=136, VALUE_DIM=64, SPLIT=2, WARPS_V=4)  # padding within the slab
    yield latent(rows, 16, HEAD_DIM=128, VALUE_DIM=128, SPLIT=2, KEY_TILE=32)  # no room for a slab
    yield latent(run_of(1, 0, 270), 16, HEAD_DIM=24, VALUE_DIM=16, KEY_TILE=32, WARPS_V=2, PAGE_TOKENS=48)  # too many rows
    for i, encoding in enumerate(CODED_KV):
        yield latent(rows, 16, **shape, KV_DTYPE=encoding, X_DTYPE=[BF16, F16][i], COPIES_LATE=1)
        yield latent([(0, 70), (1, 130)], 16, HEAD_DIM=160, VALUE_DIM=128, SPLIT=4, KEY_TILE=32, WARPS_V=2, KV_DTYPE=encoding, GROUPS=2)


def chunk(first, count, group, **changes):
    """Rows of a prompt, by persistent blocks."""
    return tiles_of_rows(run_of(1, first, count), group, SCATTERED=0, **changes)


def tiles_of_rows(rows, group, **changes):
    own = {"TILE_Q": 64, "STAGES": 2, "PING_PONG": 0, "BLOCKS_PER_SM": 1, "BLOCKS_IN_ALL": 1, "SCATTERED": 1}
    return attention("attention_prefill_body", rows, group, **{**own, **changes})


def chunks():
    """Each tunable but SPLIT; one tile and several, of a short context and of a long one."""
    yield chunk(0, 40, 1, HEAD_DIM=64, PAGE_TOKENS=32, BLOCKS_IN_ALL=2)
    yield chunk(37, 130, 2, HEAD_DIM=64, TILE_Q=128, KEY_TILE=128, PING_PONG=1, PAGE_TOKENS=256, KV_HEADS=1, COPIES_LATE=1)
    yield chunk(100, 70, 1, HEAD_DIM=128, KEY_TILE=128, STAGES=3, PAGE_TOKENS=64, X_DTYPE=F16, KV_DTYPE=F16, KV_HEADS=1,
                COPIES_LATE=1)
    yield chunk(64, 150, 2, HEAD_DIM=80, TILE_Q=128, KEY_TILE=64, PING_PONG=0, PAGE_TOKENS=16, KV_HEADS=1, BLOCKS_IN_ALL=3)
    yield chunk(201, 66, 3, HEAD_DIM=32, WINDOW=150, PAGE_TOKENS=16, KEY_TILE=64, STAGES=4, KV_HEADS=1, BLOCKS_IN_ALL=2, COPIES_LATE=1)
    yield chunk(150, 130, 1, HEAD_DIM=64, TILE_Q=128, KEY_TILE=128, PING_PONG=1, WINDOW=70, PAGE_TOKENS=64, IN_PLACE=1,
                X_DTYPE=F16, KV_DTYPE=F16)
    yield chunk(63, 20, 1, HEAD_DIM=256, KEY_TILE=64, PAGE_TOKENS=128, KV_HEADS=1, COPIES_LATE=1)
    yield chunk(31, 200, 1, HEAD_DIM=16, TILE_Q=192, KEY_TILE=64, PING_PONG=1, PAGE_TOKENS=32, STAGES=2, COPIES_LATE=1)
    yield chunk(77, 1, 2, HEAD_DIM=96, KEY_TILE=64, PAGE_TOKENS=64)
    yield chunk(37, 130, 2, HEAD_DIM=64, TILE_Q=128, KEY_TILE=128, PING_PONG=1, PAGE_TOKENS=256, KV_HEADS=1, CAP_BITS=CAP, HAS_SINKS=1)
    yield chunk(201, 66, 3, HEAD_DIM=32, WINDOW=150, PAGE_TOKENS=16, KV_HEADS=1, HAS_SINKS=1)
    # The first tile begins in pages before the window, which hold tokens of the chunk again.
    yield chunk(208, 66, 3, HEAD_DIM=32, WINDOW=50, PAGE_TOKENS=16, KV_HEADS=1, RING_PAGES=9, COPIES_LATE=1)
    yield chunk(112, 130, 1, HEAD_DIM=64, TILE_Q=128, KEY_TILE=128, PING_PONG=1, WINDOW=50, PAGE_TOKENS=16, RING_PAGES=13)
    for encoding in CODED_KV:
        yield chunk(37, 70, 2, HEAD_DIM=128, KV_DTYPE=encoding, KEY_TILE=64, PAGE_TOKENS=32, KV_HEADS=1, BLOCKS_IN_ALL=2, COPIES_LATE=1)
        yield chunk(100, 130, 1, HEAD_DIM=64, KV_DTYPE=encoding, TILE_Q=128, PING_PONG=1, WINDOW=50, X_DTYPE=F16, PAGE_TOKENS=128)
        yield chunk(0, 40, 1, HEAD_DIM=80, KV_DTYPE=encoding, KEY_TILE=128, PAGE_TOKENS=16)
        yield chunk(112, 130, 1, HEAD_DIM=64, KV_DTYPE=encoding, TILE_Q=128, WINDOW=50, PAGE_TOKENS=16, RING_PAGES=13)


def chunks_of_slots():
    """Rows of several sequences: decode rows beside chunks of prompts, groups of heads that fill a tile and others, full tiles and others, more
    rows than a warp has lanes."""
    mixed = [(3, 70), (0, 5), (4, 0)] + run_of(2, 30, 37) + run_of(1, 63, 9) + [(5, 130)]
    yield tiles_of_rows(mixed, 4, HEAD_DIM=128, KV_HEADS=1, COPIES_LATE=1)
    yield tiles_of_rows(mixed, 1, HEAD_DIM=64, KEY_TILE=128, PAGE_TOKENS=64, BLOCKS_IN_ALL=3, X_DTYPE=F16, KV_DTYPE=F16)
    yield tiles_of_rows(mixed, 2, HEAD_DIM=64, TILE_Q=128, PING_PONG=1, KEY_TILE=128, BLOCKS_IN_ALL=2, COPIES_LATE=1, SLOT_COUNT=9)
    yield tiles_of_rows(mixed, 7, HEAD_DIM=80, KV_HEADS=1, WINDOW=20, PAGE_TOKENS=16, IN_PLACE=1)
    yield tiles_of_rows(mixed, 8, HEAD_DIM=32, TILE_Q=192, KV_HEADS=1, CAP_BITS=CAP, HAS_SINKS=1, COPIES_LATE=1)
    yield tiles_of_rows([(s, 19 * s) for s in range(40)], 3, HEAD_DIM=32, TILE_Q=128, KV_HEADS=1, HAS_SINKS=1)
    yield tiles_of_rows(mixed, 16, HEAD_DIM=32, KV_HEADS=1, STAGES=3)  # too many heads: tiles of one
    yield tiles_of_rows(run_of(0, 20, 33) + run_of(1, 0, 100), 5, HEAD_DIM=48, KV_HEADS=1, WINDOW=40, STAGES=4, COPIES_LATE=1)
    yield tiles_of_rows([(1, 7)] + run_of(0, 3, 290) + [(2, 40)], 8, HEAD_DIM=16, KV_HEADS=1, BLOCKS_IN_ALL=2)  # more than one load of a warp
    for encoding in CODED_KV:
        yield tiles_of_rows(mixed, 4, HEAD_DIM=64, KV_DTYPE=encoding, BLOCKS_IN_ALL=2, COPIES_LATE=1)
        yield tiles_of_rows(mixed, 6, HEAD_DIM=80, KV_DTYPE=encoding, X_DTYPE=F16, KV_HEADS=1, TILE_Q=128, WINDOW=30, PAGE_TOKENS=16)


def has_matmuls(cases):
    return any(case["SOURCE"] in ("matmul", "routed_matmul", "routed_mlp") for case in cases)


def shared_source(matmuls):
    """What programs of cases share."""
    lines = ["#include <%s>" % header for header in ("algorithm", "cstdio", "pthread.h")]
    if matmuls:  # before device code, whose macros have the names of its enums
        lines += ['extern "C" {', '#include "%s"' % C_HEADER, "}"]
    return lines + ['#include "%s"' % header for header in HEADERS + (MATMUL_HEADERS if matmuls else [])]


@functools.lru_cache(maxsize=None)
def precompiled(matmuls):
    """Path of a header with it, which the compiler reads as it has compiled it once: most of its time is spent there."""
    path = os.path.join(FOLDER.name, "matmuls.h" if matmuls else "others.h")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(shared_source(matmuls)) + "\n")
    subprocess.run([*COMPILE, "-x", "c++-header", "-o", path + ".gch", path], check=True)
    return path


@functools.lru_cache(maxsize=None)
def packing():
    """Objects of the C functions that pack weights."""
    objects = []
    for source in C_SOURCES:
        objects.append(os.path.join(FOLDER.name, os.path.basename(source) + ".o"))
        subprocess.run([C_COMPILER, "-O1", "-D_GNU_SOURCE", "-I", ROOT, "-c", "-o", objects[-1], os.path.join(ROOT, source)], check=True)
    return objects


def source_of(cases):
    """One program of all cases, each in a namespace of its own. The program's argument is the index of a case."""
    lines = ['#include "%s"' % precompiled(has_matmuls(cases))]
    for number, case in enumerate(cases):
        macros = {"SPOIL": 0, **{name: case[name] for name in MACROS if name in case}}
        params = {"NORM_DTYPE": BF16, "COUNT_INDEX": 0, "RING_PAGES": 0, "VALUE_DIM": 0, "EPS_BITS": 0x3727C5AC,  # 1e-5
                  "NORM_SCOPE": 0, "NORM_V": 0, "CENTRED": 0, "APPENDED": 0, "HAS_KV_SCALES": 0, "HAS_MEANS": 0}
        params.update((name, value) for name, value in case.items() if name not in MACROS + ["SOURCE"])
        macros["KERNEL_PARAMS"] = "".join("PARAM(%s)=%d;" % param for param in params.items())
        for name, value in macros.items():
            lines += ["#undef %s" % name, "#define %s %s" % (name, value)]
        lines += ["namespace case_%d {" % number, '#include "tests/emulation/%s_on_host.cu"' % case["SOURCE"], "}"]
    mains = ", ".join("case_%d::main" % number for number in range(len(cases)))
    lines += ["static int (*const cases[])() = {%s};" % mains,
              "int main(int, char **arguments) { return cases[atoi(arguments[1])](); }", ""]
    return "\n".join(lines)


@unittest.skipUnless(COMPILER, "needs a C++ compiler")
class Emulation(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def problems_of(self, cases, at_once=2):
        """A text for each case, None if all is well."""
        objects = packing() if has_matmuls(cases) else []
        sources = [source_of(cases[part::PROGRAMS]) for part in range(PROGRAMS)]

        def program(part):
            return os.path.join(self.folder, "cases_%d" % part)

        def make(part):
            return subprocess.run([*COMPILE, "-o", program(part), "-x", "c++", "-", "-x", "none", *objects],
                                  input=sources[part], capture_output=True, text=True, check=False)

        def run(number):
            command = [program(number % PROGRAMS), str(number // PROGRAMS)]
            try:
                ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return "no end"
            return ran.stdout + ran.stderr + "exit code %d" % ran.returncode if ran.returncode else None

        with concurrent.futures.ThreadPoolExecutor(PROGRAMS) as pool:
            for made in pool.map(make, range(PROGRAMS)):
                self.assertEqual(made.returncode, 0, made.stderr)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(run, range(len(cases))))

    def check(self, *lists, **options):
        cases = []
        for some in map(list, lists):
            cases += some if len(some) <= SOME or ALL else random.Random(0).sample(some, SOME)
        problems = self.problems_of(cases, **options)
        self.assertEqual(len(problems), len(cases))
        for case, problem in zip(cases, problems):
            with self.subTest(**case):
                self.assertIsNone(problem)

    def check_defects(self, cases, words):
        for case, problem, word in zip(cases, self.problems_of(cases), words, strict=True):
            with self.subTest(**case):
                self.assertIn(word, problem)

    def test_sample(self):
        self.check(samples())

    def test_defects_of_sample_are_seen(self):
        self.check_defects([{**sample(517, 1), "SPOIL": spoil} for spoil in (1, 2, 3)], ["row 0: token", "adjustments[", "samplers[1]"])

    def test_two_shot(self):
        self.check(two_shots())

    def test_one_shot(self):
        self.check(one_shots())

    def test_a_missing_rank(self):
        cases = list(missing_ranks())
        self.check(cases, at_once=len(cases))  # they wait most of the time

    def test_plain_matmuls(self):
        self.check(plain())

    def test_coded_gemv(self):
        self.check(gemvs())

    def test_expert_gemv(self):
        self.check(expert_gemvs())

    def test_routed(self):
        self.check(routeds())

    def test_defects_of_routed_are_seen(self):
        whole = routed(8, 8, 32, DTYPE=19, K=384)
        self.check_defects([{**whole, "SPOIL": spoil} for spoil in (1, 3, 4)], ["out[", "weights[", "guards["])

    def test_routed_mlp(self):
        self.check(coded_routed_mlps(), plain_routed_mlps())

    def test_defects_of_routed_mlp_are_seen(self):
        whole = routed_mlp(8, 8, 128, 48, DTYPE=19, K=384, HAS_RESIDUAL=1, HAS_DOWN_BIAS=1)
        self.check_defects([{**whole, "SPOIL": spoil} for spoil in range(1, 7)], ["out["] * 5 + ["guards["])

    def test_grouped(self):
        self.check(groupeds())

    def test_coded_mma(self):
        self.check(mmas())

    def test_expert_mma(self):
        self.check(expert_mmas())

    def test_blocks(self):
        self.check(blocks())

    def test_coded_wgmma(self):
        self.check(wgmmas())

    def test_wgmma_of_codes(self):
        self.check(codes_of_both())

    def test_defects_of_coded_matmuls_are_seen(self):
        whole = (gemv(DTYPE=19, ROWS=3, N=48, K=264), expert_gemv(4, 4, 48, DTYPE=24, ROWS=2, K=264), grouped(1, 1, 48, DTYPE=19, ROWS=3, K=256), mma(DTYPE=19, ROWS=9, N=48, K=264), mma(DTYPE=16, ROWS=9, N=48, K=264),
                 wgmma(DTYPE=24, ROWS=20, N=64, K=264), wgmma(DTYPE=24, INPUT_DTYPE=E4M3, ROWS=20, N=64, K=272),
                 wgmma(DTYPE=16, INPUT_DTYPE=I8, ROWS=20, N=64, K=272), wgmma(DTYPE=19, INPUT_DTYPE=I8, ROWS=20, N=64, K=272))
        cases = [{**case, "SPOIL": spoil} for case in whole for spoil in (1, 2)]
        self.check_defects(cases, ["out["] * len(cases))

    def test_coded_embed(self):
        program = os.path.join(self.folder, "embed")
        made = subprocess.run([*COMPILE, "-o", program, "-x", "c++", os.path.join(HERE, "embed_on_host.cu"), "-x", "none",
                               *packing()], capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        ran = subprocess.run([program], capture_output=True, text=True, check=False, timeout=SECONDS)
        self.assertEqual((ran.returncode, ran.stdout), (0, ""))

    def test_draft(self):
        self.check(drafts())
        whole = next(iter(drafts()))
        self.check_defects([{**whole, "SPOIL": 1}], ["row 0: token"])

    def test_rope_append(self):
        self.check(rotations(), normalised_rotations(), rotations_with_means())

    def test_group_norm(self):
        self.check(group_norms())

    def test_mean_squares(self):
        self.check(mean_squares())

    def test_rope_query(self):
        self.check(queries())

    def test_rms_norm(self):
        self.check(norms())

    def test_quantise(self):
        self.check(quantisations())

    def test_defects_of_codes_are_seen(self):
        cases = [{**case, "SPOIL": spoil} for case in itertools.islice(quantisations(), 9, 11) for spoil in (1, 2, 3)]
        self.check_defects(cases, ["row 0 element", "row 0: scale", "of out was written"] * 2)

    def test_router(self):
        self.check(routers())

    def test_norm_router(self):
        self.check(norm_routers())
        whole = next(iter(norm_routers()))
        self.check_defects([{**whole, "SPOIL": spoil} for spoil in (1, 2, 3)], ["row 0 weight 7", "list of expert", "of y was written"])

    def test_multiply(self):
        self.check(products(), selections())

    def test_xielu(self):
        self.check(learned_activations())
        whole = next(learned_activations())
        self.check_defects([{**whole, "SPOIL": spoil} for spoil in (1, 2)], ["out element", "of out was written"])

    def test_rope_attention(self):
        self.check(decodes())

    def test_other_rope_attention(self):
        self.check(other_decodes())

    def test_attention_generic(self):
        self.check(scattereds(), tiles_of_slots())

    def test_attention_of_wide_heads(self):
        self.check(wide_scattereds())

    def test_latent_append(self):
        self.check(latent_rows())

    def test_attention_latent(self):
        self.check(latents())

    def test_attention_latent_of_short_contexts(self):
        self.check(short_latents())

    def test_attention_prefill(self):
        self.check(chunks(), chunks_of_slots())

    def test_short_conv(self):
        self.check(short_convs())

    def test_delta_rule(self):
        self.check(delta_rules())

    def test_state_space(self):
        self.check(state_spaces())

    def test_state_space_chunk(self):
        self.check(state_space_chunks())

    def test_delta_rule_chunk(self):
        self.check(delta_rule_chunks())

    def test_defects_of_recurrent_state_are_seen(self):
        whole = (short_conv(64, 4), delta_rule((1, 1), (16, 16), 8, 1), state_space((1, 1), (16, 16), 8, 1),
                 delta_rule((1, 1), (16, 16), 8, 1, CHUNKED=2, CHUNK=16, COLUMN_WARPS=1),
                 state_space((1, 1), (16, 16), 8, 1, CHUNKED=2, CHUNK=32, COLUMN_WARPS=1))
        cases = [{**case, "SPOIL": spoil} for case in whole for spoil in (1, 2)]
        self.check_defects(cases, ["slot 1 position 0", "of the state was written"] * len(whole))

    def test_defects_of_rope_append_are_seen(self):
        case = next(rotations())
        self.check_defects([{**case, "SPOIL": spoil} for spoil in (1, 2, 3)], ["q row 5", "v of slot 0", "pages was written"])

    def test_defects_of_small_kernels_are_seen(self):
        cases = [{**next(routers()), "SPOIL": spoil} for spoil in (1, 2, 3)]
        cases += [{**case, "SPOIL": spoil} for case in (next(queries()), next(products()), next(selections()), next(norms()), next(mean_squares()), next(group_norms()))
                  for spoil in (1, 2)]
        self.check_defects(cases, ["row 0 weight 7", "list of expert", "of out was written", "q row 4", "of out was written"] +
                           ["out element", "of out was written"] * 2 +
                           ["out row 1", "of out was written", "out row 1 column 7", "of out was written", "out row 1 column 2047", "of out was written"])

    def test_defects_of_latent_attention_are_seen(self):
        whole = (next(latent_rows()), latent([(0, 3)], 1, HEAD_DIM=16, VALUE_DIM=16),
                 latent([(0, 40)], 16, HEAD_DIM=144, VALUE_DIM=128, SPLIT=2, KEY_TILE=32))
        self.check_defects([{**case, "SPOIL": spoil} for case in whole for spoil in (1, 2, 3)],
                           ["q row 5", "k of slot 0", "pages was written"] + ["out row 0", "pages was written", "out row 0"] * 2)

    def test_defects_of_attention_are_seen(self):
        case = decode([5], 1, HEAD_DIM=32, KV_HEADS=1)
        cases = [{**case, "SPOIL": spoil} for spoil in (1, 2, 3, 4)]
        cases += [{**case, "SPOIL": spoil} for case in (scattered([(0, 3)], 1, HEAD_DIM=16), chunk(3, 1, 1, HEAD_DIM=16)) for spoil in (1, 2)]
        self.check_defects(cases, ["out row 0", "v of slot", "pages was written", "of the workspace"] +
                           ["out row 0", "pages was written"] * 2)

    def test_defects_are_seen(self):
        case = next(one_shots())
        cases = [{**case, "SPOIL": spoil} for spoil in (1, 2, 3)] + [{**case, "SPOIL": 4, "RANKS": 3, "MISSING": 1}]
        self.check_defects(cases, ["left", "out", "normed", "blames"])


def load_tests(loader, tests, pattern):
    """Bazel's shards: of the tests in their order, each takes every so many."""
    shard, shards = (int(os.environ.get("TEST_" + name, value)) for name, value in (("SHARD_INDEX", 0), ("TOTAL_SHARDS", 1)))
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        with open(os.environ["TEST_SHARD_STATUS_FILE"], "w", encoding="utf-8"):
            pass  # says that this test can be divided
    return unittest.TestSuite(itertools.islice(loader.loadTestsFromTestCase(Emulation), shard, None, shards))


if __name__ == "__main__":
    unittest.main()
