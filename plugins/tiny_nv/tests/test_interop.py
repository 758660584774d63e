"""Memory of torch and CuPy on cards that are not there: other libraries that share the stand-in's
driver and lend memory of their own, or take a tensor's, in order with streams.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from lending import Producer
from simulated import Simulated
from standin import Card, Driver

from tiny_nv import _lib
from tiny_nv._lib import ffi
from tiny_nv.device import CudaDevice
from tinycore import Device, Tensor
from tinycore.dtype import _from_torch_dtype
from tinycore.errors import DeviceError, SharingError
from tinycore.tensor.interop.dlpack import contents

torch = pytest.importorskip("torch")

LEGACY = 1


def handle_of(device: str = "CUDA") -> int:
    """The stream of a device, by its handle."""
    runtime: Any = Device[device].runtime
    return int(runtime.exchange_stream)


class TorchTensor:
    """A tensor of torch on a card: memory that torch has allocated, and the type."""

    def __init__(
        self, driver: Driver, values: list[float], card: int = 0, dtype: Any = None
    ) -> None:
        self.driver, self.card = driver, card
        self.dtype = dtype or torch.float32
        content = torch.tensor(values, dtype=self.dtype).view(torch.uint8).numpy().tobytes()
        self.shape = torch.Size([len(values)])
        self.size = len(content)
        place = ffi.new("CUdeviceptr *")
        driver.cuCtxSetCurrent(ffi.cast("CUcontext", 0x1000 + card))
        assert not driver.cuMemAlloc_v2(place, self.size)
        self.address = int(place[0])
        driver.span(self.address, self.size)[:] = content

    def data_ptr(self) -> int:
        return self.address

    def write(self, values: list[float]) -> None:
        content = torch.tensor(values, dtype=self.dtype).view(torch.uint8).numpy().tobytes()
        self.driver.span(self.address, self.size)[:] = content


class Streamed(Producer):
    """The same as an object that exports DLPack: its stream is waited for, and frees are seen."""

    def __init__(self, tensor: TorchTensor, stream: int, kind: int = 2) -> None:
        size = tensor.size // len(tensor.shape)
        described = SimpleNamespace(
            ctypes=SimpleNamespace(data=tensor.address),
            shape=tensor.shape,
            strides=(size // tensor.shape[0],),
            itemsize=size // tensor.shape[0],
            ndim=1,
        )
        super().__init__(described, device=(kind, tensor.card))
        self.tensor, self.stream = tensor, stream
        self.asked: dict[str, Any] = {}

    def __dlpack__(self, **asked: Any) -> object:
        self.asked = asked
        driver, event = self.tensor.driver, ffi.new("CUevent *")
        driver.cuEventCreate(event, 2)
        driver.cuEventRecord(event[0], ffi.cast("CUstream", self.stream))
        if asked.get("stream") is not None:
            driver.cuStreamWaitEvent(ffi.cast("CUstream", asked["stream"]), event[0], 0)
        return super().__dlpack__(**asked)

    def note(self, address: int) -> None:
        super().note(address)
        self.tensor.driver.cuMemFree_v2(self.tensor.address)


@pytest.fixture
def card(simulated: Simulated) -> Simulated:
    """The driver, with both cards open."""
    for name in ("CUDA", "CUDA:1"):
        assert Device[name].runtime is not None
    return simulated


def test_the_program_of_the_documents(card: Simulated) -> None:
    tensor1 = TorchTensor(card, [1.0, 2.0, 3.0])
    tiny_tensor1 = Tensor.from_blob(
        tensor1.data_ptr(), tensor1.shape, dtype=_from_torch_dtype(tensor1.dtype), device="CUDA"
    )

    x = (tiny_tensor1 + 1).realize()

    assert x.tolist() == [2, 3, 4]
    tensor1.write([5.0, 6.0, 7.0])
    assert (tiny_tensor1 * 2).tolist() == [10, 12, 14]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int64", "uint8", "bool", "float64"])
def test_types_of_torch(card: Simulated, name: str) -> None:
    theirs = TorchTensor(card, [1.0, 0.0, 3.0], dtype=getattr(torch, name))
    found = Tensor.from_blob(
        theirs.data_ptr(), theirs.shape, dtype=_from_torch_dtype(theirs.dtype), device="CUDA"
    )

    assert found.dtype.name == name
    assert found.float().tolist() == [1, 0, 1 if name == "bool" else 3]


def test_memory_of_another_card_is_told_with_its_device(card: Simulated) -> None:
    theirs = TorchTensor(card, [1.0], card=1)

    with pytest.raises(DeviceError, match="memory of card 1, not of 0: name the device CUDA:1"):
        Tensor.from_blob(theirs.data_ptr(), theirs.shape, dtype="float32", device="CUDA")
    x = Tensor.from_blob(theirs.data_ptr(), theirs.shape, dtype="float32", device="CUDA:1")
    assert (x + 1).tolist() == [2]


@pytest.mark.parametrize(("kind", "number"), [(2, 0), (2, 1), (13, 0)])
def test_what_a_stream_has_not_computed_yet_is_waited_for(
    card: Simulated, kind: int, number: int
) -> None:
    theirs = TorchTensor(card, [0.0, 0.0], card=number)
    producer = Streamed(theirs, card.foreign_stream(lambda: theirs.write([3.0, 4.0])), kind)
    card._alive["CUstream"][producer.stream] = number

    x = Tensor.from_dlpack(producer, copy=False)

    assert x.device == ("CUDA:1" if number else "CUDA")
    assert producer.asked["stream"] == handle_of(x.device)
    assert (x * 2).tolist() == [6, 8]


def test_memory_of_others_is_given_back_when_nobody_has_it(card: Simulated) -> None:
    theirs = TorchTensor(card, [1.0, 2.0])
    producer = Streamed(theirs, LEGACY)
    x = Tensor.from_dlpack(producer, copy=False)
    y = x[1:]

    del x
    gc.collect()
    assert producer.deleted == 0
    assert y.tolist() == [2]
    del y
    gc.collect()
    assert producer.deleted == 1
    assert theirs.address not in card.memory


@pytest.mark.parametrize(("stream", "waits"), [(None, LEGACY), (LEGACY, LEGACY), (2, 2)])
def test_a_default_stream_of_the_consumer_waits(
    card: Simulated, stream: int | None, waits: int
) -> None:
    x = (Tensor([1.0, 2.0], device="CUDA") + 1).realize()
    card.waits.clear()

    _, managed = contents(capsule := x.__dlpack__(stream=stream))

    assert capsule is not None
    assert card.waits == [(waits, handle_of())]
    assert (managed.tensor.device_type, managed.tensor.device_id) == (2, 0)


def test_a_stream_of_its_own_waits_and_memory_stays(card: Simulated) -> None:
    x = (Tensor([1.0, 2.0], device="CUDA") + 1).realize()
    stream = card.foreign_stream()
    card.waits.clear()

    _, managed = contents(capsule := x.__dlpack__(stream=stream))
    place = managed.tensor.data + managed.tensor.byte_offset
    del x
    for _ in range(3):
        (Tensor([7.0, 7.0], device="CUDA") + 0).realize()

    assert card.waits == [(stream, handle_of())]
    assert numpy.frombuffer(card.span(place, 8), "f").tolist() == [2, 3]
    assert ctypes.py_object(capsule).value is capsule


def test_a_consumer_that_orders_itself_is_not_waited_for(card: Simulated) -> None:
    x = (Tensor([1.0], device="CUDA") + 1).realize()
    card.waits.clear()

    x.__dlpack__(stream=-1)

    assert card.waits == []


def test_stream_0_is_refused(card: Simulated) -> None:
    x = (Tensor([1.0], device="CUDA") + 1).realize()

    with pytest.raises(SharingError, match="stream 0 is ambiguous"):
        x.__dlpack__(stream=0)


def test_what_is_lent_comes_back_as_the_same_memory(card: Simulated) -> None:
    x = (Tensor([1.0, 2.0, 3.0], device="CUDA") + 1).realize()

    class Consumer:
        """An array of CuPy over a tensor."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, **asked: Any) -> object:
            return x[1:].__dlpack__(**asked)

    y = Tensor.from_dlpack(Consumer(), copy=False)
    x.assign(x * 10).realize()

    assert y.tolist() == [30, 40]


# --- the CUDA array interface


class Described:
    """An array of Numba: its memory is described by the CUDA array interface alone."""

    def __init__(self, tensor: TorchTensor, **facts: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.address, False),
            "version": 3,
            **facts,
        }


def test_a_tensor_is_described_with_the_stream_that_computes_it(card: Simulated) -> None:
    x = (Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="CUDA") + 1).realize()
    part: Any = x.permute(1, 0)[1:]

    described = part.__cuda_array_interface__

    assert (described["shape"], described["strides"]) == ((2, 2), (4, 12))
    assert (described["typestr"], described["version"]) == ("<f4", 3)
    assert described["stream"] == handle_of()
    place, is_read_only = described["data"]
    assert numpy.frombuffer(card.span(place, 8), "f").tolist() == [3, 4]
    assert not is_read_only
    assert x.__cuda_array_interface__["strides"] is None


def test_what_the_interface_cannot_describe_has_none(card: Simulated) -> None:
    ones = Tensor([1.0], device="CUDA")

    assert not hasattr((ones + 1), "__cuda_array_interface__")
    assert not hasattr(ones.bfloat16().realize(), "__cuda_array_interface__")
    assert not hasattr(Tensor([1.0], device="CPU").realize(), "__cuda_array_interface__")


def test_an_array_that_is_described_is_shared_in_order_with_its_stream(card: Simulated) -> None:
    theirs = TorchTensor(card, [0.0, 0.0, 0.0])
    stream = card.foreign_stream(lambda: theirs.write([3.0, 4.0, 5.0]))
    x = Tensor.from_dlpack(Described(theirs, stream=stream), copy=False)

    assert x.device == "CUDA"
    assert (x * 2).tolist() == [6, 8, 10]
    x.assign(x + 1).realize()
    found = numpy.frombuffer(card.span(theirs.address, 12), "f")
    assert found.tolist() == [4, 5, 6]


def test_axes_that_are_described_in_another_order(card: Simulated) -> None:
    theirs = TorchTensor(card, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    described = Described(theirs, shape=(3, 2), strides=(4, 12))

    x = Tensor.from_dlpack(described, copy=False)

    assert x.tolist() == [[1, 4], [2, 5], [3, 6]]


def test_a_described_array_of_another_card_is_taken_by_its_device(card: Simulated) -> None:
    theirs = Described(TorchTensor(card, [1.0, 2.0], card=1))

    with pytest.raises(DeviceError, match="memory of card 1, not of 0: name the device CUDA:1"):
        Tensor.from_dlpack(theirs)
    assert (Tensor.from_dlpack(theirs, device="CUDA:1") + 1).tolist() == [2, 3]


def test_a_described_array_is_kept_as_long_as_its_memory_is_used(card: Simulated) -> None:
    theirs = Described(TorchTensor(card, [1.0, 2.0]))
    watch = weakref.ref(theirs)
    x = Tensor.from_dlpack(theirs)
    y = x[1:]
    del theirs, x
    gc.collect()

    assert watch() is not None
    assert y.tolist() == [2]
    del y
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"mask": object()}, "has a mask"),
        ({"typestr": "<c8"}, "has elements '<c8', for which there is no dtype"),
        ({"strides": (6,)}, r"has strides \(6,\), of no whole dtypes.float32"),
        ({"data": (0x1000, True)}, "read-only, .* but copy=False"),
    ],
    ids=["mask", "complex", "strides", "read-only"],
)
def test_arrays_whose_description_is_refused(
    card: Simulated, facts: dict[str, Any], message: str
) -> None:
    theirs = Described(TorchTensor(card, [1.0, 2.0]), **facts)

    with pytest.raises(SharingError, match=message):
        Tensor.from_dlpack(theirs, copy=False)


# --- cards that address each other's memory


def copied(driver: Driver) -> bytes:
    """Bytes that arrive on a second card, of two copies."""
    with _lib.use(driver):
        first, second = CudaDevice(0, ""), CudaDevice(1, "")
        source, target = first.allocator.alloc(8), second.allocator.alloc(8)
        first.allocator.write(source, memoryview(b"abcdefgh"))
        for _ in range(2):
            second.allocator.copy_from(target, source, 8, first)
        found = bytearray(8)
        second.allocator.read(memoryview(found), target)
        return bytes(found)


def test_cards_that_meet_enable_access_once() -> None:
    driver = Driver(cards=(Card(), Card()))

    assert copied(driver) == b"abcdefgh"
    assert driver.peers == {(0, 1), (1, 0)}
    assert driver.calls["cuCtxEnablePeerAccess"] == 2


def test_access_that_another_library_has_enabled_is_used() -> None:
    driver = Driver(cards=(Card(), Card()), peers={(1, 0), (0, 1)})

    assert copied(driver) == b"abcdefgh"


def test_cards_without_access_copy_through_the_host() -> None:
    driver = Driver(cards=(Card(), Card()), has_peers=False)

    assert copied(driver) == b"abcdefgh"
    assert driver.calls["cuCtxEnablePeerAccess"] == 0


def test_a_failure_to_enable_access_is_told() -> None:
    driver = Driver(cards=(Card(), Card()))
    driver.fail("cuCtxEnablePeerAccess", 711)

    with pytest.raises(DeviceError, match=r"cuCtxEnablePeerAccess for A card.*\(711\)"):
        copied(driver)
