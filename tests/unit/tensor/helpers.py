"""Run one function on tensors here and in torch, and compare values and gradients.

torch computes in float64: the truth that both dtypes are measured against. Where the tensors run
is decided by `conftest.py`: on the default device, or with TENSOR_TESTS=reference on the plain
evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch

from tinycore import Device
from tinycore.dtype import DType, dtypes
from tinycore.tensor import Tensor
from tinycore.tensor.storage.storage import of_memory, waiting

TOLERANCES = {
    dtypes.float64: (1e-9, 1e-10),
    dtypes.float32: (2e-5, 2e-5),
    dtypes.float16: (2e-3, 2e-3),
    dtypes.bfloat16: (2e-2, 2e-2),
}
"""(relative, absolute) distance from the float64 result that rounding explains."""

Function = Callable[..., Any]
Array = numpy.ndarray[Any, numpy.dtype[Any]]

RECIPROCALS = frozenset({"QCOM:IR3"})
"""Targets that have no division: a quotient is a product with a reciprocal, which is rounded too,
within OpenCL's 2.5 units, and ends where the reciprocal does. docs/numerics.md says so."""


def numbers(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Random float64 numbers, none twice."""
    drawn = numpy.random.default_rng([seed, *shape]).uniform(low, high, shape)
    return numpy.asarray(drawn).astype(numpy.float32).astype(numpy.float64)


def integers(*shape: int, low: int = -9, high: int = 9, seed: int = 0) -> Array:
    """Random int32 numbers."""
    return numpy.random.default_rng([seed, *shape]).integers(low, high, shape).astype(numpy.int32)


def as_list(result: Any) -> list[Any]:
    """The results of a function that returns one or several."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def make(array: Array, dtype: DType) -> tuple[Tensor, torch.Tensor]:
    """One input on both sides: floats in `dtype` here and float64 there, others as they are."""
    if array.dtype.kind != "f":
        return Tensor(array), torch.tensor(array)
    tensor = Tensor(array, dtype=dtype)
    return tensor, torch.tensor(tensor.numpy().astype(numpy.float64), requires_grad=True)


def assert_close(
    ours: Tensor, theirs: torch.Tensor, dtype: DType, what: str, scale: float = 1.0
) -> None:
    """Same shape, same kind, and values within the tolerance of the dtype."""
    expected = theirs.detach().numpy()
    assert ours.shape == tuple(expected.shape), (
        f"{what}: shape {ours.shape} instead of {expected.shape}"
    )
    relative, absolute = TOLERANCES[dtype]
    numpy.testing.assert_allclose(
        ours.numpy().astype(expected.dtype),
        expected,
        relative * scale,
        absolute * scale,
        err_msg=what,
    )


def compare(
    ours: Function,
    theirs: Function | None,
    *inputs: Array,
    dtypes_used: Sequence[DType] = (dtypes.float32, dtypes.float64),
    gradient: bool = True,
    scale: float = 1.0,
) -> None:
    """Values and gradients of `ours` on tensors, of `theirs` (or the same function) on torch's.

    In every dtype of `dtypes_used` that the device has.
    """
    for dtype in claimed(dtypes_used):
        pairs = [make(x, dtype) for x in inputs]
        results = as_list(ours(*[a for a, _ in pairs]))
        expected = as_list((theirs or ours)(*[b for _, b in pairs]))
        assert len(results) == len(expected)
        for number, (a, b) in enumerate(zip(results, expected, strict=True)):
            assert_close(a, b, dtype, f"result {number} in {dtype!r}", scale)
        if gradient:
            compare_gradients(pairs, results, expected, dtype, scale)


def claimed(wanted: Sequence[DType]) -> list[DType]:
    """The dtypes that the default device computes in; skips the test where there are none."""
    words = Device.backend(Device.DEFAULT).capabilities
    found = [dtype for dtype in wanted if dtype.name in words]
    if not found:
        pytest.skip(f"{Device.DEFAULT} has no {', '.join(dtype.name for dtype in wanted)}")
    return found


def compare_gradients(
    pairs: list[tuple[Tensor, torch.Tensor]],
    results: list[Tensor],
    expected: list[torch.Tensor],
    dtype: DType,
    scale: float,
) -> None:
    """Gradients of a random combination of the float results with respect to all float inputs."""
    total, truth = None, None
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        if not b.requires_grad:
            continue
        weights = numbers(*a.shape, low=0.5, high=1.5, seed=number + 1)
        mine, right = (a * Tensor(weights, dtype=a.dtype)).sum(), (b * torch.tensor(weights)).sum()
        total, truth = (
            (mine, right) if total is None or truth is None else (total + mine, truth + right)
        )
    assert total is not None
    assert truth is not None
    truth.backward()  # type: ignore[no-untyped-call]
    wanted = [(a, b) for a, b in pairs if b.requires_grad]
    for number, (gradient, (_, b)) in enumerate(
        zip(total.gradient(*[a for a, _ in wanted]), wanted, strict=True)
    ):
        right = torch.zeros_like(b) if b.grad is None else b.grad
        assert_close(gradient, right, dtype, f"gradient {number} in {dtype!r}", 4 * scale)


def live_tensors() -> list[Any]:
    """Every living tensor, in order of creation of their storages."""
    held = [*list(waiting.values()), *list(of_memory.values())]
    found = {storage.number: storage for r in held if (storage := r()) is not None}
    return [tensor for number in sorted(found) for tensor in found[number].tensors()]
