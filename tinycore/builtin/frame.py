"""One launch of the interpreter: the values of all nodes, memory, and which threads take part.

Private to the interpreter. A value is an array with the rank of its program's `Axes`; along what it
does not depend on its size is 1, so broadcasting does what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy

from tinycore.builtin.arithmetic import Array
from tinycore.dtype import DType, PointerDType, to_numpy_dtype
from tinycore.errors import DeviceError
from tinycore.uop.host_bytes import decode
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.builtin.shared import Accesses

__all__ = ["Axes", "Frame", "Memory", "Span", "both", "boxes"]

LAUNCH_ORDER: Final = tuple("grid2 grid1 grid0 block2 block1 block0".split())
"""The indices of a launch, slowest first."""

Span = tuple[int, int]
"""First number of an index, and the count of its numbers."""


class Axes:
    """Axes of arrays: steps of a loop, the launch's indices, a vector's lanes."""

    def __init__(self, launch: Mapping[str, int]) -> None:
        self.launch = launch
        """The size of each SPECIAL."""
        self.threads = [name for name in LAUNCH_ORDER if launch.get(name, 1) > 1]
        self.of: dict[str, int] = {name: 1 + i for i, name in enumerate(self.threads)}
        self.rank = len(self.threads) + 2

    def sizes(self, prefix: str) -> tuple[int, int, int]:
        """The launch's sizes under a prefix, `grid` or `block`."""
        x, y, z = (self.launch.get(f"{prefix}{axis}", 1) for axis in range(3))
        return x, y, z

    def shape(self, sizes: Mapping[int, int]) -> tuple[int, ...]:
        """A shape of 1s but for some axes."""
        return tuple([sizes.get(axis, 1) for axis in range(self.rank)])

    def single(self, value: Any, kind: Any) -> Array:
        """A value that is the same everywhere."""
        return numpy.full((1,) * self.rank, value, kind)

    def count(self, span: Span, axis: int | None, kind: Any) -> Array:
        """The numbers of a span along an axis."""
        start, length = span
        numbers = numpy.arange(start, start + length, dtype=kind)
        return numbers.reshape(self.shape({} if axis is None else {axis: length}))


class Memory:
    """Elements that programs load and store, `size` of them for each owner: a buffer has one owner,
    shared memory one per workgroup, and registers one per thread.
    """

    __slots__ = tuple("accesses array base dtype kept label size".split())

    def __init__(
        self, array: Array, dtype: DType, size: int, label: str, base: Array | None = None
    ) -> None:
        self.array = array
        self.dtype = dtype
        self.size = size
        self.label = label
        self.base = base
        """Start of the part of each thread's owner; None if there is one part."""
        self.accesses: Accesses | None = None
        """Accesses of threads to shared memory that is watched."""
        self.kept: Any = None
        """Notes of an Effect about what it does there."""

    def read(self, frame: Frame, where: Array, wanted: Array | None = None) -> Array:
        """The values at some places, which threads that are `wanted` read."""
        if self.accesses is not None:
            self.accesses.read(frame, where, wanted)
        return decode(self.array.take(where), self.dtype)

    @staticmethod
    def of_buffer(node: UOp, handle: Array, kernel: str) -> Memory:
        """The memory behind a DEFINE_GLOBAL. Raises DeviceError when the buffer is too small."""
        dtype = node.dtype
        assert isinstance(dtype, PointerDType)
        storage = to_numpy_dtype(dtype.base.scalar())
        whole = handle.nbytes // storage.itemsize
        size = dtype.size * dtype.base.count
        if size > whole:
            raise DeviceError(
                f"kernel {kernel} needs {size} elements of {dtype.base!r} in buffer {node.arg}, "
                f"which has {handle.nbytes} bytes"
            )
        array = handle[: whole * storage.itemsize].view(storage)
        return Memory(array, dtype.base.scalar(), size, f"buffer {node.arg}")


class Frame:
    """The state that the steps of a plan work on."""

    def __init__(
        self,
        kernel: str,
        axes: Axes,
        values: Mapping[UOp, Any],
        most_values: int,
        groups: Sequence[int],
        cluster: int,
    ) -> None:
        """`groups` are those of this launch, by axis; of the first, `cluster` are one (`Effect`).

        Raises DeviceError for a launch of parts of clusters.
        """
        self.kernel = kernel
        self.axes = axes
        self.groups = {f"grid{axis}": count for axis, count in enumerate(groups)}
        self.cluster = cluster
        if groups[0] % cluster:
            raise DeviceError(
                f"kernel {kernel} is launched in {groups[0]} groups, and clusters have {cluster}"
            )
        self.values: dict[UOp, Any] = dict(values)
        self.spans: dict[UOp, Span] = {}
        """The present numbers of each index: SPECIAL, RANGE and variables."""
        self.mask: Array | None = None
        """The threads that are still inside the loops entered so far; None means all."""
        self.watched: list[Accesses] = []
        """Accesses to each shared array that is checked for races."""
        self.kept: dict[Any, Any] = {}
        """Notes of Effects about the present piece of the launch, by what each chooses."""
        self.piece: Mapping[str, Span] = {}
        """The part of each launch index that this piece of the launch has."""
        self.most_values = most_values
        self.at_once = 1
        """Steps of loops to do at once, so that arrays stay within `most_values`."""

    @cached_property
    def block(self) -> tuple[int, ...]:
        """Threads of a group along each axis that the program names."""
        axes = self.axes
        return tuple([axes.launch[name] for name in axes.threads if name.startswith("block")])

    def by_subgroup(self, values: Array, threads: int, name: str) -> Array:
        """Values as (..., subgroup, lane, element). Raises DeviceError where a group has a part of
        a subgroup, or a part of it has left the loop that the others are in."""
        if (group := math.prod(self.block)) % threads:
            raise DeviceError(
                f"kernel {self.kernel}: {name} is for subgroups of {threads} threads, a group of "
                f"{group} has a part of one"
            )
        if self.mask is not None:
            inside = self._split(self.mask, threads)
            if (inside.any(axis=-2) != inside.all(axis=-2)).any():
                raise DeviceError(
                    f"kernel {self.kernel}: {name} is reached by a part of a subgroup of {threads} "
                    "threads"
                )
        return self._split(values, threads)

    def _split(self, values: Array, threads: int) -> Array:
        """Threads as subgroups and lanes."""
        around = values.shape[: values.ndim - 1 - len(self.block)]
        wide = numpy.broadcast_to(values, (*around, *self.block, values.shape[-1]))
        return wide.reshape(*around, -1, threads, values.shape[-1])

    def by_thread(self, values: Array) -> Array:
        """Values of (..., subgroup, lane, element) by threads again."""
        return values.reshape(*values.shape[:-3], *self.block, values.shape[-1])

    def pieces(self) -> Iterator[dict[str, Span]]:
        """The launch cut into pieces of whole clusters: the part of each index in each piece."""
        axes, cluster = self.axes, self.cluster
        whole: dict[str, Span] = {
            name: (0, axes.launch[name]) for name in axes.threads if name.startswith("block")
        }
        most = self.most_values // math.prod(axes.sizes("block")) // cluster
        steps = {name: cluster if name == "grid0" else 1 for name in axes.threads}
        grid = [name for name in axes.threads if name.startswith("grid")]
        for box in boxes([self.groups[name] // steps[name] for name in grid], most):
            piece = dict(zip(grid, box, strict=True))
            yield {n: (a * steps[n], b * steps[n]) for n, (a, b) in piece.items()} | whole

    def enter(self, piece: Mapping[str, Span], specials: Iterable[UOp]) -> None:
        """Go to a piece of the launch."""
        self.mask = None
        self.piece = piece
        for u in specials:
            span = self.spans[u] = piece.get(u.arg, (0, 1))
            self.values[u] = self.axes.count(span, self.axes.of.get(u.arg), numpy.int64)
        self.at_once = self.most_values // math.prod(length for _, length in piece.values())

    def active(self, gate: Array | None) -> Any:
        """The threads that take part where a gate holds; None means all."""
        return both(self.mask, gate)

    def in_cluster(self, values: Array) -> list[Array]:
        """Values of each group in the place of those of all groups of its cluster, in order."""
        axis = self.axes.of["grid0"]
        if values.shape[axis] == 1:
            return [values] * self.cluster
        numbers = numpy.arange(values.shape[axis])  # pieces begin with a whole cluster
        first = numbers - numbers % self.cluster
        return [values.take(first + member, axis=axis) for member in range(self.cluster)]

    def memory(self, node: UOp) -> Memory:
        """Shared memory for the workgroups of this piece, or registers for its threads."""
        dtype, axes = node.dtype, self.axes
        assert isinstance(dtype, PointerDType)
        shared = node.op is Op.DEFINE_LOCAL
        owners = {
            axes.of[name]: length
            for name, (_, length) in self.piece.items()
            if not shared or name.startswith("grid")
        }
        shape = axes.shape(owners)
        size, count = dtype.size * dtype.base.count, math.prod(shape)
        array = numpy.zeros(count * size, to_numpy_dtype(dtype.base.scalar()))
        label = f"{'shared memory' if shared else 'register'} {node.arg}"
        base = (numpy.arange(count) * size).reshape(shape)
        return Memory(array, dtype.base.scalar(), size, label, base)

    def thread(self, wrong: Array) -> str:
        """The first thread for which a condition holds; nothing if it holds for all alike."""
        axes = self.axes
        if all(wrong.shape[axes.of[name]] == 1 for name in axes.threads):
            return ""
        place = numpy.unravel_index(int(wrong.argmax()), wrong.shape)
        found = {name: self.piece[name][0] + int(place[axes.of[name]]) for name in axes.threads}
        parts = []
        for prefix in ("grid", "block"):
            if axes.sizes(prefix) != (1, 1, 1):
                at = tuple(found.get(f"{prefix}{axis}", 0) for axis in range(3))
                parts.append(f", {prefix} {at}")
        return "".join(parts)


def boxes(sizes: Sequence[int], most: int) -> Iterator[tuple[Span, ...]]:
    """Boxes of at most `most` elements that cover a shape, cut along its first axes first."""
    cuts: list[list[Span]] = []
    for size in reversed(sizes):
        step = max(1, min(size, most))
        step = -(-size // -(-size // step))  # parts of like sizes
        cuts.insert(0, [(start, min(step, size - start)) for start in range(0, size, step)])
        most //= step
    return product(*cuts)


def both(mask: Array | None, gate: Array | None) -> Any:
    """The threads for which both masks hold; None means all."""
    if mask is None or gate is None:
        return gate if mask is None else mask
    return mask & gate
