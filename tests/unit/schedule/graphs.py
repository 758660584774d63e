"""Small tensor graphs for scheduler tests, built from nodes: no frontend, no device."""

from __future__ import annotations

import math

from tinycore.dtype import DType, dtypes
from tinycore.schedule import kernelize
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op

DEVICE = UOp(Op.DEVICE, dtypes.void, (), "PYTHON")


def buffer(*shape: int, dtype: DType = dtypes.float32) -> UOp:
    flat = UOp(Op.BUFFER, dtype, (DEVICE, unique()), math.prod(shape))
    return reshape(flat, shape)


def reshape(x: UOp, shape: tuple[int, ...]) -> UOp:
    return x if x.shape == shape else UOp(Op.RESHAPE, x.dtype, (x,), shape)


def expand(x: UOp, shape: tuple[int, ...]) -> UOp:
    return UOp(Op.EXPAND, x.dtype, (x,), shape)


def permute(x: UOp, *order: int) -> UOp:
    return UOp(Op.PERMUTE, x.dtype, (x,), order)


def total(x: UOp, *axes: int, op: Op = Op.ADD) -> UOp:
    return UOp(Op.REDUCE_AXIS, x.dtype, (x,), (op, axes))


def assign(target: UOp, value: UOp) -> UOp:
    return UOp(Op.ASSIGN, target.dtype, (target, value))


def matmul(a: UOp, b: UOp) -> UOp:
    (rows, inner), columns = a.shape, b.shape[1]
    left = expand(reshape(a, (rows, 1, inner)), (rows, columns, inner))
    right = expand(reshape(permute(b, 1, 0), (1, columns, inner)), (rows, columns, inner))
    return reshape(total(left * right, 2), (rows, columns))


def kernels(*roots: UOp) -> list[UOp]:
    """The KERNEL nodes that roots are cut into, sources first."""
    cut = kernelize(roots)
    return [n for n in UOp.sink(*cut.values()).toposort() if n.op is Op.KERNEL]


def stores(kernel: UOp) -> int:
    return sum(n.op is Op.STORE for n in kernel.arg.ast.toposort())
