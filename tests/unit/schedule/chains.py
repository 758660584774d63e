"""Cards with a matrix unit whose sums are operands, and attention in double precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy

from tests.unit.lower.matrices import COPIES, LOADED
from tiny_testing.accelerator.device import LIMITS
from tinycore import Device, Tensor, dtypes
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Op

Array = numpy.ndarray
HALF, BFLOAT, _ = LOADED
TOLERANCES = {dtypes.float16: 2e-3, dtypes.bfloat16: 2e-2, dtypes.float32: 1e-5}


def card_with(*units: MatrixUnit) -> Limits:
    """A card with some matrix units and copies that go on meanwhile."""
    return replace(
        LIMITS,
        threads=1 << 8,
        block_wanted=2 * units[0].threads,
        block_threads=256,
        block=(256, 256, 64),
        vector_bytes=16,
        shared_bytes=48 << 10,
        subgroup=units[0].threads,
        matrix=units,
        copies=COPIES,
    )


HOST: Final = "PYTHON" if Device.plugins.find("CPU") is None else "CPU"
"""Device on which operands are made: a processor where one is installed, which is faster."""


def numbers(*shape: int, scale: float = 1.0) -> Array:
    found = numpy.random.default_rng(sum(shape)).standard_normal(shape) * scale
    return found.astype(numpy.float32)


def operands(unit: MatrixUnit, *shapes: tuple[int, ...], scale: float = 1.0) -> list[Tensor]:
    """Numbers on the card, as its unit takes them."""
    found = (Tensor(numbers(*shape, scale=scale), device=HOST).cast(unit.a) for shape in shapes)
    return [x.realize().to("CARD").realize() for x in found]


def attention(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """Attention in double precision; 0 where all is masked."""
    query, key, value = (x.astype(numpy.float64) for x in (query, key, value))
    scores = query @ numpy.swapaxes(key, -1, -2) / numpy.sqrt(query.shape[-1])
    if mask is not None:
        scores = numpy.where(mask, scores, -numpy.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    weights = numpy.exp(scores - numpy.where(top == -numpy.inf, 0, top))
    total = weights.sum(-1, keepdims=True)
    result: Array = weights @ value / numpy.where(total == 0, 1, total)
    return result


def launches(result: Tensor) -> int:
    """The kernels that compute a result."""
    return sum(item.ast.op is not Op.COPY for item in result.schedule())


def plain(x: Tensor) -> Array:
    """The numbers of a tensor in single precision."""
    return x.to(HOST).float().numpy()


def is_by_unit(result: Tensor, limits: Limits) -> bool:
    """True if the only kernel of a result has products on a matrix unit."""
    (item,) = (item for item in result.schedule() if item.ast.op is not Op.COPY)
    linear = lower(item.ast, PythonRenderer(limits), "chain", plan_for(item.ast, limits))
    return any(u.op is Op.MATRIX for u in linear.uops)


def check(result: Tensor, unit: MatrixUnit, expected: Array, limits: Limits | None = None) -> None:
    """The result, in one kernel by the unit, is what is expected."""
    assert launches(result) == 1
    assert is_by_unit(result, limits or card_with(unit))
    tolerance = TOLERANCES[unit.a]
    most = max(float(numpy.abs(expected).max()), 1.0)
    numpy.testing.assert_allclose(plain(result), expected, rtol=tolerance, atol=tolerance * most)
