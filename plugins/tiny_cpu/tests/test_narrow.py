"""Products of narrow numbers with wide sums: each operand is widened once, and exactly."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tiny_cpu import BACKEND
from tiny_cpu.arch import Arch
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import CompileError
from tinycore.lower.pipeline import lower
from tinycore.plugin import SupportsAssembly
from tinycore.uop.op import Op

Case = tuple[tuple[int, ...], tuple[int, ...], bool, bool]

CASES: dict[str, Case] = {
    "even": ((96, 64), (64, 128), False, False),
    "left turned": ((96, 64), (64, 128), True, False),
    "odd": ((77, 77), (77, 77), False, False),
    "right turned": ((77, 77), (77, 77), False, True),
    "long": ((203, 305), (305, 77), True, True),
    "few columns": ((61, 33), (33, 21), False, False),
    "one row": ((1, 300), (300, 200), False, False),
    "batched": ((3, 50, 40), (3, 40, 70), False, False),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def floats(shape: tuple[int, ...], dtype: DType, seed: int) -> Tensor:
    """Numbers of a narrow type on the CPU."""
    values = numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)
    return Tensor(values, device="CPU").cast(dtype).realize()


def integers(shape: tuple[int, ...], dtype: DType, seed: int) -> Tensor:
    """Any numbers of an integer type on the CPU."""
    kind: Any = to_numpy_dtype(dtype)
    limits = numpy.iinfo(kind)
    generator = numpy.random.default_rng(seed)
    return Tensor(generator.integers(limits.min, limits.max + 1, shape, kind), device="CPU")


def laid_out(tensor: Tensor, turned: bool) -> Tensor:
    """The same matrix, its columns side by side in memory where it is turned."""
    return tensor.transpose(-1, -2).contiguous().realize().transpose(-1, -2) if turned else tensor


@pytest.mark.sample(12)
@cases
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=lambda d: d.name)
def test_products_of_narrow_floats(dtype: DType, case: Case) -> None:
    *shapes, left, right = case
    a, b = (floats(shape, dtype, seed) for seed, shape in enumerate(shapes))
    expected = a.cast(dtypes.float32).numpy() @ b.cast(dtypes.float32).numpy()

    found = laid_out(a, left).matmul(laid_out(b, right), dtype=dtypes.float32)

    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_windows_of_narrow_floats() -> None:
    x, weight = (
        floats((2, 8, 15, 17), dtypes.bfloat16, 0),
        floats((24, 8, 3, 3), dtypes.bfloat16, 1),
    )
    wide = [t.cast(dtypes.float32).realize() for t in (x, weight)]

    found = x.conv2d(weight, padding=1, dtype=dtypes.float32)

    expected = wide[0].conv2d(wide[1], padding=1).numpy()
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(12)
@cases
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int16], ids=lambda d: d.name)
def test_products_of_narrow_integers(dtype: DType, case: Case) -> None:
    """Products of int16 wrap, as sums of int32 do."""
    *shapes, left, right = case
    a, b = (integers(shape, dtype, seed) for seed, shape in enumerate(shapes))
    expected = a.numpy().astype(numpy.int32) @ b.numpy().astype(numpy.int32)

    found = laid_out(a, left).matmul(laid_out(b, right), dtype=dtypes.int32)

    numpy.testing.assert_array_equal(found.numpy(), expected)


def test_the_least_products_wrap_at_once(toolchain: str) -> None:
    least = numpy.full((64, 64), -32768, numpy.int16)
    expected = least.astype(numpy.int32) @ least.astype(numpy.int32)

    with Context(DEV=f"CPU:{toolchain}"):
        found = Tensor(least).matmul(Tensor(least), dtype=dtypes.int32).numpy()

    numpy.testing.assert_array_equal(found, expected)
    assert expected[0, 0] == 0  # 64 times 2**30
    three = least[:, :3].astype(numpy.int32) @ least[:3].astype(numpy.int32)
    with Context(DEV=f"CPU:{toolchain}"):
        found = Tensor(least[:, :3]).matmul(Tensor(least[:3]), dtype=dtypes.int32).numpy()
    numpy.testing.assert_array_equal(found, three)


def test_signs_may_differ(toolchain: str) -> None:
    a = integers((100, 60), dtypes.int8, 0).numpy()
    b = integers((60, 100), dtypes.uint8, 1).numpy()

    with Context(DEV=f"CPU:{toolchain}"):
        found = Tensor(a).matmul(Tensor(b), dtype=dtypes.int32).numpy()

    numpy.testing.assert_array_equal(found, a.astype(numpy.int32) @ b.astype(numpy.int32))


# The instructions


PROCESSORS = {
    "x86_64,x86-64": ("pmaddwd", 16),
    "x86_64,haswell": ("vpmaddwd", 32),
    "x86_64,skylake-avx512": ("vpmaddwd", 64),
    "x86_64,znver4": ("vpdpwssd", 64),
    "x86_64,alderlake": ("vpdpwssd", 32),
}


@pytest.mark.parametrize(("arch", "words"), PROCESSORS.items(), ids=PROCESSORS)
def test_processors_fold_pairs_of_products(
    toolchain: str, arch: str, words: tuple[str, int]
) -> None:
    instruction, size = words
    a = Tensor.empty(96, 64, dtype="int8", device="CPU")
    item = a.matmul(Tensor.empty(64, 128, dtype="int8", device="CPU"), dtype="int32").schedule()[-1]
    found = BACKEND.renderers[toolchain](arch)

    linear = lower(item.ast, found.renderer, "product")

    dots = {n.src[0].dtype.size_bytes for n in linear.uops if n.op is Op.DOT}
    assert dots == {size}
    assert isinstance(found.compiler, SupportsAssembly)
    try:
        assembly = found.compiler.assembly(found.renderer.render(linear))
    except CompileError as error:
        if "unknown target CPU" not in error.log:
            raise
        pytest.skip(f"this clang is older than {arch}")
    assert instruction in assembly


@pytest.mark.parametrize("arch", ["x86_64,sandybridge", "x86_64,knl", "aarch64"])
def test_processors_without_the_instruction(arch: str) -> None:
    assert Arch.parse(arch).limits().pair_bytes < Arch.parse(arch).limits().vector_bytes
