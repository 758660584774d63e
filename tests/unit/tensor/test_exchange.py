"""Memory of a device and other libraries: lent and taken by DLPack, in order with streams."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from lending import Producer

from tiny_testing.accelerator.device import (
    CAPABILITIES,
    OWN_KIND,
    PINNED_KIND,
    Parts,
    backend_of,
    streams,
)
from tinycore import Device, Tensor
from tinycore.device.backend import Backend
from tinycore.errors import PluginError, SharingError
from tinycore.plugin import register, unregister
from tinycore.tensor.interop.dlpack import contents

NAME = "ACCELERATOR"
Events = list[tuple[str, int | None]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    """The accelerator, and how often streams and it waited for each other."""
    register(backend_of())
    found: Events = []
    runtime: Any = Device[NAME].runtime
    for name in ("let_wait", "wait_for"):
        known = getattr(runtime, name)

        def noted(stream: int | None, name: str = name, known: Any = known) -> None:
            found.append((name, stream))
            known(stream)

        monkeypatch.setattr(runtime, name, noted)
    yield found
    streams.clear()
    unregister(NAME)


def made(values: Any) -> Tensor:
    return (Tensor(values, dtype="float32", device=NAME) + 0).realize()


def floats_at(capsule: object, count: int) -> list[float]:
    """Content at the address in a capsule, for a consumer."""
    tensor = contents(capsule)[1].tensor
    return list((ctypes.c_float * count).from_address(tensor.data + tensor.byte_offset))


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_memory_of_a_device_is_lent_as_it_is(
    events: Events, version: tuple[int, int] | None
) -> None:
    x = made([1.0, 2.0, 3.0, 4.0])

    capsule: Any = x.__dlpack__(stream=5, max_version=version)

    name, managed = contents(capsule)
    assert name == (b"dltensor" if version is None else b"dltensor_versioned")
    assert x.__dlpack_device__() == (OWN_KIND, 0)
    assert (managed.tensor.device_type, managed.tensor.device_id) == (OWN_KIND, 0)
    assert managed.tensor.byte_offset == 0
    assert floats_at(capsule, 4) == [1, 2, 3, 4]
    assert events == [("let_wait", 5)]
    x.assign(x * 2).realize()
    Device[NAME].synchronize()
    assert floats_at(capsule, 4) == [2, 4, 6, 8]


def test_views_are_lent_by_offset_and_strides(events: Events) -> None:
    x = made(numpy.arange(12).reshape(3, 4))

    _, managed = contents(capsule := x.T[1:].__dlpack__())

    assert managed.tensor.byte_offset == 4
    assert list(managed.tensor.shape[:2]) == [3, 3]
    assert list(managed.tensor.strides[:2]) == [1, 4]
    assert floats_at(capsule, 1) == [1]


def test_a_consumer_that_orders_its_work_itself_is_not_waited_for(events: Events) -> None:
    made([1.0]).__dlpack__(stream=-1)

    assert events == []


def test_a_stream_of_the_consumer_waits_for_what_computes_it(events: Events) -> None:
    x = made(numpy.ones(1 << 14))
    for _ in range(20):
        x = (x + 1).realize()

    assert floats_at(x.__dlpack__(stream=None), 3) == [21, 21, 21]
    assert events == [("let_wait", None)]


def test_what_has_no_memory_is_computed_into_a_copy(events: Events) -> None:
    x = made([1.0, 2.0])
    y = x + 1

    assert floats_at(y.__dlpack__(), 2) == [2, 3]
    with pytest.raises(SharingError, match="no memory to share: realize"):
        (x + 2).__dlpack__(copy=False)
    _, managed = contents(capsule := x.__dlpack__(copy=True, max_version=(1, 0)))
    x.assign(x * 0).realize()
    Device[NAME].synchronize()
    assert managed.flags == 2
    assert floats_at(capsule, 2) == [1, 2]


def test_a_consumer_keeps_memory_of_a_device(events: Events) -> None:
    capsule = made([1.0, 2.0]).__dlpack__()

    for _ in range(10):
        made([7.0, 7.0])  # which would take the place

    assert floats_at(capsule, 2) == [1, 2]


def test_the_host_gets_a_copy_where_it_asks_for_one(events: Events) -> None:
    _, managed = contents(made([1.0, 2.0]).__dlpack__(dl_device=(1, 0)))

    assert managed.tensor.device_type == 1


@pytest.mark.parametrize("kind", [OWN_KIND, PINNED_KIND])
def test_memory_is_taken_in_order_with_the_stream_of_its_owner(events: Events, kind: int) -> None:
    array = numpy.zeros(4, numpy.float32)

    def late() -> None:
        time.sleep(0.05)
        array[:] = [1, 2, 3, 4]

    thread = threading.Thread(target=late)
    streams[1] = thread.join
    asked = []

    class Streamed(Producer):
        """Another library, whose stream has not computed the numbers yet."""

        def __dlpack__(self, **given: Any) -> object:
            asked.append(given.get("stream"))
            thread.start()
            return super().__dlpack__(**given)

    lender = Streamed(array, device=(kind, 0))
    x = Tensor.from_dlpack(lender, device=NAME)  # pinned memory is also taken by others

    assert x.device == NAME
    assert (x * 2).tolist() == [2, 4, 6, 8]
    assert asked == [1]
    assert events == [("wait_for", 1)]
    array[:] = 5
    assert (x * 2).tolist() == [10, 10, 10, 10]
    del x
    assert lender.deleted == 1


def test_a_producer_from_before_dlpack_1_is_told_the_stream(events: Events) -> None:
    class Old(Producer):
        """Another library."""

        def __dlpack__(self, **asked: Any) -> object:
            if asked.keys() - {"stream"}:
                raise TypeError("it knows a stream, and nothing else")
            assert asked["stream"] == 1
            return super().__dlpack__()

    lender = Old(numpy.arange(3, dtype=numpy.float32), b"dltensor", device=(OWN_KIND, 0))

    x = Tensor.from_dlpack(lender)

    assert x.tolist() == [0, 1, 2]
    del x
    assert lender.deleted == 1


def test_a_device_that_there_is_not_is_refused(events: Events) -> None:
    array = numpy.zeros(4, numpy.float32)

    with pytest.raises(SharingError, match=r"memory of DLDevice \(9, 0\)"):
        Tensor.from_dlpack(Producer(array, device=(9, 0)))


@pytest.mark.parametrize("dlpack", [(), ("CUDA",), "2"])
def test_a_backend_says_kinds_by_their_numbers(dlpack: Any) -> None:
    with pytest.raises(PluginError, match="dlpack must be a DLDeviceType or several"):
        Backend(name="X", api=(2, 0), open=print, renderers={"A": print}, dlpack=dlpack)  # type: ignore[arg-type,dict-item]


def test_a_device_without_exchange_lends_by_the_host() -> None:
    register(backend_of(Parts(name="PLAIN", capabilities=CAPABILITIES - {"exchange"})))
    x = (Tensor([1.0, 2.0], device="PLAIN") + 1).realize()

    assert x.__dlpack_device__() == (1, 0)
    assert numpy.from_dlpack(x).tolist() == [2, 3]
    unregister("PLAIN")
