"""Products of matrices that a plugin's tests run on the stand-in of its hardware, against NumPy.

Each program asserts what it computes, and how many of its kernels have a matrix instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy
import pluggy
from tensor_programs import TensorPrograms, numbers

from tiny_testing.kernels import Array
from tinycore import Context, Tensor, dtypes
from tinycore._lru import Lru
from tinycore.dtype import DType
from tinycore.engine import compile as compiling
from tinycore.plugin import Backend, Toolchain, register_observer, unregister_observer

__all__ = [
    "SIZES",
    "TOLERANCES",
    "MatrixPrograms",
    "Sources",
    "for_few_threads",
    "noted",
    "small_integers",
]

SIZES: Final = [(16, 32, 8), (5, 64, 40), (37, 50, 29), (64, 96, 64), (130, 70, 100)]
"""Rows, steps and columns: whole tiles, parts of tiles, fewer rows than a tile."""
TOLERANCES: Final = {dtypes.half: 1e-3, dtypes.bfloat16: 8e-3}
"""Tolerance of a result that is rounded to the type."""


class Sources:
    """Notes the source of every kernel that is compiled."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @pluggy.HookimplMarker("tinycore")
    def tinycore_kernel_compiled(self, source: str) -> None:
        self.texts.append(source)

    def count(self, text: str) -> int:
        """Kernels with a text in their source."""
        return sum(text in source for source in self.texts)


@contextmanager
def noted() -> Iterator[Sources]:
    """The sources of kernels, each compiled anew."""
    sources, programs = Sources(), compiling.programs
    compiling.programs = Lru(1024)
    register_observer(sources)
    try:
        with Context(CCACHE=0):
            yield sources
    finally:
        unregister_observer(sources)
        compiling.programs = programs


def for_few_threads(backend: Backend, **changes: Any) -> Backend:
    """A backend whose devices have one unit, which few threads keep busy: small products get its
    matrix instructions, and large tiles. `changes` are those of other limits."""

    def made(toolchain: Callable[[str], Toolchain[Any]], arch: str) -> Toolchain[Any]:
        found = toolchain(arch)
        limits = replace(found.renderer.limits, **{"threads": 1, "units": 1, **changes})
        return replace(found, renderer=replace(found.renderer, limits=limits))

    renderers = {name: partial(made, toolchain) for name, toolchain in backend.renderers.items()}
    return replace(backend, renderers=renderers)


def small_integers(*shape: int, seed: int = 0) -> Array:
    """Numbers whose sums of products are exact in every type."""
    return numpy.random.default_rng(seed).integers(-2, 3, shape)


@dataclass(frozen=True)
class MatrixPrograms:
    """Products on one device, by instructions that sources show."""

    programs: TensorPrograms
    names: Mapping[DType, str]
    """By operand type, the text that shows its instruction in a source."""
    sums: Mapping[DType, DType]
    """The types in which products are summed."""

    def tensor(self, values: Array, dtype: DType) -> Tensor:
        """Values of a type, in memory."""
        return self.programs.tensor(values.astype("f")).cast(dtype).realize()

    def product(self, dtype: DType, left: Array, right: Array) -> Tensor:
        """A product that is read in the type in which it is summed."""
        a, b = (self.tensor(x, dtype) for x in (left, right))
        return a.matmul(b, dtype=self.sums[dtype])

    def is_numpys(self, dtype: DType, size: tuple[int, int, int], sources: Sources) -> None:
        """A product of whole numbers, which is exact."""
        rows, inner, columns = size
        left, right = small_integers(rows, inner), small_integers(inner, columns, seed=1)
        found = self.product(dtype, left, right).numpy()
        assert numpy.array_equal(found, left @ right)
        assert sources.count(self.names[dtype]) == 1

    def is_summed_in_single(self, dtype: DType, sources: Sources) -> None:
        """A product of narrow floats, of which only the result is rounded."""
        a, b = numbers(64, 300), numbers(300, 48, seed=1)
        left, right = (self.tensor(x, dtype) for x in (a, b))
        exact = left.float().numpy().astype("d") @ right.float().numpy().astype("d")
        self.programs.close(left.matmul(right, dtype=dtypes.float32), exact, 1e-6)
        self.programs.close((left @ right).float(), exact, TOLERANCES[dtype])
        assert sources.count(self.names[dtype]) == 2

    def takes_its_surroundings(self, dtype: DType, sources: Sources) -> None:
        """A product, a bias and a ReLU in one kernel."""
        a, b, bias = small_integers(40, 64), small_integers(64, 24, seed=1), small_integers(24)
        left, right, added = (self.tensor(x, dtype) for x in (a, b, bias))
        sources.texts.clear()
        found = ((left @ right) + added).relu().realize()
        assert numpy.array_equal(found.float().numpy(), numpy.maximum(a @ b + bias, 0))
        assert [self.names[dtype] in text for text in sources.texts[:1]] == [True]
        assert sources.count(self.names[dtype]) == 1

    def is_transposed(self, dtype: DType, transposed: str, sources: Sources) -> None:
        """A product of operands that lie the other way in memory."""
        a, b = small_integers(32, 64), small_integers(64, 48, seed=1)
        x, y = (self.tensor(v, dtype) for v in (a, b))
        if transposed in ("left", "both"):
            x = x.T.contiguous().realize().T
        if transposed in ("right", "both"):
            y = y.T.contiguous().realize().T
        assert numpy.array_equal(x.matmul(y, dtype=self.sums[dtype]).numpy(), a @ b)
        assert sources.count(self.names[dtype]) == 1

    def is_batched(self, dtype: DType, sources: Sources) -> None:
        """Several products by one kernel."""
        a, b = small_integers(3, 33, 40), small_integers(3, 40, 17, seed=1)
        assert numpy.array_equal(self.product(dtype, a, b).numpy(), a @ b)
        assert sources.count(self.names[dtype]) == 1

    def convolves(self, dtype: DType, sources: Sources) -> None:
        """A convolution, which is a product over channels and places of its window."""
        x = small_integers(2, 16, 10, 9)
        w = small_integers(24, 16, 3, 3, seed=1)
        images, weights = (self.tensor(v, dtype) for v in (x, w))
        found = images.conv2d(weights, padding=1, dtype=dtypes.float32)
        padded = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = numpy.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        expected = numpy.einsum("bchwij,ocij->bohw", windows, w)
        assert numpy.array_equal(found.numpy(), expected)
        assert sources.count(self.names[dtype]) == 1

    def attends(self, dtype: DType, sources: Sources, keys: int = 40, width: int = 32) -> None:
        """Attention, two products with a softmax between, in one kernel."""
        lengths = (40, keys, keys)
        q, k, v = (self.tensor(numbers(2, n, width, seed=i), dtype) for i, n in enumerate(lengths))
        found = q.scaled_dot_product_attention(k, v)
        query, key, value = (x.float().numpy().astype("d") for x in (q, k, v))
        scores = query @ key.transpose(0, 2, 1) / numpy.sqrt(width)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ value
        self.programs.close(found.float(), expected, 3 * TOLERANCES.get(dtype, 1e-5))
        assert sources.count(self.names[dtype]) == 1
