"""Memory of torch's MPS tensors, by DLPack and by address, on the mock: torch here has no MPS.

What lends is a library of ours that describes an MTLBuffer as torch does: `data` is the object, and
a view says in `byte_offset` where it starts.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy
import pytest

from tinycore import Device, Tensor, dtypes
from tinycore.errors import SharingError
from tinycore.tensor.interop.dlpack import Deleter, ManagedVersioned, contents

if TYPE_CHECKING:
    from mock_metal.metal import Mac

    from tiny_metal.memory import MetalMemory

pytestmark = [pytest.mark.usefixtures("simulated"), pytest.mark.sample(6)]

METAL: Final = (8, 0)
"""kDLMetal, the first GPU."""
COUNT: Final = 64
KEPT: Final[list[object]] = []
"""Whoever took memory calls the deleter when it likes, also when the lender is gone."""


class Mps:
    """A tensor of another library: float32 in an MTLBuffer, from an element on."""

    def __init__(self, values: Any, first: int = 0) -> None:
        self.runtime: Any = Device["METAL"].runtime
        self.buffer: MetalMemory = self.runtime.allocator.alloc(values.nbytes)
        self.runtime.allocator.write(self.buffer, memoryview(values.tobytes()))
        self.first, self.count = first, values.size - first
        self.deleted = 0

    def data_ptr(self) -> int:
        """Address as torch tells it: an object where the storage begins, else nothing."""
        address, offset = self.runtime.address(self.buffer)
        return int(address) + int(offset) + 4 * self.first

    def __dlpack_device__(self) -> tuple[int, int]:
        return METAL

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        from lending import new_capsule  # noqa: PLC0415

        assert stream is None, "torch takes no stream for MPS"
        self.managed = ManagedVersioned()
        self.managed.version.major = 1
        self.shape = (ctypes.c_int64 * 1)(self.count)
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = self.runtime.address(self.buffer)[0], 4 * self.first
        tensor.device_type, tensor.device_id = METAL
        tensor.ndim, tensor.shape = 1, self.shape
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = 2, 32, 1
        self.deleter = self.managed.deleter = Deleter(self.done)
        KEPT.append(self)
        return new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)

    def done(self, _: int) -> None:
        """Nobody uses the memory any more."""
        self.deleted += 1
        self.runtime.allocator.free(self.buffer)

    def values(self) -> Any:
        """Content of the buffer now."""
        content = bytearray(4 * (self.first + self.count))
        self.runtime.allocator.read(memoryview(content), self.buffer)
        return numpy.frombuffer(content, "f")


@pytest.fixture
def numbers() -> Iterator[Any]:
    """Some floats; afterwards nothing that was lent is still held."""
    KEPT.clear()
    yield numpy.arange(COUNT, dtype="f")
    gc.collect()
    assert all(lender.deleted == 1 for lender in KEPT if isinstance(lender, Mps))


@pytest.mark.parametrize("first", [0, 3, 16])
def test_a_tensor_of_torch_is_memory_here(first: int, numbers: Any) -> None:
    lender = Mps(numbers, first)

    x = Tensor.from_dlpack(lender)

    assert x.device == "METAL"
    assert (x * 2 + 1).tolist() == (numbers[first:] * 2 + 1).tolist()
    x[1:3].assign(Tensor([-1.0, -2.0])).realize()
    Device["METAL"].synchronize()
    assert lender.values()[first + 1 : first + 3].tolist() == [-1, -2]
    assert lender.values()[:first].tolist() == numbers[:first].tolist()


def test_memory_is_given_back_with_the_last_tensor_that_shows_it(
    simulated: Mac, numbers: Any
) -> None:
    lender = Mps(numbers, 4)
    address, _ = lender.runtime.address(lender.buffer)
    x = Tensor.from_dlpack(lender)
    part = x[2:10].realize()
    y = (x + 1).realize()
    del x
    gc.collect()
    assert lender.deleted == 0
    assert part.tolist() == numbers[6:14].tolist()
    del part
    gc.collect()
    assert lender.deleted == 1
    assert address not in simulated.world.alive
    assert y.tolist() == (numbers[4:] + 1).tolist()


@pytest.mark.parametrize("first", [0, 5])
def test_a_tensor_is_memory_of_torch(first: int, numbers: Any) -> None:
    """Fields that torch reads from a capsule: object, start of the tensor, shape, strides."""
    runtime: Any = Device["METAL"].runtime
    x = (Tensor(numbers).reshape(8, 8) * 3).realize()

    capsule: Any = x.T[first:].__dlpack__(max_version=(1, 1))

    tensor = contents(capsule)[1].tensor
    assert (tensor.device_type, tensor.device_id) == METAL
    assert x.__dlpack_device__() == METAL
    assert tensor.byte_offset == 4 * first
    assert tensor.strides[:2] == [1, 8]
    handle = runtime.allocator.wrap(tensor.data, numbers.nbytes)
    found = bytearray(numbers.nbytes)
    runtime.allocator.read(memoryview(found), handle)
    assert numpy.frombuffer(found, "f").tolist() == (numbers * 3).tolist()


def test_launches_have_ended_before_their_memory_is_lent(
    simulated: Mac, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DLPack has no streams for Metal: torch reads what it is lent without waiting for us."""
    runtime: Any = Device["METAL"].runtime
    monkeypatch.setattr(simulated.plan, "delay", (0.01, 0.02))
    x = (Tensor(numbers) * 5).realize()
    assert runtime._running, "the launch is in flight"

    x.__dlpack__()

    assert not runtime._running


def test_memory_taken_with_a_byte_offset_is_lent_from_there(numbers: Any) -> None:
    lender = Mps(numbers, 5)
    x = Tensor.from_dlpack(lender)

    tensor = contents(x[2:].__dlpack__(max_version=(1, 1)))[1].tensor

    assert tensor.data == lender.runtime.address(lender.buffer)[0]
    assert tensor.byte_offset == 4 * (5 + 2)


def test_a_consumer_keeps_the_memory(numbers: Any) -> None:
    runtime: Any = Device["METAL"].runtime
    capsule: Any = (Tensor(numbers) + 7).realize().__dlpack__()
    gc.collect()
    for _ in range(4):
        (Tensor(numbers) * 0).realize()  # which would take the place

    handle = runtime.allocator.wrap(contents(capsule)[1].tensor.data, numbers.nbytes)
    found = bytearray(numbers.nbytes)
    runtime.allocator.read(memoryview(found), handle)
    assert numpy.frombuffer(found, "f").tolist() == (numbers + 7).tolist()


def test_what_is_lent_and_taken_back_is_the_same_memory() -> None:
    x = Tensor([1.0, 2.0, 3.0]).contiguous().realize()

    class Other:
        """A library that passes on what it was lent."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, **asked: Any) -> object:
            return x[1:].__dlpack__(**asked)

    y = Tensor.from_dlpack(Other(), copy=False)
    x.assign(x * 10).realize()
    assert y.tolist() == [20, 30]


def test_torch_is_waited_for_where_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, numbers: Any
) -> None:
    waits: list[str] = []
    has_mps = [True]
    torch = SimpleNamespace(
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: has_mps[0])),
        mps=SimpleNamespace(synchronize=lambda: waits.append("mps")),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    Tensor.from_dlpack(Mps(numbers))
    has_mps[0] = False
    Tensor.from_dlpack(Mps(numbers))
    assert waits == ["mps"]


def test_an_address_of_torch_is_memory_here(numbers: Any) -> None:
    """The seed's example: `from_blob(tensor.data_ptr(), ...)`, and what a view must do instead."""
    lender = Mps(numbers)
    x = Tensor.from_blob(
        lender.data_ptr(), COUNT, dtype=dtypes.float32, device="METAL", owner=lender
    )
    assert (x + 1).realize().tolist() == (numbers + 1).tolist()
    with pytest.raises(Exception, match=r"no object of Metal.*from_dlpack"):
        Tensor.from_blob(lender.data_ptr() + 4, 3, dtype=dtypes.float32, device="METAL")
    del x
    lender.runtime.allocator.free(lender.buffer)


def test_a_buffer_that_is_too_short_is_refused(numbers: Any) -> None:
    lender = Mps(numbers, 60)
    lender.count = 5
    with pytest.raises(Exception, match="the MTLBuffer has 256 bytes, the tensor 260"):
        Tensor.from_dlpack(lender)


def test_another_gpu_takes_a_copy(numbers: Any) -> None:
    lender = Mps(numbers, 2)
    with pytest.raises(SharingError, match="it is on METAL, not on METAL:1"):
        Tensor.from_dlpack(lender, device="METAL:1", copy=False)
    again = Mps(numbers, 2)
    assert Tensor.from_dlpack(again, device="METAL:1").tolist() == numbers[2:].tolist()
