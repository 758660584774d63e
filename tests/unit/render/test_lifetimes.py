"""Shared arrays whose lives do not meet: which these are, and that kernels overlay them rightly."""

from __future__ import annotations

import numpy
import pytest

from tinycore import Context, Device, Tensor
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.dtype import DType, dtypes
from tinycore.lower.pipeline import lower
from tinycore.render.base import LinearKernel
from tinycore.render.lifetimes import arrays_apart
from tinycore.uop.instruction import Effect
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

EMPTY = UOp(Op.GROUP, dtypes.void)
LOOP = UOp.range(4, 0)
END = UOp(Op.END, dtypes.void, (EMPTY, LOOP))
Program = list[UOp]


def array(number: int, size: int = 8, dtype: DType = dtypes.float32) -> UOp:
    return UOp(Op.DEFINE_LOCAL, dtype.ptr(size, "local"), (), number)


def place(memory: UOp) -> UOp:
    return UOp(Op.INDEX, memory.dtype, (memory, UOp.index(0)))


def written(memory: UOp) -> UOp:
    return UOp(Op.STORE, dtypes.void, (place(memory), UOp.const(memory.dtype.base, 0)))  # type: ignore[attr-defined]


def read(memory: UOp) -> UOp:
    return UOp(Op.LOAD, memory.dtype.base, (place(memory),))  # type: ignore[attr-defined]


def barrier(number: int, arg: int | None = None) -> UOp:
    return UOp(Op.BARRIER, dtypes.void, (UOp.range(2, 100 + number),), arg)


A, B, C = (array(number) for number in range(3))
FOLDS = [written(A), barrier(0), read(A), written(B), barrier(1), read(B), written(C), barrier(2)]
FOLDS += [read(C)]


def test_the_array_of_every_other_fold_is_the_same_memory() -> None:
    apart = arrays_apart(FOLDS)

    assert apart == {A: {C}, B: set(), C: {A}}
    kernel = LinearKernel("folds", (A, B, C, *FOLDS), is_overlaid=True)
    assert kernel.shared_layout == {A: 0, B: 32, C: 0}
    assert kernel.shared_bytes == 64
    assert kernel.has_overlaps
    assert LinearKernel("folds", (A, B, C, *FOLDS)).shared_bytes == 96


def test_an_array_of_another_type_and_size_overlaps_what_it_covers() -> None:
    wide = array(2, 64, dtypes.float16)
    lines = [wide if u is C else u for u in FOLDS[:6]] + [written(wide), barrier(2), read(wide)]
    kernel = LinearKernel("folds", (A, B, wide, *lines), is_overlaid=True)

    assert kernel.shared_layout == {A: 0, B: 32, wide: 64}  # the place of the first is too small


STAGED = [LOOP, barrier(0), written(A), barrier(1), read(A), barrier(2), written(B), barrier(3)]
STAGED += [read(B), END]
CHAINS: dict[str, tuple[Program, bool]] = {
    "filled in turn in each step": (STAGED, True),
    "no barrier between steps": ([u for u in STAGED if u is not STAGED[1]], False),
    "no barrier between arrays": ([u for u in STAGED if u is not STAGED[5]], False),
    "read before it is filled": ([LOOP, barrier(4), read(A), *STAGED[1:]], False),
    "filled before the loop": ([written(A), *STAGED], False),
    "products under way": (
        [u if u is not STAGED[5] else barrier(2, 1) for u in STAGED],
        False,
    ),
    "a loop, and what follows": (
        [LOOP, barrier(0), written(A), barrier(1), read(A), END, barrier(2), written(B), read(B)],
        True,
    ),
    "a loop, and what follows at once": (
        [LOOP, barrier(0), written(A), barrier(1), read(A), END, written(B), barrier(2), read(B)],
        False,
    ),
    "a barrier in the loop alone": (
        [written(A), read(A), LOOP, barrier(0), END, written(B), read(B)],
        False,
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_arrays_are_apart_where_all_threads_meet_between_them(name: str) -> None:
    lines, expected = CHAINS[name]
    apart = arrays_apart(lines)

    assert (apart[A] == {B}) == expected
    assert (apart[B] == {A}) == expected


class Begun(Effect):
    """A copy that goes on."""


def test_what_is_copied_behind_the_threads_back_stays_alone() -> None:
    source = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(8), (), 0)
    begun = UOp(Op.INSTRUCTION, dtypes.void, (place(A), place(source)), Begun())
    lines = [begun, barrier(0), read(A), barrier(1), written(B), barrier(2), read(B)]

    assert arrays_apart(lines) == {B: set()}


class Overlaid(PythonRenderer):
    """The interpreter, whose arrays lie where the layout says."""

    overlays_shared = True


def test_a_kernel_of_four_folds_computes_in_the_memory_of_two() -> None:
    x = numpy.random.default_rng(0).standard_normal((4, 4096)).astype(numpy.float32)
    with Context(DEV="PYTHON::groups=64"):
        limits = Device["PYTHON"].toolchain.renderer.limits
        tensor = Tensor(x, device="PYTHON").realize()
        powers = tensor.softmax()
        centered = powers - powers.mean(1, keepdim=True)
        result = centered / powers.std(1, keepdim=True)
        kernels = [
            lower(item.ast, Overlaid(limits), "folds")
            for item in result.schedule()
            if item.ast.op is not Op.COPY
        ]
        found = result.numpy()
    expected = numpy.exp(x - x.max(1, keepdims=True)).astype(numpy.float64)
    expected /= expected.sum(1, keepdims=True)
    expected -= expected.mean(1, keepdims=True)
    expected /= expected.std(1, ddof=1, keepdims=True)

    assert any(kernel.has_overlaps for kernel in kernels)
    numpy.testing.assert_allclose(found, expected, 1e-3, 1e-4)
