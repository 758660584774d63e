"""Transcendental functions and small floats as compiled code computes them, with fused products."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy
import pytest

from tiny_cpu import BACKEND
from tiny_testing.kernels import Array, Bench, bench, elementwise, ulps
from tinycore import Context
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.uop.op import Op

SIZE = 1 << 16
EXACT = {Op.EXP: numpy.exp, Op.EXP2: numpy.exp2, Op.LOG: numpy.log, Op.LOG2: numpy.log2}
SPECIAL = [0.0, -0.0, 1.0, -1.0, numpy.inf, -numpy.inf, numpy.nan, 1e-40, 88.7228, -103.9, 127.9999]


@pytest.fixture(autouse=True)
def subnormal_numbers_are_kept() -> Iterator[None]:
    """Functions are exact below the normal range, too, where the processor is."""
    with Context(FLUSH_SUBNORMALS=0):
        yield


@cache
def bench_for(toolchain: str) -> Bench:
    return bench(BACKEND, toolchain)


def arguments(dtype: DType) -> Array:
    """Floats of every magnitude, and many near those where the functions bend."""
    random = numpy.random.default_rng(5)
    kind = to_numpy_dtype(dtype)
    bits = random.integers(0, 2**dtype.bits, SIZE, dtype=numpy.uint64)
    values = bits.astype(f"u{dtype.itemsize}").view(kind)
    quarter = SIZE // 4
    with numpy.errstate(all="ignore"):
        values[:quarter] = random.standard_normal(quarter) * 8
        wide = 110 if dtype is dtypes.float32 else 800
        values[quarter : 2 * quarter] = (random.random(quarter) * 2 - 1) * wide
        values[2 * quarter : 2 * quarter + 500] = 1 + random.standard_normal(500) * 1e-3
        values[-len(SPECIAL) :] = SPECIAL
    return values


@pytest.mark.sample(3)
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_exponentials_and_logarithms(toolchain: str, dtype: DType, lanes: int) -> None:
    if numpy.finfo(numpy.longdouble).nmant <= 52 and dtype is dtypes.float64:
        pytest.skip("no type longer than float64 to compare with")
    x = arguments(dtype)
    kernel = elementwise(lambda a: [a.alu(op) for op in EXACT], [dtype], SIZE, lanes)
    found = bench_for(toolchain).run(kernel, *(numpy.zeros_like(x) for _ in EXACT), x)
    with numpy.errstate(all="ignore"):
        exact = [function(x.astype(numpy.longdouble)) for function in EXACT.values()]

    worst = {op.name: ulps(f, e).max() for op, f, e in zip(EXACT, found, exact, strict=False)}
    assert max(worst.values()) < 1.2, worst


@pytest.mark.parametrize("lanes", [1, 16])
def test_sine_of_float32_at_any_size(toolchain: str, lanes: int) -> None:
    x = arguments(dtypes.float32)
    x[:1000] = numpy.arange(1000) * (numpy.pi / 2)
    kernel = elementwise(lambda a: [a.alu(Op.SIN)], [dtypes.float32], SIZE, lanes)
    found = bench_for(toolchain).run(kernel, numpy.zeros_like(x), x)[0]
    with numpy.errstate(all="ignore"):
        exact = numpy.sin(x.astype(numpy.float64))

    assert ulps(found, exact).max() < 1.7


SMALL = (dtypes.bfloat16, dtypes.float16, *dtypes.fp8s)


@pytest.mark.parametrize("arch", ["native", "x86_64,x86-64"])
@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_every_small_float_survives_a_round_trip(toolchain: str, dtype: DType, arch: str) -> None:
    cpu = bench(BACKEND, toolchain, "native")
    if arch != "native" and not cpu.toolchain.arch.startswith("x86_64"):
        pytest.skip("this machine is not x86-64")
    cpu = bench(BACKEND, toolchain, arch)
    codes = numpy.arange(2**dtype.bits, dtype=f"u{dtype.itemsize}")
    kernel = elementwise(
        lambda a: [a.cast(dtypes.float32), a.cast(dtypes.float32).cast(dtype)],
        [dtype],
        codes.size,
        16,
    )
    wide, again, _ = cpu.run(kernel, numpy.zeros(codes.size, numpy.float32), codes * 0, codes)

    number = ~numpy.isnan(wide)
    numpy.testing.assert_array_equal(again[number], codes[number])
