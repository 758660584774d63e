"""DLPack, what we take: shared by address, its owner told when it is free, copied or refused."""

from __future__ import annotations

import ctypes
import math
import random
from typing import Any

import numpy
import pytest
import torch
from lending import KEPT, Producer, buffer, floats, need_host_lender, realized
from torch.utils.dlpack import from_dlpack

import tinycore
from tinycore.errors import ArgumentTypeError, SharingError
from tinycore.tensor import Tensor
from tinycore.tensor.interop.dlpack import CAPSULE_TYPES, READ_ONLY, Described


@pytest.fixture(autouse=True)
def engine(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no buffers to look at")


@pytest.mark.parametrize("name", CAPSULE_TYPES, ids=bytes.decode)
def test_the_producer_is_told_once_when_the_memory_is_free(name: bytes) -> None:
    producer = Producer(floats(3), name)
    x = Tensor.from_dlpack(producer)
    view, result = x[1:], x + 1

    producer.array[0] = 5
    assert x.tolist() == [5.0, 1.0, 2.0]
    assert buffer(x).to_cpu().ctypes.data == producer.array.ctypes.data
    del x
    assert producer.deleted == 0
    assert (view.tolist(), result.tolist()) == ([1.0, 2.0], [6.0, 2.0, 3.0])
    del view, result
    assert producer.deleted == 1


def test_memory_that_was_copied_is_given_back_at_once() -> None:
    producer = Producer(floats(4, 2)[:, :1])
    x = Tensor.from_dlpack(producer)

    assert producer.deleted == 1
    assert x.tolist() == [[0.0], [2.0], [4.0], [6.0]]


def test_what_is_assigned_is_seen_by_the_owner() -> None:
    array = floats(3)
    x = tinycore.from_dlpack(array)

    x.assign(x * 10).realize()

    assert array.tolist() == [0.0, 10.0, 20.0]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [({"byte_offset": 8}, [0.0, 1.0, 2.0]), ({"no_strides": True}, [0.0, 1.0, 2.0])],
    ids=["byte offset", "no strides"],
)
def test_offsets_and_absent_strides(facts: dict[str, Any], expected: list[float]) -> None:
    producer = Producer(floats(3), **facts)
    x = Tensor.from_dlpack(producer)

    assert x.tolist() == expected
    assert buffer(x).to_cpu().ctypes.data == producer.array.ctypes.data


def test_axes_in_any_order_are_shared() -> None:
    theirs = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    x = Tensor.from_dlpack(theirs)

    assert buffer(x).to_cpu().ctypes.data == theirs.data_ptr()
    assert x.tolist() == theirs.tolist()
    image = torch.zeros(1, 3, 2, 2).to(memory_format=torch.channels_last)
    assert buffer(Tensor.from_dlpack(image)).to_cpu().ctypes.data == image.data_ptr()


def unaligned() -> Any:
    return numpy.frombuffer(bytearray(13), numpy.uint8)[1:].view(numpy.float32)


def read_only() -> Any:
    array = floats(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: floats(4)[::2], r"strides \(2,\) of shape \(2,\) leave gaps"),
        (lambda: floats(4)[::-1], r"strides \(-1,\) of shape \(4,\) leave gaps or overlap"),
        (lambda: torch.ones(1).expand(3), r"strides \(0,\) of shape \(3,\) leave gaps or overlap"),
        (unaligned, "no multiple of the 4 bytes"),
        (read_only, "it is read-only, and a tensor may be assigned to"),
    ],
    ids=["gaps", "reversed", "repeated", "unaligned", "read-only"],
)
def test_what_cannot_be_shared_is_copied_unless_that_is_forbidden(make: Any, why: str) -> None:
    array = make()
    x = Tensor.from_dlpack(array)

    assert x.tolist() == array.tolist()
    x.assign(x + 1).realize()
    assert x.tolist() == (array + 1).tolist()
    with pytest.raises(BufferError, match=rf"from_dlpack: .*{why}.* but copy=False"):
        Tensor.from_dlpack(make(), copy=False)


def test_flags_of_other_producers_are_heeded() -> None:
    with pytest.raises(SharingError, match="read-only"):
        Tensor.from_dlpack(Producer(floats(3), flags=READ_ONLY), copy=False)


def test_a_device_that_is_named_gets_the_tensor() -> None:
    array = floats(3)
    x = Tensor.from_dlpack(array, device="PYTHON")
    copied = Tensor.from_dlpack(array, device="PYTHON", copy=True)
    array[0] = 5

    assert (x.device, copied.device) == ("PYTHON", "PYTHON")
    assert (x.tolist(), copied.tolist()) == ([5.0, 1.0, 2.0], [0.0, 1.0, 2.0])


def test_our_own_tensors_pass_through() -> None:
    x = realized([1.0, 2.0])

    assert Tensor.from_dlpack(x).uop is x.uop
    assert buffer(Tensor.from_dlpack(x, copy=True).realize()) is not buffer(x)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"dtype": (5, 64, 1)}, "no dtype for complex of 64 bits"),
        ({"dtype": (2, 32, 4)}, "no dtype for float of 32 bits in vectors of 4"),
        ({"dtype": (9, 8, 1)}, "no dtype for float8_e4m3b11fnuz of 8 bits"),
        ({"dtype": (99, 8, 1)}, "no dtype for type code 99 of 8 bits"),
        ({"major": 2}, r"Producer exports DLPack 2\.0, this is 1\.x"),
        ({"device": (9, 1)}, r"no device here works on memory of DLDevice \(9, 1\)"),
    ],
    ids=["complex", "lanes", "fnuz", "unknown code", "version", "device"],
)
def test_what_is_not_understood_is_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(BufferError, match=message):
        Tensor.from_dlpack(Producer(floats(3), **facts))


def test_a_capsule_is_taken_once() -> None:
    class Again:
        def __init__(self) -> None:
            self.capsule = floats(3).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self) -> object:
            return self.capsule

    producer = Again()
    Tensor.from_dlpack(producer)

    with pytest.raises(SharingError, match="was consumed before"):
        Tensor.from_dlpack(producer)


def test_what_exports_nothing_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="a list does not export DLPack"):
        Tensor.from_dlpack([1.0])


def test_kernels_need_no_more_alignment_than_an_element() -> None:
    whole = numpy.random.default_rng(3).uniform(-1, 1, 1 + 40 * 24).astype(numpy.float32)
    array = whole[1:].reshape(40, 24)
    x = Tensor.from_dlpack(array)

    assert buffer(x).to_cpu().ctypes.data == array.ctypes.data
    numpy.testing.assert_allclose((x @ x.T).numpy(), array @ array.T, 1e-5, 1e-5)
    numpy.testing.assert_array_equal((x * 3).numpy(), array * 3)


@pytest.mark.parametrize("seed", range(6))
def test_random_views_mean_the_same_on_both_sides(seed: int, target: str) -> None:
    need_host_lender(target)
    random = numpy.random.default_rng(seed)
    theirs = torch.arange(120.0).reshape(2, 3, 4, 5)
    ours = Tensor(theirs.numpy()).realize()
    order = [int(axis) for axis in random.permutation(4)]
    starts = [int(random.integers(0, size)) for size in theirs.permute(order).shape]
    steps = [int(random.integers(1, 3)) for _ in order]
    part = tuple([slice(a, None, step) for a, step in zip(starts, steps, strict=True)])
    theirs, ours = theirs.permute(order)[part], ours.permute(*order)[part]

    assert Tensor.from_dlpack(theirs).tolist() == theirs.tolist()
    assert from_dlpack(ours).tolist() == theirs.tolist()
    assert numpy.asarray(ours).tolist() == theirs.tolist()


def numbers(*found: int) -> Any:
    """An array of C, kept as long as the tests are."""
    KEPT.append(array := (ctypes.c_int64 * len(found))(*found))
    return ctypes.cast(array, ctypes.POINTER(ctypes.c_int64))


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "many axes": ({"ndim": 1 << 30}, "has 1073741824 axes; 0 to 64 are taken"),
    "negative axes": ({"ndim": -1}, "has -1 axes"),
    "no shape": ({"shape": None}, "has 1 axes and no shape"),
    "negative size": ({"shape": numbers(-3)}, r"has the shape \(-3,\)"),
    "huge": ({"shape": numbers(1 << 61)}, "more bytes than there are addresses"),
    "huge and empty": ({"ndim": 2, "shape": numbers(0, 1 << 61)}, "more bytes than there are"),
    "far": ({"strides": numbers(1 << 61)}, "lead beyond all addresses"),
    "far below": ({"strides": numbers(-(1 << 62))}, "lead beyond all addresses"),
    "no memory": ({"data": None}, r"has elements of shape \(3,\) at address 0x0"),
    "offset": ({"byte_offset": (1 << 64) - 8}, "begins 18446744073709551608 bytes after"),
    "other device": ({"device_type": 2}, r"lies on DLDevice \(2, 0\), where .* says \(1, 0\)"),
    "other card": ({"device_id": 3}, r"lies on DLDevice \(1, 3\), where"),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("version", CAPSULE_TYPES, ids=bytes.decode)
def test_a_malformed_tensor_is_refused(target: str, name: str, version: bytes) -> None:
    need_host_lender(target)
    fields, told = MALFORMED[name]

    def tamper(tensor: Described) -> None:
        for field, value in fields.items():
            setattr(tensor, field, value)

    producer = Producer(floats(3), version, tamper=tamper)
    with pytest.raises(SharingError, match=told):
        Tensor.from_dlpack(producer)
    assert producer.deleted == 0  # the capsule, which was not taken, gives it back


def test_random_layouts_are_taken_or_refused(target: str) -> None:
    """Layouts inside of 64 numbers are read right; all others end in SharingError."""
    need_host_lender(target)
    drawn, array = random.Random(7), floats(64)
    for _ in range(200):
        sizes = [drawn.choice((0, 1, 2, 3, 1 << 40)) for _ in range(drawn.randrange(4))]
        steps = [drawn.choice((0, 1, 2, 4, 1 << 58, -(1 << 60))) for _ in sizes]

        def tamper(tensor: Described, sizes: Any = sizes, steps: Any = steps) -> None:
            tensor.ndim = len(sizes)
            tensor.shape, tensor.strides = numbers(*sizes), numbers(*steps)

        last = sum(step * (size - 1) for size, step in zip(sizes, steps, strict=True))
        is_inside = 0 in sizes or (0 <= last < 64 and min(steps, default=0) >= 0)
        if is_inside and math.prod(size for size in sizes if size) < 1 << 20:
            apart = [step * 4 for step in steps]
            expected = numpy.lib.stride_tricks.as_strided(array, sizes, apart).tolist()
            assert Tensor.from_dlpack(Producer(array, tamper=tamper)).tolist() == expected
        elif not is_inside and abs(last) >= 1 << 58:
            with pytest.raises(SharingError):
                Tensor.from_dlpack(Producer(array, tamper=tamper))


@pytest.mark.parametrize("device", [None, (1,), "a", (1, "x"), (1, 2, 3)])
def test_a_device_that_is_no_pair_is_refused(device: Any) -> None:
    with pytest.raises(SharingError, match="no two numbers"):
        Tensor.from_dlpack(Producer(floats(3), device=device))


def test_a_producer_without_a_method_is_refused() -> None:
    class Odd(Producer):
        __dlpack__ = 3  # type: ignore[assignment]

    with pytest.raises(SharingError, match="does not take what DLPack asks"):
        Tensor.from_dlpack(Odd(floats(3)))
