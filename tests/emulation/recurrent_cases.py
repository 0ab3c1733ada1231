# SPDX-License-Identifier: Apache-2.0
"""Cases of ops with recurrent state for emulation_test.py: parameters of a kernel, and macros of short_conv_on_host.cu, delta_rule_on_host.cu and
state_space_on_host.cu."""

from matmul_cases import BF16, F16, F32


def runs(*steps):
    """Steps of runs of rows: (slot, position, count), or (slot, position, count, 1) of rows that are discarded."""
    return ", ".join("{%s}" % ", ".join(map(str, run)) for step in steps for run in [*step, (-1, 0, 0)])


# Chunks and single rows, slots that begin at other times, a slot that begins again, decode steps that are discarded.
STEPS = runs([(1, 0, 7)], [(1, 7, 34)], [(2, 0, 1)], [(2, 1, 1, 1), (1, 41, 1, 1)], [(2, 1, 1), (0, 0, 1), (1, 41, 1)],
             [(0, 1, 1), (1, 42, 1), (2, 2, 1)], [(2, 3, 1, 1), (0, 2, 1, 1)], [(2, 3, 6)], [(0, 2, 16)], [(0, 18, 1)],
             [(1, 0, 2)], [(1, 2, 1, 1)], [(1, 2, 1), (0, 19, 1)], [(2, 9, 2), (0, 20, 3), (1, 3, 40)])


def recurrents(source, part, **changes):
    case = {"SOURCE": source, "RUNS": STEPS, "ROWS": 45, "SLOT_COUNT": 3, "X_DTYPE": BF16, **changes}
    return {**case, "RECURRENT_BYTES": 2 * (128 + -(-part // 64) * 64)}


def short_conv(channels, kernel, **changes):
    case = {"CHANNELS": channels, "KERNEL": kernel, "GATED": 0, "ACTIVATION": 0, "W_DTYPE": BF16, "HAS_BIAS": 0, "BIAS_DTYPE": F32}
    return recurrents("short_conv", 4 * (kernel - 1) * channels, **{**case, **changes})


def short_convs():
    """Each vector of channels, more than one block, every kernel's length."""
    yield short_conv(64, 4, ACTIVATION=1)
    yield short_conv(1040, 3, GATED=1)
    yield short_conv(36, 4, HAS_BIAS=1, X_DTYPE=F16)
    yield short_conv(48, 6, GATED=1, HAS_BIAS=1, ACTIVATION=1, W_DTYPE=F32)
    yield short_conv(133, 2, X_DTYPE=F32, W_DTYPE=F16, ACTIVATION=1)
    yield short_conv(7, 16, GATED=1, HAS_BIAS=1, BIAS_DTYPE=BF16)
    yield short_conv(8, 16, X_DTYPE=F32)


def delta_rule(heads, dims, lanes, warps, **changes):
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims
    case = {"KEY_HEADS": key_heads, "VALUE_HEADS": value_heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim, "A_DTYPE": BF16,
            "DT_DTYPE": F32, "NORM_DTYPE": BF16, "SCATTERED": 0, "LANES": lanes, "WARPS": warps, "WALKERS": 1, "COPIES_LATE": 1,
            "TOKENS": 80, "CHUNKED": 0}
    return recurrents("delta_rule", 4 * value_heads * key_dim * value_dim, **{**case, **changes})


def delta_rules():
    """Each number of lanes, clusters and blocks alone, dimensions that fill no lane or block, copies and loads."""
    yield delta_rule((1, 2), (32, 32), 16, 2, X_DTYPE=F32)
    yield delta_rule((1, 2), (32, 32), 8, 2, SCATTERED=1, WALKERS=3)
    yield delta_rule((2, 2), (16, 16), 4, 1, WALKERS=2)
    yield delta_rule((1, 1), (64, 64), 8, 1)
    yield delta_rule((1, 3), (40, 24), 8, 1, X_DTYPE=F16, COPIES_LATE=0)
    yield delta_rule((1, 1), (7, 13), 8, 2, DT_DTYPE=BF16, A_DTYPE=F32, X_DTYPE=F16)
    yield delta_rule((1, 1), (16, 12), 16, 1, NORM_DTYPE=F32, SCATTERED=1, WALKERS=45)
    yield delta_rule((1, 1), (24, 40), 32, 3, X_DTYPE=F32, COPIES_LATE=0)


def state_space(heads, dims, lanes, warps, **changes):
    (groups, heads), (state_dim, head_dim) = heads, dims
    case = {"GROUPS": groups, "HEADS": heads, "STATE_DIM": state_dim, "HEAD_DIM": head_dim, "DT_MIN_BITS": 0, "DT_MAX_BITS": 0x7F7FFFFF,
            "A_DTYPE": BF16, "DT_DTYPE": F32, "D_DTYPE": BF16, "SCATTERED": 0, "LANES": lanes, "WARPS": warps, "WALKERS": 1, "COPIES_LATE": 1,
            "TOKENS": 80, "CHUNKED": 0}
    return recurrents("state_space", 4 * heads * state_dim * head_dim, **{**case, **changes})


def state_spaces():
    """Each number of lanes, heads of one block and of several, dimensions that fill no lane or block, copies and loads, limits of dt."""
    yield state_space((1, 2), (32, 32), 16, 2, X_DTYPE=F32)
    yield state_space((1, 2), (32, 32), 8, 2, SCATTERED=1, WALKERS=3, DT_MIN_BITS=0x3F000000)
    yield state_space((2, 4), (16, 16), 4, 1, WALKERS=2, DT_MAX_BITS=0x3F400000)
    yield state_space((1, 1), (64, 64), 8, 1)
    yield state_space((1, 3), (40, 24), 8, 1, X_DTYPE=F16, COPIES_LATE=0)
    yield state_space((1, 1), (7, 13), 8, 2, DT_DTYPE=BF16, A_DTYPE=F32, X_DTYPE=F16)
    yield state_space((1, 1), (16, 12), 16, 1, D_DTYPE=F32, SCATTERED=1, WALKERS=45)
    yield state_space((1, 1), (24, 40), 32, 3, X_DTYPE=F32, COPIES_LATE=0)
    yield state_space((1, 2), (128, 64), 16, 4, RUNS=LONG, TOKENS=1102, ROWS=603)


def state_space_chunks():
    """Both lengths of chunks, both numbers of warps, heads of one block and of several; groups; limits of dt; prompts of several slots, shorter
    and longer than chunks, continued by the same kernel and by the one that takes row after row, as its are; a state that many chunks change."""
    yield state_space((1, 2), (32, 32), 16, 2, CHUNKED=2, CHUNK=32, COLUMN_WARPS=1)
    yield state_space((1, 1), (128, 64), 8, 4, CHUNKED=2, CHUNK=64, COLUMN_WARPS=2, COPIES_LATE=0, DT_MIN_BITS=0x3F000000)
    yield state_space((2, 4), (16, 16), 4, 1, CHUNKED=4, CHUNK=64, COLUMN_WARPS=1, D_DTYPE=F32, DT_MAX_BITS=0x3F400000)
    yield state_space((1, 3), (48, 96), 16, 6, CHUNKED=1, CHUNK=32, COLUMN_WARPS=2, DT_DTYPE=BF16, A_DTYPE=F32)
    yield state_space((1, 1), (64, 32), 16, 2, CHUNKED=2, CHUNK=32, COLUMN_WARPS=2, RUNS=LONG, TOKENS=1102, ROWS=603)
    yield state_space((2, 2), (128, 64), 16, 4, CHUNKED=2, CHUNK=64, COLUMN_WARPS=2, RUNS=LONG, TOKENS=1102, ROWS=603)


# A long prompt in two steps, its decode, its rest.
LONG = runs([(1, 0, 600)], [(1, 600, 1)], [(1, 601, 499)], [(1, 1100, 1)], [(1, 1101, 1)])


def delta_rule_chunks():
    """Both lengths of chunks, clusters and blocks alone; prompts of several slots, shorter and longer than chunks, continued by the same
    kernel and by the one that takes row after row, as its are; a state that many chunks change."""
    yield delta_rule((1, 2), (32, 32), 16, 2, CHUNKED=2, CHUNK=16, COLUMN_WARPS=1)
    yield delta_rule((1, 1), (128, 64), 8, 4, CHUNKED=2, CHUNK=32, COLUMN_WARPS=2, COPIES_LATE=0)
    yield delta_rule((2, 4), (16, 16), 4, 1, CHUNKED=4, CHUNK=32, COLUMN_WARPS=1, NORM_DTYPE=F32)
    yield delta_rule((1, 1), (48, 96), 16, 6, CHUNKED=1, CHUNK=16, COLUMN_WARPS=2, DT_DTYPE=BF16, A_DTYPE=F32)
    yield delta_rule((1, 1), (64, 32), 16, 2, CHUNKED=2, CHUNK=32, COLUMN_WARPS=2, RUNS=LONG, TOKENS=1102, ROWS=603)
