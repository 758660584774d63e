"""Two thousand random expressions: the interpreter and both compilers of the CPU say the same."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy
import pytest

from tests.fuzz.expressions import leaves_of, random_expression, random_leaf_value
from tiny_testing.kernels import Array, Bench, bench, element, load, store
from tinycore.builtin.python import BACKEND as PYTHON
from tinycore.dtype import DType, Scalar, dtypes, to_numpy_dtype
from tinycore.errors import CompilerUnavailable
from tinycore.uop.evaluate import evaluate
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.text import inline

tiny_cpu = pytest.importorskip("tiny_cpu")

EXPRESSIONS = 40
"""In one kernel."""
SIZE = 32
ROUNDS = 5
EXACT_ARCH = {"x86_64": "x86_64,x86-64-v3,-fma"}
"""Without fused multiply-add results are equal to the bit."""

MIXES = [
    (dtypes.int32,),
    (dtypes.int64, dtypes.int8),
    (dtypes.uint8, dtypes.int16),
    (dtypes.uint64, dtypes.uint32),
    (dtypes.float32,),
    (dtypes.float32, dtypes.int32, dtypes.uint8),
    (dtypes.float64, dtypes.float32, dtypes.uint64),
    (dtypes.float16, dtypes.float32, dtypes.int16),
    (dtypes.uint16, dtypes.int8, dtypes.float64),
    (dtypes.bool, dtypes.int32),
]
assert EXPRESSIONS * ROUNDS * len(MIXES) == 2000


@cache
def bench_for(renderer: str) -> Bench:
    if renderer == "PYTHON":
        return bench(PYTHON, "PYTHON")
    try:
        return bench(tiny_cpu.BACKEND, renderer, EXACT_ARCH.get(platform.machine(), "native"))
    except CompilerUnavailable as missing:
        pytest.skip(str(missing))


def drawn(random: Random, mix: Sequence[DType]) -> list[UOp]:
    """Expressions of the types of a mix and of bool."""
    types = (*mix, dtypes.bool)
    return [
        random_expression(random, random.choice(types), random.randint(2, 5), types)
        for _ in range(EXPRESSIONS)
    ]


def kernel_of(expressions: list[UOp], leaves: list[UOp], lanes: int, kind: AxisKind) -> UOp:
    """A kernel that stores every expression of the values its leaves have in memory."""
    counter = UOp.range(SIZE // lanes, 0, kind)
    index = counter * lanes
    known = {
        leaf: load(element(len(expressions) + slot, leaf.dtype, SIZE, index), leaf.dtype.vec(lanes))
        for slot, leaf in enumerate(leaves)
    }
    for node in UOp.sink(*expressions).toposort()[:-1]:
        if node in known:
            continue
        if node.op is Op.CONST:
            known[node] = UOp.const(node.dtype.vec(lanes), node.arg)
        else:
            src = tuple(known[s] for s in node.src)
            known[node] = UOp(node.op, node.dtype.vec(lanes), src, node.arg)
    stores = tuple(
        store(element(slot, root.dtype, SIZE, index), known[root])
        for slot, root in enumerate(expressions)
    )
    body = UOp(Op.GROUP, dtypes.void, stores)
    return UOp.sink(UOp(Op.END, dtypes.void, (body, counter)))


def values_for(random: Random, leaf: UOp) -> Array:
    """Value of a leaf in each element."""
    kind = to_numpy_dtype(leaf.dtype)
    return numpy.array([random_leaf_value(random, leaf) for _ in range(SIZE)], kind)


def differences(found: Array, expected: Array) -> list[int]:
    """The elements in which two results differ; any NaN equals any other."""
    both_nan = (found != found) & (expected != expected)
    return [int(place) for place in numpy.flatnonzero((found != expected) & ~both_nan)]


def compares_zeros(expression: UOp, values: dict[UOp, Scalar]) -> bool:
    """True if a MAX or MIN meets 0.0 and -0.0, of which it may return either."""
    extremes = [n for n in expression.toposort() if n.op in (Op.MAX, Op.MIN)]
    return any(
        n.dtype.kind == "float" and all(evaluate(s, values) == 0 for s in n.src) for n in extremes
    )


@pytest.mark.sample(10)
@pytest.mark.parametrize("renderer", ["CLANG", "LLVM"])
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(d.name for d in mix))
def test_compiled_expression_is_what_the_interpreter_says(
    mix: tuple[DType, ...], seed: int, renderer: str
) -> None:
    random = Random(f"{seed} {mix}")
    expressions = drawn(random, mix)
    used = UOp.sink(*expressions).toposort()
    leaves = [a for d in dict.fromkeys((*mix, dtypes.bool)) for a in leaves_of(d) if a in used]
    inputs = [values_for(random, leaf) for leaf in leaves]
    outputs = [numpy.zeros(SIZE, to_numpy_dtype(e.dtype)) for e in expressions]
    lanes = 4 if seed % 2 else 1

    expected = bench_for("PYTHON").run(
        kernel_of(expressions, leaves, lanes, AxisKind.GRID), *outputs, *inputs
    )
    found = bench_for(renderer).run(
        kernel_of(expressions, leaves, lanes, AxisKind.LOOP), *outputs, *inputs
    )
    for expression, got, want in zip(expressions, found, expected, strict=False):
        for place in differences(got, want):
            values = {a: v[place].item() for a, v in zip(leaves, inputs, strict=True)}
            assert compares_zeros(expression, values), (
                f"{got[place]!r} instead of {want[place]!r}\n{inline(expression)}\n{values}"
            )
