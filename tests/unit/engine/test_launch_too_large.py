"""Kernels whose groups turn out too large once they are compiled are lowered again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import pytest

from tinycore import Context, Tensor
from tinycore.builtin.interpreter import PythonProgram, PythonRuntime
from tinycore.builtin.interpreter import toolchain as interpreted
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError, LaunchTooLarge
from tinycore.plugin import Backend, ProgramInfo, Toolchain, register, unregister
from tinycore.render.base import Renderer

NAME = "CROWDED"


@dataclass
class Card:
    """A card whose compiler leaves room for fewer threads than its limits say."""

    most: int
    told: int = 0
    """Number of threads in the error; `most` for 0."""
    loaded: list[int] = field(default_factory=list)
    """Threads in a group of the kernels that were loaded."""
    refused: list[int] = field(default_factory=list)

    def open(self, index: int, interface: str) -> Any:
        card = self

        class Runtime(PythonRuntime):
            """PYTHON, whose registers are few."""

            def load(self, binary: bytes, info: ProgramInfo) -> PythonProgram:
                x, y, z = info.block
                if x * y * z > card.most:
                    card.refused.append(x * y * z)
                    text = f"{info.name} has groups of {x * y * z}, {card.most} fit"
                    raise LaunchTooLarge(text, most=card.told or card.most)
                card.loaded.append(x * y * z)
                return super().load(binary, info)

        return Runtime(index, interface)


def toolchain(arch: str) -> Toolchain[Renderer]:
    made = interpreted("groups=4")
    limits = replace(
        made.renderer.limits, block=(256, 256, 64), block_threads=256, block_wanted=256
    )
    return replace(made, renderer=replace(made.renderer, limits=limits))


@pytest.fixture
def card() -> Iterator[Card]:
    made = Card(most=32)
    register(
        Backend(
            name=NAME,
            api=(2, 0),
            open=made.open,
            renderers={"PYTHON": toolchain},
            capabilities=frozenset({"local_memory", "host_memory"})
            | {dtype.name for dtype in dtypes.all},
            priority=-1,
        )
    )
    yield made
    unregister(NAME)


def numbers(*shape: int) -> Any:
    return numpy.arange(numpy.prod(shape), dtype=numpy.float32).reshape(shape) % 7


@pytest.mark.parametrize("cached", [0, 1])
def test_a_kernel_is_lowered_again_for_the_threads_that_fit(card: Card, cached: int) -> None:
    with Context(CCACHE=cached):
        found = (Tensor(numbers(64, 96), device=NAME) + 1).numpy()

    assert (found == numbers(64, 96) + 1).all()
    assert card.refused == [256]
    assert card.loaded
    assert max(card.loaded) <= 32


def test_sums_and_products_in_smaller_groups(card: Card) -> None:
    a, b = numbers(32, 48), numbers(48, 16)

    product = (Tensor(a, device=NAME) @ Tensor(b, device=NAME)).numpy()
    total = Tensor(numbers(3, 4096), device=NAME).sum(1).numpy()

    numpy.testing.assert_allclose(product, a @ b)
    numpy.testing.assert_allclose(total, numbers(3, 4096).sum(1))
    assert card.refused
    assert max(card.loaded) <= 32


@pytest.mark.parametrize("told", [256, 1024, -1])
def test_an_error_that_leaves_no_way_is_raised(card: Card, told: int) -> None:
    """No more threads than before fit, or none at all: lowering again would not end."""
    card.told = told

    with pytest.raises(LaunchTooLarge, match="has groups of 256, 32 fit"):
        (Tensor(numbers(64, 96), device=NAME) + 1).numpy()
    assert card.refused == [256]


def test_the_error_is_one_of_devices_and_crosses_processes() -> None:
    error = LaunchTooLarge("kernel k has groups of 1024 threads, 512 fit", most=512)

    again = pickle.loads(pickle.dumps(error))

    assert isinstance(error, DeviceError)
    assert (str(again), again.most) == (str(error), 512)
