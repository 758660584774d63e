"""Matrix units of real instruction sets, as data, for tests that need some."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tiny_testing.loads import TileLoad
from tinycore.dtype import dtypes
from tinycore.plugin import deferred
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp


def stored_late(kernel: UOp) -> UOp:
    """The kernel: its threads fill shared memory for later steps themselves."""
    return kernel


COPIES: Final = deferred(f"{__name__}:stored_late")
"""Copies as far as plans know of them (`Limits.copies`), on a card that the interpreter plays."""
MMA: Final = MatrixUnit(
    *("mma_m16n8k16_f16", 16, 8, 16, dtypes.float16, dtypes.float16, dtypes.float32, 32),
    *("k2 k4 m1 m2 m4 | k1 m8 k8", "k2 k4 n1 n2 n4 | k1 k8", "n2 n4 m1 m2 m4 | n1 m8"),
)
"""PTX ISA, mma.sync.m16n8k16."""
MMA_BFLOAT: Final = MatrixUnit(
    *("mma_m16n8k16_bf16", 16, 8, 16, dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, 32),
    *(MMA.a_map, MMA.b_map, MMA.out_map),
)
MMA_INT8: Final = MatrixUnit(
    *("mma_m16n8k32_s8", 16, 8, 32, dtypes.int8, dtypes.int8, dtypes.int32, 32),
    *("k4 k8 m1 m2 m4 | k1 k2 m8 k16", "k4 k8 n1 n2 n4 | k1 k2 k16", MMA.out_map),
)
WMMA: Final = MatrixUnit(
    *("wmma_16x16x16_f16", 16, 16, 16, dtypes.float16, dtypes.float16, dtypes.float32, 32),
    *("m1 m2 m4 m8 - | k1 k2 k4 k8", "n1 n2 n4 n8 - | k1 k2 k4 k8"),
    "n1 n2 n4 n8 m1 | m2 m4 m8",
)
"""RDNA 3 ISA, v_wmma_f32_16x16x16_f16 in wave32: lanes 16 to 31 repeat 0 to 15."""
WMMA_BLOCKS: Final = MatrixUnit(
    *("wmma_blocks_16x16x16_f16", 16, 16, 16, dtypes.float16, dtypes.float16, dtypes.float32, 32),
    *("m1 m2 m4 m8 k8 | k1 k2 k4", "n1 n2 n4 n8 k8 | k1 k2 k4", "n1 n2 n4 n8 m8 | m1 m2 m4"),
)
"""RDNA 4 ISA, the instruction of the same name: lanes 16 to 31 hold the other steps and rows."""
MFMA: Final = MatrixUnit(
    *("mfma_16x16x16_f16", 16, 16, 16, dtypes.float16, dtypes.float16, dtypes.float32, 64),
    *("m1 m2 m4 m8 k4 k8 | k1 k2", "n1 n2 n4 n8 k4 k8 | k1 k2", "n1 n2 n4 n8 m4 m8 | m1 m2"),
)
"""CDNA 3 ISA, v_mfma_f32_16x16x16_f16."""
SIMDGROUP: Final = MatrixUnit(
    *("simdgroup_8x8", 8, 8, 8, dtypes.float32, dtypes.float32, dtypes.float32, 32),
    *("k2 m1 m2 k4 m4 | k1", "n2 k1 k2 n4 k4 | n1", "n2 m1 m2 n4 m4 | n1"),
)
"""simdgroup_matrix of Metal, as Asahi's and MLX's notes have it."""
DOT: Final = MatrixUnit(
    *("dot4", 1, 1, 4, dtypes.int8, dtypes.int8, dtypes.int32, 1, "| k1 k2", "| k1 k2", "|"),
)
"""The product of two vectors of four, as in dp4a."""
OUTER: Final = MatrixUnit(
    *("rows8", 1, 8, 2, dtypes.int16, dtypes.int16, dtypes.int32, 1),
    *("| k1", "| k1 n1 n2 n4", "| n1 n2 n4"),
)
"""A vector of 8 sums of two products each, as of vpmaddwd."""
TILE_BYTES: Final = MatrixUnit(
    *("tile_16x16x64_s8", 16, 16, 64, dtypes.int8, dtypes.int8, dtypes.int32, 1),
    *("| k1 k2 k4 k8 k16 k32 m1 m2 m4 m8", "| k1 k2 n1 n2 n4 n8 k4 k8 k16 k32"),
    "| n1 n2 n4 n8 m1 m2 m4 m8",
)
"""AMX, tdpbssd: tiles of 16 rows of 64 bytes, the second with fours of its rows side by side."""
TILE_SHORTS: Final = MatrixUnit(
    *("tile_16x16x32_s16", 16, 16, 32, dtypes.int16, dtypes.int16, dtypes.int32, 1),
    *("| k1 k2 k4 k8 k16 m1 m2 m4 m8", "| k1 n1 n2 n4 n8 k2 k4 k8 k16", TILE_BYTES.out_map),
)
"""The same of 16 bits, with pairs of rows side by side, as tdpbf16ps has them."""
LOAD: Final = TileLoad("load_tiles", turned_bytes=2)
"""Loads of tiles, turned those of elements of 2 bytes."""
LOADED: Final = tuple(replace(unit, load=LOAD) for unit in (MMA, MMA_BFLOAT, MMA_INT8))
UNITS: Final = (MMA, MMA_BFLOAT, MMA_INT8, WMMA, WMMA_BLOCKS, MFMA, SIMDGROUP, DOT, OUTER)
