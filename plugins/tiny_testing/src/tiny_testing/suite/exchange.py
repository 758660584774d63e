"""Level 4: memory shared with other libraries, copies between devices.

That nothing was copied is proven by address, and by writes that show on the other side.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy

from tiny_testing.suite.case import Level, NotApplicable, Variant, case, second_device
from tiny_testing.suite.kernels import integers
from tiny_testing.suite.memory import noise
from tiny_testing.suite.order import SIZE, step
from tiny_testing.suite.subject import Subject
from tinycore import Device, Tensor, TinyJit
from tinycore.device.buffer import Buffer
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.errors import DeviceUnavailable
from tinycore.tensor.interop.dlpack import HANDLE_KINDS

__all__ = [
    "test_a_device_that_is_opened_later_is_reached",
    "test_a_program_on_two_devices",
    "test_copies_from_device_to_device",
    "test_copies_to_and_from_the_interpreter",
    "test_copies_to_every_other_device",
    "test_device_memory_is_passed_to_other_libraries_and_back",
    "test_dlpack_of_other_libraries",
    "test_dlpack_to_other_libraries",
    "test_external_memory_is_used_in_place",
    "test_external_memory_is_written_in_place",
    "test_external_memory_may_begin_anywhere",
    "test_parts_of_memory_have_addresses",
    "test_peer_copies",
]

HOST: Final = 1
"""kDLCPU of DLPack: memory that the host addresses."""
I32: Final = dtypes.int32
VECTORS_SIZE: Final = 1 << 18
"""Elements: enough that threads load vectors of them."""


def pair_agrees(here: str, there: str) -> None:
    """Check copies of many sizes from one device to another and back."""
    for size in (1, 3, 1000, 100_003):
        numbers = numpy.frombuffer(noise(size), numpy.uint8)
        first = Buffer.from_cpu(here, numbers)
        second = Buffer(there, size, dtypes.uint8).copy_from(first)
        assert (second.numpy() == numbers).all(), f"{size} bytes from {here} to {there} are wrong"
        third = Buffer(here, size, dtypes.uint8).copy_from(second)
        assert (third.numpy() == numbers).all(), f"{size} bytes from {there} to {here} are wrong"


@case(Level.EXCHANGE)
def test_copies_to_and_from_the_interpreter(subject: Subject) -> None:
    """Copies to PYTHON and back preserve every byte."""
    pair_agrees(subject.name, "PYTHON")


@case(Level.EXCHANGE)
def test_copies_to_every_other_device(subject: Subject) -> None:
    """So it is with every other device that is ready here."""
    others = set(Device.get_available_devices()) - {subject.target.device, "NULL", "PYTHON"}
    if not others:
        raise NotApplicable("no other device is ready")
    for other in sorted(others):
        try:
            Device[other].toolchain  # noqa: B018  a device without a compiler is no use
        except DeviceUnavailable:
            continue
        pair_agrees(subject.name, other)


@case(Level.EXCHANGE)
def test_copies_from_device_to_device(subject: Subject) -> None:
    """Two devices of one backend exchange memory."""
    second_device(subject.backend.count())
    other = f"{subject.target.device}:{1 if subject.target.index == 0 else 0}"
    pair_agrees(subject.name, Device.canonicalize(other))


@case(Level.EXCHANGE)
def test_a_device_that_is_opened_later_is_reached(subject: Subject) -> None:
    """Memory and work that were there before another device was opened reach it, and come back."""
    second_device(subject.backend.count())
    other = f"{subject.target.device}:{1 if subject.target.index == 0 else 0}"
    Device.close(subject.target.device)
    x = integers(SIZE)
    early = Buffer.from_cpu(subject.name, x)
    computed = Buffer(subject.name, SIZE, I32)
    program = step(subject, lambda x: x * 3 + 1)
    program([computed.handle, early.handle], [])
    there = Buffer(Device.canonicalize(other), SIZE, I32).copy_from(computed)
    back = Buffer(subject.name, SIZE, I32).copy_from(there)
    program([computed.handle, back.handle], [])
    assert (there.numpy() == x * 3 + 1).all(), f"{other}, opened later, got something else"
    found = computed.numpy()
    assert (found == (x * 3 + 1) * 3 + 1).all(), f"what came back from {other} is something else"


@case(Level.EXCHANGE, "peer_copy")
def test_peer_copies(subject: Subject) -> None:
    """`copy_from` copies exactly the bytes it is told, with what was asked for before."""
    program = step(subject, lambda x: x + 1)
    x = integers(SIZE)
    peer = subject.device.ability("peer_copy")
    with subject.memory(x.tobytes()) as a, subject.memory(SIZE * 4) as b:
        program([b, a], [])
        with subject.memory(b"\x33" * (SIZE * 4 + 16)) as target:
            subject.runtime.synchronize()
            part = subject.allocator.offset(target, SIZE * 4, 8)
            peer.copy_from(part, b, SIZE * 4, subject.runtime)
            found = subject.read(target, SIZE * 4 + 16)
    assert found[8:-8] == (x + 1).tobytes(), "the copy is not what the launch wrote"
    assert found[:8] + found[-8:] == b"\x33" * 16, "bytes around the copy were changed"


@case(Level.EXCHANGE)
def test_a_program_on_two_devices(subject: Subject) -> None:
    """A gradient goes back over a border between devices."""
    x = subject.tensor(numpy.arange(6.0).reshape(2, 3), dtypes.float32)
    x.requires_grad_(True)
    there = (x * 2).to("PYTHON")
    loss = ((there + 1).to(subject.name) ** 2).sum()
    loss.backward()
    assert x.grad is not None
    assert x.grad.device == subject.name
    expected = 4 * (2 * numpy.arange(6.0).reshape(2, 3) + 1)
    assert x.grad.numpy().tolist() == expected.tolist()


# --- memory of other libraries


def external(subject: Subject, content: bytes) -> tuple[int, object]:
    """Memory that tinycore did not allocate: its address on the device, and its owner."""
    if subject.external_memory is not None:
        return subject.external_memory(content)
    if subject.backend.dlpack_kinds[:1] != (HOST,):
        raise NotApplicable(
            "define external_memory(content) in the file with SKIPS: it puts bytes into memory of "
            "the device without tinycore, and returns its address and what keeps it alive"
        )
    block = ctypes.create_string_buffer(content, len(content) + 64)
    address = ctypes.addressof(block)
    shift = -address % 64
    ctypes.memmove(address + shift, content, len(content))
    return address + shift, block


@case(Level.EXCHANGE, "external_pointer")
def test_external_memory_is_used_in_place(subject: Subject) -> None:
    """A program reads memory that somebody else allocated."""
    x = integers(1000)
    pointer, owner = external(subject, x.tobytes())
    tensor = Tensor.from_blob(pointer, (1000,), dtype=I32, device=subject.name, owner=owner)
    assert ((tensor * 2 + 1).numpy() == x * 2 + 1).all(), "memory at a pointer reads otherwise"
    assert tensor[10:20].numpy().tolist() == x[10:20].tolist(), "a part of it reads otherwise"


STARTS: Final = tuple(Variant(str(n), n) for n in (1, 2, 3, 4, 6))


@case(Level.EXCHANGE, "exchange", "external_pointer", over=STARTS)
def test_external_memory_may_begin_anywhere(subject: Subject, start: int) -> None:
    """Programs and replays take memory from any element on, by address or by byte offset."""
    x = integers(VECTORS_SIZE + 64)
    pointer, owner = external(subject, x.tobytes())
    names_objects = bool(HANDLE_KINDS.intersection(subject.backend.dlpack_kinds))
    whole = Tensor.from_blob(pointer, x.shape, dtype=I32, device=subject.name, owner=owner)

    def tensor_from(first: int) -> Tensor:
        if names_objects:
            part = Foreign(whole[first : first + VECTORS_SIZE])
            return Tensor.from_dlpack(part, device=subject.name, copy=False)
        place = pointer + first * I32.itemsize
        return Tensor.from_blob(place, (VECTORS_SIZE,), dtype=I32, device=subject.name, owner=owner)

    def step(x: Tensor) -> Tensor:
        return ((x * 3).contiguous() + 1).realize()

    captured = TinyJit(step)
    for first in (start, 0, 0, start, 0):
        expected = x[first : first + VECTORS_SIZE] * 3 + 1
        for function in (step, captured):
            found = function(tensor_from(first)).numpy()
            assert (found == expected).all(), f"memory from element {first} on reads otherwise"


@case(Level.EXCHANGE, "external_pointer")
def test_external_memory_is_written_in_place(subject: Subject) -> None:
    """Writes into wrapped memory show in every other view of the same pointer."""
    x = integers(1000)
    pointer, owner = external(subject, x.tobytes())
    first = Buffer.external(subject.name, pointer, 1000, I32, owner)
    second = Buffer.external(subject.name, pointer, 1000, I32, owner)
    first.copyin(memoryview((x + 9).tobytes()))
    assert (second.numpy() == x + 9).all(), "the pointer was copied, not used"
    if subject.backend.dlpack_kinds[:1] == (HOST,) and subject.external_memory is None:
        there = numpy.ctypeslib.as_array((ctypes.c_int32 * 1000).from_address(pointer))
        Device[subject.name].synchronize()
        assert (there == x + 9).all(), "the owner does not see what was written"


def host_only(subject: Subject, dtype: DType) -> None:
    """Raises NotApplicable for devices and dtypes whose memory NumPy does not take."""
    if not subject.claims(dtype.name):
        raise NotApplicable(f"{dtype.name} is not claimed")
    if subject.backend.dlpack_kinds[:1] != (HOST,):
        raise NotApplicable("it exchanges no memory of the host by DLPack")


DLPACK: Final = tuple(
    Variant(d.name, d) for d in dtypes.all if d not in dtypes.fp8s and d is not dtypes.bfloat16
)


@case(Level.EXCHANGE, over=DLPACK)
def test_dlpack_to_other_libraries(subject: Subject, dtype: DType) -> None:
    """NumPy sees a tensor's memory itself, at its address."""
    host_only(subject, dtype)
    x = Tensor(numpy.arange(64) % 2, device=subject.name, dtype=dtype).contiguous().realize()
    array = numpy.from_dlpack(x)
    here = numpy.frombuffer(x.data(), numpy.uint8).ctypes.data
    there = array.ctypes.data
    assert there == here, f"NumPy sees {there:#x}, the tensor is at {here:#x}"
    assert array.tolist() == x.numpy().tolist()


@case(Level.EXCHANGE, over=DLPACK)
def test_dlpack_of_other_libraries(subject: Subject, dtype: DType) -> None:
    """A tensor sees NumPy's memory itself: what NumPy writes later is computed with."""
    host_only(subject, dtype)
    array = (numpy.arange(64) % 2).astype(to_numpy_dtype(dtype))
    x = Tensor.from_dlpack(array, device=subject.name, copy=False)
    here, there = numpy.frombuffer(x.data(), numpy.uint8).ctypes.data, array.ctypes.data
    assert here == there, f"the tensor is at {here:#x}, NumPy at {there:#x}"
    array[:] = array[::-1].copy()
    assert x.flip(0).numpy().tolist() == array[::-1].tolist(), "a later write is not seen"


class Foreign:
    """An array of another library, of which it is known how it was asked for."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.asked: dict[str, object] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> object:
        self.asked = asked
        return self.tensor.__dlpack__(**asked)


@case(Level.EXCHANGE, "exchange")
def test_device_memory_is_passed_to_other_libraries_and_back(subject: Subject) -> None:
    """Memory lent to others comes back the same, and stays on the device, in order with streams."""
    numbers = integers(1000)
    x = (Tensor(numbers, device=subject.name) + 1).realize()
    foreign = Foreign(x)
    kind = foreign.__dlpack_device__()[0]
    assert kind == subject.backend.dlpack_kinds[0], f"memory is lent as of kind {kind}"
    y = Tensor.from_dlpack(foreign, device=subject.name, copy=False)
    runtime: Any = subject.runtime
    assert foreign.asked.get("stream", "none") == runtime.exchange_stream, "no stream is named"
    assert ((y * 3).numpy() == (numbers + 1) * 3).all(), "memory that was lent reads otherwise"
    x.assign(x * 2).realize()
    assert (y.numpy() == (numbers + 1) * 2).all(), "what is written later is not seen: a copy"
    part = Tensor.from_dlpack(Foreign(x[10:20]), device=subject.name, copy=False)
    assert part.tolist() == ((numbers + 1) * 2)[10:20].tolist(), "a part begins elsewhere"
    copied = Tensor.from_dlpack(Foreign(x), device=subject.name, copy=True)
    x.assign(x * 0).realize()
    assert (copied.numpy() == (numbers + 1) * 2).all(), "a copy shares memory"


@case(Level.EXCHANGE, "exchange")
def test_parts_of_memory_have_addresses(subject: Subject) -> None:
    """A part begins as many bytes after its whole as was asked for."""
    runtime: Any = subject.runtime
    with subject.memory(bytes(4096)) as whole:
        part = subject.allocator.offset(whole, 256, 1024)
        begins = [sum(runtime.address(handle)) for handle in (whole, part)]
        later = runtime.address(subject.allocator.offset(part, 64, 128))
    assert begins[1] - begins[0] == 1024, f"it begins {begins[1] - begins[0]} bytes after"
    assert sum(later) - begins[0] == 1152, f"a part of it {sum(later) - begins[0]} bytes after"
