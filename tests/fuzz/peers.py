"""The names that random programs of writes use, over torch tensors and NumPy arrays.

`Unlike` is raised where such a library copies what is a view here; see docs/aliasing.md.
torch is imported when its names are asked for.
"""


# mypy: disable-error-code="override, misc"

from __future__ import annotations

from typing import Any

import numpy

from tests.fuzz.places import api, ints


class Unlike(Exception):
    """Another library does something else here, as docs/aliasing.md says."""


def torch_api(shown: list[Any]) -> dict[str, Any]:
    """The names of a program over torch."""
    import torch  # noqa: PLC0415  needed here only

    def kind(name: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, name)
        return found

    class Peer(torch.Tensor):
        """A torch tensor with the names that programs use."""

        def reshape(self, *shape: Any) -> Any:
            found = super().reshape(*shape)
            if self.untyped_storage().data_ptr() != found.untyped_storage().data_ptr():
                raise Unlike("reshape copies")
            return found

        def flatten(self) -> Any:
            return self.reshape(self.numel())

        def flip(self, *axes: Any) -> Any:
            raise Unlike("flip copies")

        def contiguous(self) -> Any:
            if self.is_contiguous():
                raise Unlike("contiguous of a part is no copy")
            root = self._base if self._is_view() else self
            if root is not None and not root.is_contiguous():
                raise Unlike("a result has the order of its operands")
            return self.clone()

        def clone(self) -> Any:
            return super().clone(memory_format=torch.contiguous_format)

        def replace(self, other: Any) -> Any:
            raise Unlike("replace")

        def apart(self, value: Any) -> Any:
            """A value that is written: torch says nothing of one that overlaps the place."""
            return value.clone() if isinstance(value, torch.Tensor) else value

        def __setitem__(self, index: Any, value: Any) -> None:
            super().__setitem__(index, self.apart(value))

        def assign(self, value: Any) -> Any:
            return self if value is self else self.copy_(value)

        def copy_(self, value: Any) -> Any:
            return super().copy_(torch.as_tensor(self.apart(value)))

        def add_(self, value: Any) -> Any:
            return super().add_(self.apart(value))

        def sub_(self, value: Any) -> Any:
            return super().sub_(self.apart(value))

        def mul_(self, value: Any) -> Any:
            return super().mul_(self.apart(value))

        def clamp(self, low: Any = None, high: Any = None) -> Any:
            if low is not None and self.dtype == torch.uint8:
                low = max(low, 0)  # torch takes a negative bound as a large one
            return super().clamp(low, high)

        def __iadd__(self, value: Any) -> Any:
            return self.add_(value)

        def __isub__(self, value: Any) -> Any:
            return self.sub_(value)

        def __imul__(self, value: Any) -> Any:
            return self.mul_(value)

        def __iand__(self, value: Any) -> Any:
            return super().__iand__(self.apart(value))

        def __ior__(self, value: Any) -> Any:
            return super().__ior__(self.apart(value))

        def __ixor__(self, value: Any) -> Any:
            return super().__ixor__(self.apart(value))

        @property
        def T(self) -> Any:  # noqa: N802
            return self.permute(*reversed(range(self.ndim)))

        def shrink(self, pairs: Any) -> Any:
            return self[tuple(slice(*pair) for pair in pairs)]

        def cast(self, dtype: str) -> Any:
            return self.to(kind(dtype))

        def cat(self, other: Any, dim: int = 0) -> Any:
            return torch.cat([self, other], dim)

        def pad(self, pairs: Any) -> Any:
            return torch.nn.functional.pad(self, pairs)

        def sum(self, *axes: Any) -> Any:
            return super().sum(*axes, dtype=self.dtype)

        def where(self, one: Any, other: Any) -> Any:
            like = one if isinstance(one, torch.Tensor) else other
            return torch.where(self, one, other).to(like.dtype)

        def realize(self, *others: Any) -> Any:
            return self

        kernelize = realize

        def diagonal(self) -> Any:
            return torch.diagonal(self)

    def make(data: Any, dtype: str) -> Any:
        if isinstance(data, torch.Tensor):
            return data.view(data.shape)
        return torch.tensor(numpy.asarray(data).tolist(), dtype=kind(dtype)).as_subclass(Peer)

    return api(make, shown)


class InNumpy(numpy.ndarray[Any, numpy.dtype[Any]]):
    """A NumPy array with the names that programs use; a number is an array, too."""

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array.view(InNumpy)

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        if any(isinstance(e, (list, numpy.ndarray)) for e in entries):
            return super().__getitem__(index)
        return super().__getitem__(entries if ... in entries else (*entries, ...))

    def __setitem__(self, index: Any, value: Any) -> None:
        # x[::2] = x[1:4] of one axis is wrong in NumPy 2.4: it looks for no overlap there but picks
        # a direction, which is right for equal strides only.
        super().__setitem__(index, value.copy() if isinstance(value, numpy.ndarray) else value)

    def reshape(self, *shape: Any, **options: Any) -> Any:
        found = super().reshape(*shape, **options)
        if not numpy.shares_memory(self, found):
            raise Unlike("reshape copies")
        return found

    def flatten(self, *order: Any) -> Any:
        return self.reshape(self.size)

    def permute(self, *order: Any) -> Any:
        return super().transpose(ints(order))

    def transpose(self, *axes: Any) -> Any:
        return self.swapaxes(*axes)

    def flip(self, *axes: Any) -> Any:
        return numpy.flip(self, ints(axes))

    def unsqueeze(self, axis: int) -> Any:
        return numpy.expand_dims(self, axis)

    def squeeze(self, axis: Any = None) -> Any:
        keeps = axis is not None and self.shape[axis] != 1
        return self[...] if keeps else super().squeeze(axis)

    def expand(self, *shape: Any) -> Any:
        return numpy.broadcast_to(self, ints(shape), subok=True)

    def detach(self) -> Any:
        return self[...]

    def unfold(self, axis: int, size: int, step: int) -> Any:
        windows = numpy.lib.stride_tricks.sliding_window_view(self, size, axis, subok=True)
        return windows[(slice(None),) * axis + (slice(None, None, step),)]

    def split(self, size: int, axis: int = 0) -> Any:
        return numpy.split(self, range(size, self.shape[axis], size), axis)

    def shrink(self, pairs: Any) -> Any:
        return self[tuple(slice(*pair) for pair in pairs)]

    def contiguous(self) -> Any:
        if self.flags.c_contiguous:
            raise Unlike("contiguous of a part is no copy")
        root: Any = self
        while isinstance(root.base, numpy.ndarray):
            root = root.base
        if not root.flags.c_contiguous:
            raise Unlike("a result has the order of its operands")
        return self.copy()

    def cast(self, dtype: str) -> Any:
        return self if dtype == self.dtype.name else self.astype(dtype)

    def replace(self, other: Any) -> Any:
        raise Unlike("replace")

    def clone(self) -> Any:
        return self.copy()

    def realize(self, *others: Any) -> Any:
        return self

    kernelize = realize

    def sum(self, axis: Any = None, **options: Any) -> Any:
        return numpy.asarray(super().sum(axis, dtype=self.dtype)).view(InNumpy)

    def where(self, one: Any, other: Any) -> Any:
        like = one if isinstance(one, numpy.ndarray) else other
        return numpy.where(self, one, other).astype(like.dtype).view(InNumpy)

    def cat(self, other: Any, dim: int = 0) -> Any:
        return numpy.concatenate([self, other], dim).view(InNumpy)

    def pad(self, pairs: Any) -> Any:
        return numpy.pad(self, [(0, 0)] * (self.ndim - 1) + [pairs]).view(InNumpy)

    def clamp(self, low: Any, high: Any) -> Any:
        return self.clip(low, high)

    def assign(self, value: Any) -> Any:
        if value is not self:
            self[...] = value
        return self

    copy_ = fill_ = assign

    def add_(self, value: Any) -> Any:
        return self.assign(self + value)

    def sub_(self, value: Any) -> Any:
        return self.assign(self - value)

    def mul_(self, value: Any) -> Any:
        return self.assign(self * value)

    def neg_(self) -> Any:
        return self.assign(-self)

    def abs_(self) -> Any:
        return self.assign(abs(self))

    def clamp_(self, low: Any, high: Any) -> Any:
        return self.assign(self.clip(low, high))

    def masked_fill_(self, mask: Any, value: Any) -> Any:
        return self.assign(numpy.where(mask, value, self))

    def zero_(self) -> Any:
        return self.assign(0)


def numpy_api(shown: list[Any]) -> dict[str, Any]:
    """The names of a program over NumPy."""

    def make(data: Any, dtype: str) -> Any:
        if isinstance(data, InNumpy):
            return data[...]
        return numpy.array(data, dtype).view(InNumpy)

    return api(make, shown)
