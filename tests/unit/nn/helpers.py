"""Run one layer here and its twin in torch, with the same weights, and compare everything.

torch computes in float64: the truth that both dtypes are measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.unit.tensor.helpers import Array, assert_close, make, numbers
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes
from tinycore.nn.state import get_state_dict

BOTH = (dtypes.float32, dtypes.float64)


def flat(results: Any) -> list[Any]:
    """All tensors in nested tuples."""
    if isinstance(results, (tuple, list)):
        return [tensor for result in results for tensor in flat(result)]
    return [results]


def weights_of(layer: Any) -> dict[str, Array]:
    """A layer's state as NumPy arrays."""
    return {name: tensor.numpy() for name, tensor in get_state_dict(layer).items()}


def given(layer: Any, weights: dict[str, Array], dtype: DType) -> dict[str, Tensor]:
    """Put weights into a layer, floats in `dtype`, without gradients; its tensors by name."""
    tensors = get_state_dict(layer)
    for name, tensor in tensors.items():
        is_float = dtypes.is_float(tensor.dtype)
        value = Tensor(weights[name], dtype=dtype if is_float else tensor.dtype)
        tensor.replace(value).grad = None
    return tensors


def copied(theirs: torch.nn.Module, weights: dict[str, Array]) -> dict[str, torch.Tensor]:
    """Give torch's layer the weights, in float64; its tensors by the same names."""
    theirs.double().zero_grad()
    known = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    for name, array in weights.items():
        with torch.no_grad():
            known[name].copy_(torch.tensor(array))
    return known


def weighted(results: Sequence[Any], wrap: Callable[[Array], Any]) -> Any:
    """A random combination of the elements of all results."""
    total = 0
    for number, result in enumerate(results):
        total = total + (result * wrap(numbers(*result.shape, seed=number + 1))).sum()
    return total


def assert_same(
    ours: Any,
    theirs: torch.nn.Module,
    *arrays: Array,
    training: bool = False,
    dtypes_used: Sequence[DType] = BOTH,
    call: Callable[..., Any] | None = None,
    twin: Callable[..., Any] | None = None,
    scale: float = 4.0,
) -> None:
    """Results, gradients of inputs and weights, and statistics agree, in every dtype.

    `call` and `twin` say how the layers are called, when it is not by the inputs alone.
    """
    weights = weights_of(ours)
    theirs.train(training)
    for dtype in dtypes_used:
        tensors, known = given(ours, weights, dtype), copied(theirs, weights)
        inputs = [make(array, dtype) for array in arrays]
        with Context(TRAINING=training):
            found = flat((call or ours)(*[x for x, _ in inputs]))
            weighted(found, lambda a, to=dtype: Tensor(a, dtype=to)).backward()  # type: ignore[misc]
        realized([*found, *tensors.values(), *[x for x, _ in inputs]])
        expected = flat((twin or theirs)(*[x for _, x in inputs]))
        weighted(expected, torch.tensor).backward()
        assert len(found) == len(expected)
        for number, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert a.dtype is dtype
            assert_close(a, b, dtype, f"result {number} in {dtype!r}", scale)
        pairs = {f"input {n}": pair for n, pair in enumerate(inputs)}
        pairs |= {name: (tensor, known[name]) for name, tensor in tensors.items()}
        assert_gradients(pairs, dtype, scale)


def realized(tensors: Sequence[Tensor]) -> None:
    """Compute tensors and their gradients as one graph, which shares what they have in common."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    Tensor.realize(*tensors, *gradients)


def assert_gradients(
    pairs: dict[str, tuple[Tensor, torch.Tensor]], dtype: DType, scale: float
) -> None:
    """Tensors and their gradients agree."""
    for name, (a, b) in pairs.items():
        assert_close(a, b, dtype, f"{name} in {dtype!r}", scale)
        if b.grad is not None:
            assert a.grad is not None, f"{name} has no gradient"
            assert_close(a.grad, b.grad, dtype, f"gradient of {name} in {dtype!r}", 4 * scale)
