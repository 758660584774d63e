"""Copies between devices of different backends, in one process: every pair that is there."""

from __future__ import annotations

from itertools import permutations

import numpy
import pytest

from tests.conftest import absence
from tinycore import Device, Tensor, TinyJit
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes

PAIRS = list(permutations(("PYTHON", "CPU", "CL", "WEBGPU"), 2))
SIZES = (1, 5, 4096, 1_000_003)


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two devices; skips where one of them is not there."""
    for name in request.param:
        if why := absence(name):
            pytest.skip(why)
    source, target = request.param
    return source, target


def filled(device: str, content: bytes) -> Buffer:
    return Buffer(device, len(content), dtypes.uint8).copyin(content)


def test_every_byte_arrives(pair: tuple[str, str]) -> None:
    for size in SIZES:
        content = numpy.random.default_rng(size).bytes(size)

        copied = Buffer(pair[1], size, dtypes.uint8).copy_from(filled(pair[0], content))

        assert copied.tobytes() == content


def test_a_view_is_copied_into_a_view(pair: tuple[str, str]) -> None:
    source, target = filled(pair[0], bytes(range(100))), filled(pair[1], bytes(100))

    part = Buffer(pair[1], 10, dtypes.uint8, base=target, offset_bytes=7)
    part.copy_from(Buffer(pair[0], 10, dtypes.uint8, base=source, offset_bytes=33))

    assert target.tobytes() == bytes(7) + bytes(range(33, 43)) + bytes(83)


def test_memory_that_the_host_sees_is_not_staged(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(Device[name].has("host_memory") for name in pair):
        pytest.skip("both devices have memory of their own")
    source = filled(pair[0], bytes(range(64)))
    target = Buffer(pair[1], 64, dtypes.uint8).ensure_allocated()

    with monkeypatch.context() as patched:
        patched.setattr(Buffer, "copyout", None)  # what would fill host memory in between
        target.copy_from(source)

    assert target.tobytes() == bytes(range(64))


@pytest.mark.sample(12)
def test_a_copy_waits_for_what_was_asked_of_both(pair: tuple[str, str]) -> None:
    here = Tensor(numpy.arange(50_000, dtype=numpy.float32), device=pair[0]).realize()
    for _ in range(5):
        here = (here + 1).realize()
        there = (here.to(pair[1]) * 2).realize()
        here = (there.to(pair[0]) - here).realize()

    assert here.numpy().tolist() == (numpy.arange(50_000) + 5).tolist()


def test_a_captured_step_copies_anew_at_each_replay(pair: tuple[str, str]) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x + 1).to(pair[1]) * 3).to(pair[0]).realize()

    for number in range(5):
        x = Tensor([float(number), 2.0], device=pair[0]).realize()
        assert step(x).tolist() == [3.0 * number + 3, 9.0]
