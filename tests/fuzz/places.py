"""A model of views and writes: a tensor as positions in flat memory.

`Places` is the model that the tensors of random programs are compared with (`writes.py`).
A view is an array of positions, moved about by NumPy; a write stores at these positions. What is a
view and what is a copy is said in docs/aliasing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy

from tinycore.errors import AliasError

Array = numpy.ndarray[Any, numpy.dtype[Any]]


def ints(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes or axes given one by one or as a tuple."""
    found = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    return tuple(found)


class Places:
    """A tensor as positions in flat memory."""

    def __init__(self, data: Any, dtype: str = "float32") -> None:
        if isinstance(data, Places):
            self._take(data.memory, data.places, data)
            return
        value = numpy.array(data, dtype)
        self.memory: Array = value.ravel().copy()
        self.places: Array = numpy.arange(value.size).reshape(value.shape)
        self.repeats = False
        """True if it was made by repeating elements, and so cannot be written."""
        self.is_plain = True
        """True if it is its memory, at most in another shape."""
        self.is_number = value.ndim == 0
        """True if it began as numbers that take no memory."""

    def _take(self, memory: Array, places: Array, like: Places) -> None:
        self.memory, self.places = memory, places
        self.repeats, self.is_plain, self.is_number = like.repeats, like.is_plain, like.is_number

    def _moved(self, places: Array, *, reshaped: bool = False, repeats: bool = False) -> Places:
        """A view at other positions."""
        view = object.__new__(Places)
        view._take(self.memory, places, self)
        same = places.size == self.places.size and bool(
            (places.ravel() == self.places.ravel()).all()
        )
        view.is_plain = self.is_plain and (reshaped or same) and not repeats
        view.repeats = self.repeats or repeats
        return view

    @property
    def value(self) -> Array:
        """The present elements, copied to an array."""
        return self.memory[self.places]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.places.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.places.ndim

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return self.memory.dtype.name

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self.value.tolist()

    def item(self) -> Any:
        """The one element."""
        return self.value.item()

    # --- views

    def __getitem__(self, index: Any) -> Places:
        if is_advanced(index):
            return result(self.value[plain_index(index)])
        return self._moved(self.places[index])

    def reshape(self, *shape: Any) -> Places:
        """The elements in row-major order under another shape."""
        return self._moved(self.places.reshape(ints(shape)), reshaped=True)

    view = reshape

    def flatten(self) -> Places:
        """The elements on one axis."""
        return self.reshape(self.places.size)

    def permute(self, *order: Any) -> Places:
        """The axes in another order."""
        moved = self._moved(self.places.transpose(ints(order)))
        moved.is_plain = self.is_plain and ints(order) == tuple(range(self.ndim))
        return moved

    @property
    def T(self) -> Places:  # noqa: N802  the name of the API
        """The axes in reverse order."""
        return self.permute(*reversed(range(self.ndim)))

    def transpose(self, first: int, second: int) -> Places:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.permute(*order)

    def flip(self, *axes: Any) -> Places:
        """Axes reversed."""
        return self._moved(numpy.flip(self.places, ints(axes)))

    def unsqueeze(self, axis: int) -> Places:
        """One more axis of size 1."""
        return self._moved(numpy.expand_dims(self.places, axis), reshaped=True)

    def squeeze(self, axis: int | None = None) -> Places:
        """Without axes of size 1."""
        if axis is not None and self.places.shape[axis] != 1:
            return self._moved(self.places, reshaped=True)
        return self._moved(numpy.squeeze(self.places, axis), reshaped=True)

    def expand(self, *shape: Any) -> Places:
        """Axes of size 1 repeated."""
        places = numpy.broadcast_to(self.places, ints(shape))
        return self._moved(places, reshaped=True, repeats=places.size != self.places.size)

    def detach(self) -> Places:
        """The same elements."""
        view = self._moved(self.places)
        view.is_plain = False
        return view

    def diagonal(self) -> Places:
        """The elements [i, i, ..]."""
        view = self._moved(numpy.diagonal(self.places))
        view.is_plain = False
        return view

    def unfold(self, axis: int, size: int, step: int) -> Places:
        """Windows along an axis, which run inside the last one."""
        windows = numpy.lib.stride_tricks.sliding_window_view(self.places, size, axis)
        taken = windows[(slice(None),) * axis + (slice(None, None, step),)]
        view = self._moved(taken, repeats=size > 1)
        view.is_plain = False
        return view

    def split(self, size: int, axis: int = 0) -> list[Places]:
        """Pieces along an axis."""
        cuts = range(size, self.places.shape[axis], size)
        return [self._moved(part) for part in numpy.split(self.places, cuts, axis)]

    def shrink(self, pairs: Sequence[tuple[int, int]]) -> Places:
        """A box."""
        return self._moved(self.places[tuple(slice(*pair) for pair in pairs)])

    def contiguous(self) -> Places:
        """Itself if it is its memory row by row, else a copy."""
        return self if self.is_plain else result(self.value)

    def cast(self, dtype: str) -> Places:
        """Itself if it has the dtype, else its elements converted."""
        return self if dtype == self.dtype else result(self.value.astype(dtype))

    def replace(self, other: Places) -> Places:
        """Become a view of another tensor."""
        self._take(other.memory, other.places, other)
        return self

    # --- values

    def clone(self) -> Places:
        """A copy."""
        return result(self.value)

    def realize(self, *others: Places) -> Places:
        """Nothing: values are there."""
        return self

    def kernelize(self, *others: Places) -> Places:
        """Nothing: values are there."""
        return self

    def sum(self, axis: int | None = None) -> Places:
        """The sum of an axis, or of all."""
        return result(self.value.sum(axis, dtype=self.memory.dtype))

    def where(self, one: Any, other: Any) -> Places:
        """One value where this mask holds, else the other."""
        a, b = raw(one), raw(other)
        like = a if isinstance(a, numpy.ndarray) else b
        return result(numpy.where(self.value, a, b).astype(like.dtype))

    def cat(self, other: Places, dim: int = 0) -> Places:
        """Two tensors joined."""
        return result(numpy.concatenate([self.value, other.value], dim))

    def pad(self, pairs: tuple[int, int]) -> Places:
        """Zeros around the last axis."""
        wide = [(0, 0)] * (self.ndim - 1) + [pairs]
        return result(numpy.pad(self.value, wide))

    def clamp(self, low: float, high: float) -> Places:
        """The elements limited."""
        return result(numpy.clip(self.value, low, high).astype(self.memory.dtype))

    # --- writes

    def assign(self, value: Any) -> Places:
        """Write a value, broadcast."""
        if value is not self and self.places.size:
            self._store(self.places, raw(value))
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self.places[plain_index(index)], raw(value))

    def _store(self, places: Array, value: Any) -> None:
        if self.repeats:
            raise AliasError("shows elements more than once")
        kind = self.memory.dtype
        self.memory[places] = numpy.broadcast_to(numpy.asarray(value).astype(kind), places.shape)

    def masked_fill_(self, mask: Places, value: float) -> Places:
        """Write a number where a mask holds."""
        return self.assign(result(numpy.where(mask.value, value, self.value)))

    def zero_(self) -> Places:
        """Write zeros."""
        return self.assign(0)


def operator(compute: Callable[..., Any], reverse: bool = False) -> Callable[..., Places]:
    """A method that computes a new value."""

    def method(self: Places, *operands: Any) -> Places:
        values = [self.value, *map(raw, operands)]
        found = numpy.asarray(compute(*(values[::-1] if reverse else values)))
        keeps = found.dtype.kind == "b" or found.dtype == self.memory.dtype
        return result(found if keeps else found.astype(self.memory.dtype))

    return method


def writer(compute: Callable[..., Places]) -> Callable[..., Places]:
    """A method that writes what another one computes."""
    return lambda self, *operands: self.assign(compute(self, *operands))


BINARY: Final = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "mul": numpy.multiply,
    "and": numpy.bitwise_and,
    "or": numpy.bitwise_or,
    "xor": numpy.bitwise_xor,
}
COMPARED: Final = {"lt": numpy.less, "gt": numpy.greater}

WRITTEN: Final[dict[str, Callable[..., Any]]] = {
    "copy_": lambda x, y: numpy.broadcast_to(y, x.shape),
    "fill_": lambda x, y: numpy.full(x.shape, y),
    "neg_": numpy.negative,
    "abs_": numpy.abs,
    "clamp_": numpy.clip,
}

for _name, _compute in BINARY.items():
    setattr(Places, f"__{_name}__", operator(_compute))
    setattr(Places, f"__r{_name}__", operator(_compute, reverse=True))
    setattr(Places, f"__i{_name}__", writer(operator(_compute)))
    setattr(Places, f"{_name}_", writer(operator(_compute)))
for _name, _compared in COMPARED.items():
    setattr(Places, f"__{_name}__", operator(_compared))
for _name, _written in WRITTEN.items():
    setattr(Places, _name, writer(operator(_written)))


def result(value: Array) -> Places:
    """A new tensor."""
    return Places(value, value.dtype.name)


def raw(value: Any) -> Any:
    """The elements of a tensor, anything else as it is."""
    return value.value if isinstance(value, Places) else value


def plain_index(index: Any) -> Any:
    """An index with arrays in the place of tensors."""
    return tuple(map(raw, index)) if isinstance(index, tuple) else raw(index)


def is_advanced(index: Any) -> bool:
    """True if an index picks elements by numbers or a mask, so that the result is a copy."""
    entries = index if isinstance(index, tuple) else (index,)
    return any(isinstance(entry, (list, Places)) for entry in entries)


class Maker:
    """The class that programs call `Tensor`, over some kind of array."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, data: Any, dtype: str = "float32") -> Any:
        """A tensor of nested lists."""
        return self.make(data, dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        """One number everywhere."""
        return numbers(self.make(numpy.full(shape, value), dtype))

    def zeros(self, *shape: int, dtype: str = "float32") -> Any:
        """Zeros."""
        return self.full(shape, 0, dtype)

    def arange(self, stop: int, dtype: str = "int32") -> Any:
        """0, 1, .."""
        return numbers(self.make(numpy.arange(stop), dtype))

    def realize(self, *tensors: Any) -> None:
        """Nothing: values are there."""


def numbers(made: Any) -> Any:
    """Note of the model that a tensor takes no memory yet."""
    if isinstance(made, Places):
        made.is_number = True
    return made


def api(make: Callable[..., Any], shown: list[Any]) -> dict[str, Any]:
    """The names of a program, and the place where it reports what it reads."""
    return {
        "Tensor": Maker(make),
        "show": lambda x: shown.append(x.tolist()),
        "slope": lambda x: x.clone(),
        "AliasError": AliasError,
    }
