# SPDX-License-Identifier: Apache-2.0
"""Cases of router and of norm_router for emulation_test.py: parameters of a kernel, and macros of router_on_host.cu and
norm_router_on_host.cu."""

from matmul_cases import BF16, F16, F32


def router(experts, top_k, **changes):
    """`experts`: logits of a row; `top_k`: choices of a row. Scores: softmax, sigmoid, softmax of the chosen ones."""
    return {"SOURCE": "router", "VALID": 5, "ROWS": 6, "EXPERTS": experts, "ROUTE_WIDTH": 2 * top_k, "SCORE": 0, "RENORMALISE": 0,
            "EPS_BITS": 0x1E3CE508, "SCALE_BITS": 0x40200000, "GROUPS": 1, "TOP_GROUPS": 1, "GROUP_SCORE": 0, "HAS_BIAS": 0,
            "BIAS_DTYPE": F32, "HAS_SEEDS": 0, "HAS_SCALES": 0, "SCALES_DTYPE": F32, "SHARED": 0, "SHARED_GATE": 0, **changes}


def routers():
    """Each score; with and without shared experts, their gate, groups, seeds; few and many experts; lists in one pass and in several."""
    yield router(64, 8, SHARED=2)
    yield router(61, 8, SHARED=4, SHARED_GATE=1, HAS_SEEDS=1)
    yield router(33, 4, SHARED=1, SHARED_GATE=1, SCORE=1, RENORMALISE=1)  # the gate in a lane's second logit
    yield router(2, 5, SHARED=4, SHARED_GATE=1)
    yield router(64, 9, SHARED=1, SCORE=1, RENORMALISE=1, GROUPS=8, TOP_GROUPS=4, GROUP_SCORE=1, HAS_BIAS=1, HAS_SEEDS=1)
    yield router(40, 40, SHARED=36, SCORE=2, HAS_SCALES=1)
    yield router(72, 6, RENORMALISE=1, GROUPS=36, TOP_GROUPS=5, VALID=19, ROWS=20)
    yield router(8, 2, SCORE=2, VALID=1, ROWS=1)
    yield router(100, 8, RENORMALISE=1, HAS_SEEDS=1)
    yield router(300, 4, RENORMALISE=1)
    yield router(100, 5, SCORE=1, HAS_BIAS=1)


def norm_router(rows, valid, k, routed, top_k, **changes):
    """`routed`: rows of the router's matrix; `top_k`: choices of a row."""
    return {"SOURCE": "norm_router", "VALID": valid, "ROWS": rows, "K": k, "NORM_DTYPE": BF16, "EPS_BITS": 0x3727C5AC, "OUT_DTYPE": BF16, "MATRIX_DTYPE": BF16,
            "ROUTED": routed, "HAS_ROUTER_BIAS": 0, "ROUTER_BIAS_DTYPE": F32, "ROUTE_WIDTH": 2 * top_k, "SCORE": 0, "RENORMALISE": 0,
            "ROUTER_EPS_BITS": 0x1E3CE508, "ROUTER_SCALE_BITS": 0x40200000, "ROUTER_GROUPS": 1, "TOP_GROUPS": 1, "GROUP_SCORE": 0, "HAS_CLAIM_BIAS": 0,
            "CLAIM_BIAS_DTYPE": F32, "HAS_SEEDS": 0, "HAS_SCALES": 0, "SCALES_DTYPE": F32, "SHARED": 0, "SHARED_GATE": 0, "BLOCKS": 4, "WARPS": 4, **changes}


def norm_routers():
    """Warps that share a tile's k, take one tile or several; blocks without k; one and several rows of a warp, in registers and read again; every
    score, groups, shared experts and their gate, seeds of other rows; invalid rows."""
    yield norm_router(9, 9, 256, 64, 8, RENORMALISE=1)
    yield norm_router(16, 13, 264, 32, 4, SCORE=2, HAS_ROUTER_BIAS=1, ROUTER_BIAS_DTYPE=BF16, HAS_SEEDS=1)
    yield norm_router(10, 10, 72, 16, 9, SHARED=1, SCORE=1, RENORMALISE=1, ROUTER_GROUPS=4, TOP_GROUPS=2, GROUP_SCORE=1, HAS_CLAIM_BIAS=1, BLOCKS=8,
                      CLAIM_BIAS_DTYPE=BF16)
    yield norm_router(20, 17, 136, 61, 8, SHARED=4, SHARED_GATE=1, HAS_SEEDS=1, COUNT_INDEX=1, WARPS=8, OUT_DTYPE=F16, MATRIX_DTYPE=F16)
    yield norm_router(12, 0, 64, 8, 2)
    yield norm_router(64, 61, 128, 24, 3, HAS_SCALES=1, SCALES_DTYPE=BF16, BLOCKS=8, WARPS=8, NORM_DTYPE=F32)
    yield norm_router(11, 11, 1544, 5, 5, BLOCKS=2, WARPS=8, HAS_SCALES=1)
    yield norm_router(33, 30, 200, 100, 2, BLOCKS=8, WARPS=8, SCORE=1, HAS_CLAIM_BIAS=1, NORM_DTYPE=F16)
