# SPDX-License-Identifier: Apache-2.0
"""Cases of emulation_test.py that multiply: problems and tunables of each kernel. All numbers of a case are parameters of its kernel, but for those that
emulation_test.py lists."""

F32, F16, BF16, E4M3, I8 = 1, 2, 3, 4, 6

ENCODINGS = list(range(16, 23)) + list(range(24, 37))  # enum encoding_id: those with fragments
MATMUL = {"HAS_BIAS": 0, "HAS_RESIDUAL": 0, "HAS_NORM": 0, "EPILOGUE": 0, "OUT_DTYPE": F32, "SCALE_BITS": 0x3F800000, "CAP_BITS": 0x40200000, "BIAS_DTYPE": F32,
          "NORM_DTYPE": F32, "EXPERTS": 0, "ROUTE_WIDTH": 0, "PARTS": 0, "EARLY_ROUTES": 0, "BLOCK_N": 0, "X_PITCH": 0, "INPUT_DTYPE": BF16, "COUNT_INDEX": 1, "SPLIT_K": 1, "BLOCKS_IN_ALL": 2}


def selections():
    """select_columns: vectors of 8, 4 and 1 columns, every rounding."""
    for i, width in enumerate([64, 2056, 36, 13, 2, 520]):
        yield {"SOURCE": "select_columns", "VALID": 2, "ROWS": 3, "WIDTH": width,
               "X_DTYPE": [BF16, F32, F32, F16][i % 4], "OUT_DTYPE": [BF16, BF16, F16, F16][i % 4]}


def gemv(**changes):
    own = {"WARPS": 2, "STAGES": 3, "CHUNK": 256, "GROUPS": 2, "CTAS_PER_SM": 1, "X_SHARED": 1, "COPY": 1}
    return {"SOURCE": "matmul", "BODY": "matmul_gemv_body", **MATMUL, **own, "VALID": changes["ROWS"], **changes}


def wgmma(**changes):
    own = {"TILE_N": 64, "TILE_M": 16, "TILE_K": 128, "WARPGROUPS": 1, "STAGES": 3, "MULTICAST": 1, "PERSISTENT": 1, "ROW_GROUP": 2,
           "PREFETCH": 1}
    return {"SOURCE": "matmul", "BODY": "matmul_wgmma_body", **MATMUL, **own, "VALID": changes["ROWS"], **changes}


def mma(**changes):
    own = {"TILE_N": 64, "TILE_M": 16, "TILE_K": 128, "STAGES": 3, "WARPS_N": 2, "WARPS_M": 1, "WARPS_K": 1}
    case = {"SOURCE": "matmul", "BODY": "matmul_mma_body", **MATMUL, **own, "VALID": changes["ROWS"], **changes}
    matrices = case["N"] // (-(-case["BLOCK_N"] // 16) * 16) if case["BLOCK_N"] else 1
    columns = case["BLOCK_N"] or case["N"]
    return {**case, "BLOCKS_IN_ALL": matrices * -(-case["ROWS"] // case["TILE_M"]) * -(-columns // case["TILE_N"])}


def expert_gemv(experts, top_k, n, **changes):
    case = gemv(EXPERTS=experts, ROUTE_WIDTH=2 * top_k, N=experts * n, **changes)
    return case if case["EPILOGUE"] or case["PARTS"] else {**case, "BODY": "matmul_gemv_sums"}


def expert_gemvs():
    """Gated, activated, parts and sums; every encoding; tails of N and of K; choices that name no expert; more rows than are valid."""
    for i, encoding in enumerate([BF16] + ENCODINGS):
        changes = {"DTYPE": encoding, "K": [136, 520, 264][i % 3], "HAS_BIAS": i % 2, "GROUPS": 2 + i // 2 % 2 * 2, "COPY": 0 if i % 3 == 1 else 1}
        yield expert_gemv(5, 3, 48, ROWS=[1, 4][i % 2], EPILOGUE=[1, 2][i % 2], **changes)
        yield expert_gemv(5, 2, 80, ROWS=[1, 3][i % 2], HAS_RESIDUAL=i % 3 // 2, **changes)
        yield expert_gemv(4, 2, 64, ROWS=[1, 3][i % 2], EPILOGUE=1, HAS_NORM=1, **changes)
        yield expert_gemv(5, 3, 48, ROWS=[4, 1][i % 2], EPILOGUE=16 + [4, 1, 5][i % 3], HAS_NORM=i // 2 % 2, **changes)
    yield expert_gemv(4, 2, 48, ROWS=3, VALID=2, PARTS=1, DTYPE=BF16, K=136)
    yield expert_gemv(4, 2, 20, ROWS=3, VALID=2, EPILOGUE=20, DTYPE=BF16, K=136, GROUPS=1, COPY=0, X_SHARED=0)
    yield expert_gemv(40, 12, 16, ROWS=5, VALID=4, DTYPE=16, K=128)
    for i, encoding in enumerate([BF16, BF16] + ENCODINGS):  # sums: stages of fewer and of more steps than warps, more choices than stages
        yield expert_gemv(9, 6, 48, ROWS=[1, 2][i % 2], DTYPE=encoding, K=[392, 640, 136][i % 3], WARPS=[3, 4, 5][i % 3], CHUNK=[256, 640, 128][i % 3],
                          GROUPS=2 + i // 2 % 2 * 2, EARLY_ROUTES=i % 2, HAS_BIAS=i % 2, HAS_RESIDUAL=1, STAGES=2 + i % 4)
    yield expert_gemv(9, 6, 20, ROWS=2, DTYPE=BF16, K=104, CHUNK=64, GROUPS=1, COPY=0)


def routed(experts, top_k, n, **changes):
    """`experts`: with shared ones; `top_k`: choices of a row; `n`: rows of an expert's gate and up, or of its up alone."""
    case = {"SOURCE": "routed_matmul", "ROWS": 1, "N": experts * n, "K": 264, "DTYPE": BF16, "OUT_DTYPE": F32, "EPILOGUE": 1, "HAS_BIAS": 0, "BIAS_DTYPE": F32,
            "HAS_NORM": 1, "NORM_DTYPE": F32, "CAP_BITS": 0x3F800000, "EXPERTS": experts, "ROUTE_WIDTH": 2 * top_k, "MATRIX_DTYPE": BF16,
            "HAS_ROUTER_BIAS": 0, "ROUTER_BIAS_DTYPE": F32, "SCORE": 0, "RENORMALISE": 0, "ROUTER_EPS_BITS": 0x1E3CE508, "ROUTER_SCALE_BITS": 0x40200000,
            "ROUTER_GROUPS": 1, "TOP_GROUPS": 1, "GROUP_SCORE": 0, "HAS_CLAIM_BIAS": 0, "CLAIM_BIAS_DTYPE": F32, "HAS_SEEDS": 0, "HAS_SCALES": 0,
            "SCALES_DTYPE": F32, "SHARED": 0, "SHARED_GATE": 0, "WARPS": 2, "STAGES": 3, "CHUNK": 256, "TILE_GROUPS": 2, "CTAS_PER_SM": 1, "COPY": 1,
            "BLOCKS_IN_ALL": 3, **changes}
    matrix_rows = experts - case["SHARED"] + case["SHARED_GATE"]
    return {"VALID": case["ROWS"], "ROUTED": matrix_rows, "SHARE": -(-matrix_rows // case["BLOCKS_IN_ALL"]), **case}


def routeds():
    """Few and many rows of the router's matrix for a block; logits of a lane by fours and alone; shared experts; every score; invalid rows."""
    yield routed(8, 2, 32)
    yield routed(24, 4, 48, DTYPE=16, K=520, ROWS=3, VALID=2, HAS_BIAS=1, HAS_ROUTER_BIAS=1, RENORMALISE=1)
    yield routed(18, 5, 32, SHARED=2, HAS_SEEDS=1, ROWS=4, VALID=3, HAS_NORM=0)
    yield routed(15, 4, 32, SHARED=1, SHARED_GATE=1, DTYPE=19, K=384, RENORMALISE=1)
    yield routed(40, 6, 16, SCORE=1, RENORMALISE=1, ROUTER_GROUPS=1, HAS_CLAIM_BIAS=1, BLOCKS_IN_ALL=5, ROWS=8, HAS_SCALES=1, K=136)
    yield routed(100, 8, 16, BLOCKS_IN_ALL=13, SCORE=2, K=128)
    yield routed(130, 4, 16, BLOCKS_IN_ALL=17, K=64, CHUNK=128, SHARED=1, WARPS=4)
    yield routed(8, 2, 32, ROWS=2, VALID=0)
    yield routed(12, 4, 96, K=384, COPY=2, TILE_GROUPS=4, ROWS=2, BLOCKS_IN_ALL=5)  # tensor maps
    yield routed(18, 5, 40, SHARED=2, EPILOGUE=20, SCORE=1, RENORMALISE=1, HAS_CLAIM_BIAS=1, ROWS=3, VALID=2, TILE_GROUPS=1)  # without a gate
    yield routed(9, 3, 48, SHARED=1, EPILOGUE=20, DTYPE=19, K=384, HAS_BIAS=1)
    yield routed(264, 4, 16, ROWS=8, VALID=7, BLOCKS_IN_ALL=33, K=64, CHUNK=128)  # one copy of the logits; others have up to 32
    yield routed(40, 3, 16, ROWS=4, BLOCKS_IN_ALL=41, K=136, HAS_ROUTER_BIAS=1)  # logits of a block by lanes; a block without any


def routed_mlp(experts, top_k, inner, width, **changes):
    """As `routed`; `inner`: activations of a choice; `width`: columns of out."""
    down_dtype = changes.get("DOWN_DTYPE", changes.get("DTYPE", BF16))
    own = {"OUT_DTYPE": F16 if down_dtype == F16 else BF16, "MATRIX_DTYPE": F16 if changes.get("DTYPE") == F16 else BF16, "DOWN_N": experts * width, "DOWN_K": inner,
           "DOWN_DTYPE": down_dtype, "DOWN_OUT_DTYPE": F32, "DOWN_SCALE_BITS": 0x3F800000, "HAS_DOWN_BIAS": 0, "DOWN_BIAS_DTYPE": F32, "HAS_RESIDUAL": 0,
           "DOWN_STAGES": 3, "DOWN_CHUNK": 128, "DOWN_GROUPS": 2, "IN_PLACE": 0}
    case = routed(experts, top_k, inner if changes.get("EPILOGUE", 1) & 16 else 2 * inner, **{**own, **changes})
    return {name: value for name, value in case.items() if name != "CTAS_PER_SM"} | {"SOURCE": "routed_mlp"}


def coded_routed_mlps():
    """Every encoding in both matrices, and in one of them; tails of both K; more and fewer stages than are needed; invalid rows; zeros among activations."""
    for i, encoding in enumerate(ENCODINGS):
        rows = 1 + i % 5
        case = {"ROWS": rows, "VALID": max(1, rows - i % 3), "K": [136, 520, 264][i % 3], "HAS_BIAS": i % 2, "HAS_DOWN_BIAS": i // 2 % 2, "HAS_RESIDUAL": i % 3 // 2,
                "HAS_NORM": i // 3 % 2, "WARPS": 2, "STAGES": 2 + i % 4, "DOWN_STAGES": [2, 3, 12][i % 3], "TILE_GROUPS": [2, 4][i % 2], "DOWN_GROUPS": [4, 2][i // 2 % 2],
                "BLOCKS_IN_ALL": [3, 2, 7][i % 3], "DOWN_SCALE_BITS": [0x3F800000, 0x3F000000][i % 2]}
        yield routed_mlp(5, 3, [24, 136, 264][i % 3], [48, 80][i % 2], DTYPE=encoding, DOWN_CHUNK=[128, 256][i % 2], **case)
        yield routed_mlp(6, 2, [272, 48, 16][i % 3], [32, 112][i % 2], DTYPE=encoding, DOWN_DTYPE=ENCODINGS[(i + 7) % len(ENCODINGS)], EPILOGUE=20, DOWN_CHUNK=256, SHARED=1, **case)


def plain_routed_mlps():
    """Rows and boxes; blocks without a tile of either matmul or of both; shared experts; seeds; out in the place of the residual and of x; no valid rows."""
    for i, (copy, dtype, down_dtype) in enumerate(((1, BF16, BF16), (2, BF16, BF16), (2, F16, F16), (1, F16, BF16), (2, BF16, F16))):
        case = {"COPY": copy, "DTYPE": dtype, "DOWN_DTYPE": down_dtype, "DOWN_CHUNK": [64, 128][i % 2]}
        yield routed_mlp(8, 2, 32, 40, ROWS=1 + i, **case)
        yield routed_mlp(12, 4, 104, 264, ROWS=5 - i, VALID=4 - i or 1, HAS_RESIDUAL=1, IN_PLACE=2, TILE_GROUPS=4, DOWN_GROUPS=4, BLOCKS_IN_ALL=5, **case)
        yield routed_mlp(10, 5, 40, 72, ROWS=3, VALID=2, SHARED=2, HAS_SEEDS=1, HAS_NORM=0, HAS_RESIDUAL=1, IN_PLACE=1, HAS_BIAS=1, HAS_DOWN_BIAS=1, **case)
        yield routed_mlp(9, 4, 24, 56, ROWS=2, SHARED=1, SHARED_GATE=1, EPILOGUE=20, TILE_GROUPS=1, DOWN_GROUPS=1, DOWN_OUT_DTYPE=[BF16, F16][i % 2],
                         HAS_RESIDUAL=i % 2, **case)
    yield routed_mlp(8, 2, 32, 48, ROWS=2, VALID=0)
    yield routed_mlp(8, 2, 32, 48, ROWS=2, VALID=0, DTYPE=19, HAS_RESIDUAL=1, IN_PLACE=1)
    yield routed_mlp(6, 1, 16, 160, BLOCKS_IN_ALL=12, K=64, CHUNK=64)  # one tile of the first matmul, ten of the second
    yield routed_mlp(6, 4, 160, 16, BLOCKS_IN_ALL=50, K=64, CHUNK=64, COPY=2)  # a tile of the second; a block of none
    yield routed_mlp(6, 3, 64, 96, BLOCKS_IN_ALL=1, ROWS=2, STAGES=20, DOWN_STAGES=12, CHUNK=64)
    yield routed_mlp(6, 5, 392, 64, ROWS=2, WARPS=4, CHUNK=128, DOWN_CHUNK=64, STAGES=2, DOWN_STAGES=2)
    yield routed_mlp(264, 2, 16, 16, ROWS=8, VALID=7, BLOCKS_IN_ALL=33, K=64, CHUNK=128)  # one copy of the logits
    yield routed_mlp(40, 8, 16, 16, ROWS=8, BLOCKS_IN_ALL=5, SCORE=1, RENORMALISE=1, HAS_CLAIM_BIAS=1, HAS_SCALES=1, K=136, WARPS=3, CHUNK=192)


def grouped(experts, top_k, n, **changes):
    own = {"WARPS": 2, "STAGES": 3, "CHUNK": 256, "GROUPS": 4, "COLUMNS": 8, "CTAS_PER_SM": 1}
    return {"SOURCE": "matmul", "BODY": "matmul_grouped_body", **MATMUL, **own, "VALID": changes["ROWS"], "EXPERTS": experts, "ROUTE_WIDTH": 2 * top_k,
            "N": experts * n, "PARTS": 0 if changes.get("EPILOGUE") else 1, **changes}


def groupeds():
    """Gated, activated and parts; every encoding; tails of N and of K; groups of one and of several tiles; experts without a choice; invalid rows."""
    for i, encoding in enumerate([BF16] + ENCODINGS):
        changes = {"DTYPE": encoding, "K": [160, 544, 256][i % 3], "HAS_BIAS": i % 2, "GROUPS": [2, 4, 8][i % 3], "COLUMNS": [8, 3, 4][i // 2 % 3]}
        yield grouped(5, 3, 48, ROWS=[4, 9][i % 2], EPILOGUE=[1, 2][i % 2], **changes)
        yield grouped(5, 2, 80, ROWS=[12, 3][i % 2], EARLY_ROUTES=i // 2 % 2, **changes)
        yield grouped(5, 3, 80, ROWS=[9, 4][i % 2], EPILOGUE=16 + [4, 2, 5][i % 3], **changes)
    yield grouped(70, 2, 48, ROWS=9, VALID=7, DTYPE=BF16, K=96, CHUNK=128, STAGES=2)
    yield grouped(3, 1, 112, ROWS=40, VALID=33, DTYPE=26, K=160, WARPS=1, CHUNK=128, EPILOGUE=1, BLOCKS_IN_ALL=5)
    yield grouped(4, 2, 16, ROWS=6, VALID=0, DTYPE=BF16, K=128, CHUNK=128)


def gemvs():
    """Every encoding; tails of N and of K, one to eight rows, both ways of copying."""
    for i, encoding in enumerate(ENCODINGS):
        yield gemv(DTYPE=encoding, ROWS=[1, 3, 8][i % 3], N=[40, 48, 17][i % 3], K=[136, 520, 776][i // 3 % 3], HAS_BIAS=i % 2,
                   HAS_RESIDUAL=i % 3 // 2, HAS_NORM=i % 4 // 3, GROUPS=2 + i % 2 * 2, COPY=0 if i % 3 == 1 else 1)
    yield gemv(DTYPE=19, ROWS=8, N=96, K=264, EPILOGUE=1, GROUPS=4, HAS_BIAS=1)
    yield gemv(DTYPE=24, ROWS=2, N=48, K=1160, EPILOGUE=1, WARPS=3, CHUNK=768)


def wgmmas():
    for i, encoding in enumerate(ENCODINGS):
        warpgroups = 1 + i // 4 % 2
        rows, tile = [(9, 16), (5, 8), (70, 64), (40, 32)][i % 4]
        yield wgmma(DTYPE=encoding, ROWS=rows, VALID=rows - i % 3, TILE_M=tile, N=[72, 130, 64][i % 3], K=[136, 392, 264][i % 3],
                    TILE_K=256 if i % 2 and i % 3 < 2 else 128, TILE_N=64 * warpgroups * (1 + i % 3 // 2), WARPGROUPS=warpgroups, HAS_BIAS=i % 2,
                    HAS_RESIDUAL=i % 3 // 2, PERSISTENT=1)
    yield wgmma(DTYPE=19, ROWS=20, N=96, K=264, EPILOGUE=1, HAS_BIAS=1)
    yield wgmma(DTYPE=27, ROWS=20, N=96, K=264, EPILOGUE=1)


def codes_of_both():
    """x and W of e4m3 in every encoding of it, of int8, and int4 by int8: tails, 1 and 2 sets of sums, parts, strips of a stage."""
    for i, (encoding, codes) in enumerate(((24, E4M3), (25, E4M3), (31, E4M3), (16, I8), (18, I8), (19, I8))):
        case = {"DTYPE": encoding, "INPUT_DTYPE": codes}
        yield wgmma(**case, ROWS=70, VALID=67, N=72, K=272, TILE_M=64, HAS_BIAS=1)
        yield wgmma(**case, ROWS=9, N=264, K=512, TILE_M=16, TILE_N=256, WARPGROUPS=2, TILE_K=256, HAS_RESIDUAL=1)
        yield wgmma(**case, ROWS=40, N=96, K=400, TILE_M=32, TILE_N=128, EPILOGUE=1, STAGES=2 + i % 4, PREFETCH=i % 4)
        yield wgmma(**case, ROWS=130, VALID=129, N=130, K=144, TILE_M=96, TILE_N=128, WARPGROUPS=2, ROW_GROUP=1)


def mmas():
    for i, encoding in enumerate(ENCODINGS):
        rows, tile_m, warps_m = [(1, 8, 1), (9, 16, 1), (33, 32, 2), (70, 64, 1)][i % 4]
        tile_n, warps_n = [(16, 1), (64, 4), (48, 1)][i % 3]
        warps_k = 1 if i % 4 > 1 else 2 << i // 4 % 2
        yield mma(DTYPE=encoding, ROWS=rows, VALID=max(1, rows - i % 3), N=[40, 81, 130][i // 2 % 3], K=[136, 520, 1032][i // 3 % 3],
                  TILE_N=tile_n, TILE_M=tile_m, TILE_K=128 * warps_k * (1 + i % 2), WARPS_N=warps_n, WARPS_M=warps_m,
                  WARPS_K=warps_k, STAGES=2 + i % 3, HAS_BIAS=i % 2, HAS_RESIDUAL=i % 3 // 2)
    yield mma(DTYPE=19, ROWS=20, N=96, K=264, EPILOGUE=1, HAS_BIAS=1)
    yield mma(DTYPE=27, ROWS=20, N=48, K=264, EPILOGUE=1, TILE_K=512, WARPS_K=4)


def expert_mmas():
    """Gated, activated and parts; every encoding; tails of N and of K; tiles of one expert's rows, whole and not; invalid rows."""
    for i, encoding in enumerate([BF16] + ENCODINGS):
        for epilogue in (1, 20, 0):
            rows, experts, top_k, n, tile_m, tile_n = [(9, 5, 3), (20, 3, 2), (2, 6, 4)][i % 3] + (48 + 16 * (epilogue % 3), 8 + i % 2 * 8, 32)
            case = mma(DTYPE=encoding, ROWS=rows, VALID=max(1, rows - i % 3), N=experts * n, EXPERTS=experts, ROUTE_WIDTH=2 * top_k,
                       EPILOGUE=epilogue, K=[136, 264][i % 2], TILE_N=tile_n, TILE_M=tile_m, HAS_BIAS=i % 2, STAGES=2 + i % 2)
            choices = rows * top_k
            tiles = min(choices, min(choices, experts) + choices // tile_m)  # kernels/matmul/expert_tiles.cuh
            yield {**case, "PARTS": int(not epilogue), "BLOCKS_IN_ALL": tiles * -(-n // tile_n)}


def blocks():
    """Block diagonal weights in every encoding: tails of rows, of a block's rows and of K, rows of x with other columns after them."""
    for i, encoding in enumerate([BF16] + ENCODINGS):
        rows, tile_m = [(1, 8), (9, 8), (20, 16)][i % 3]
        block_n, count = [(24, 3), (80, 2), (17, 4), (48, 1)][i % 4]
        k = [136, 264][i % 2]
        yield mma(DTYPE=encoding, ROWS=rows, VALID=max(1, rows - i % 3), N=-(-block_n // 16) * 16 * count, BLOCK_N=block_n, K=k,
                  X_PITCH=count * k + 8 * (i % 5) if i % 5 else 0,
                  TILE_N=[16, 32][i % 2], TILE_M=tile_m, WARPS_N=1, STAGES=2 + i % 2)


def plain():
    """bfloat16 weights: each kernel, gated and not, each way of copying."""
    for i, (copy, groups, shared) in enumerate(((0, 1, 1), (1, 2, 1), (0, 4, 0), (1, 1, 0))):
        yield gemv(DTYPE=BF16, ROWS=1 + 2 * i, N=[33, 40, 72, 17][i], K=[136, 520, 264, 776][i], GROUPS=groups, X_SHARED=shared,
                   COPY=copy, HAS_NORM=i % 2, HAS_BIAS=1, HAS_RESIDUAL=i // 2)
    yield gemv(DTYPE=BF16, ROWS=3, N=48, K=392, EPILOGUE=1, HAS_NORM=1)
    for activation in (1, 2, 3, 4, 5, 7):  # kernels/op/activation.cuh; 16: without a gate
        yield gemv(DTYPE=BF16, ROWS=3, N=48, K=392, EPILOGUE=16 + activation, HAS_BIAS=1)
    yield gemv(DTYPE=BF16, ROWS=3, N=48, K=392, EPILOGUE=3)
    for i, tile_k in enumerate((32, 64, 128)):
        yield mma(DTYPE=BF16, ROWS=20, VALID=17, N=81, K=264, TILE_N=32, TILE_M=16, TILE_K=tile_k, WARPS_N=2, WARPS_M=1,
                  WARPS_K=1 + i // 2, STAGES=3, HAS_RESIDUAL=1)
    yield mma(DTYPE=BF16, ROWS=20, N=48, K=264, TILE_K=64, EPILOGUE=1)
    yield mma(DTYPE=BF16, ROWS=20, N=48, K=264, TILE_K=64, EPILOGUE=4)
    yield mma(DTYPE=BF16, ROWS=20, N=48, K=264, TILE_K=64, EPILOGUE=21)
    yield wgmma(DTYPE=BF16, ROWS=40, VALID=33, N=72, K=264, TILE_M=32, TILE_K=64, HAS_BIAS=1)
    yield wgmma(DTYPE=BF16, ROWS=9, N=160, K=136, TILE_N=128, WARPGROUPS=2, EPILOGUE=1)
    yield wgmma(DTYPE=BF16, ROWS=9, N=160, K=520, TILE_N=128, WARPGROUPS=2, STAGES=4, PREFETCH=2)
    yield wgmma(DTYPE=BF16, ROWS=9, N=160, K=136, TILE_N=128, WARPGROUPS=2, EPILOGUE=3)
    yield wgmma(DTYPE=BF16, ROWS=9, N=160, K=136, TILE_N=128, WARPGROUPS=2, EPILOGUE=18)
