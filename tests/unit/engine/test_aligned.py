"""Buffers that start anywhere, on a device whose vectors must be aligned: launches, replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy
import pytest

from tinycore import Tensor, TinyJit
from tinycore.builtin.interpreter import PythonProgram, PythonRenderer, PythonRuntime
from tinycore.builtin.interpreter import toolchain as interpreted
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.engine.device_graph import Alone, HeldLaunches, Single
from tinycore.plugin import Backend, Launch, ProgramInfo, Toolchain, register, unregister
from tinycore.render.base import Renderer

NAME = "ALIGNED"
ALIGNMENT = 16


class Picky(PythonProgram):
    """A program with float4 accesses that refuses memory where they would not be aligned."""

    launched: ClassVar[list[Picky]] = []

    def __init__(self, binary: bytes, info: ProgramInfo) -> None:
        super().__init__(binary, info)
        self.has_vectors = b"vec(" in binary

    def __call__(
        self, buffers: Sequence[Any], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        self.launched.append(self)
        wrong = [b.ctypes.data % ALIGNMENT for b in buffers if b.ctypes.data % ALIGNMENT]
        assert not (self.has_vectors and wrong), f"a misaligned address: {wrong}"
        return super().__call__(buffers, values, wait=wait)


@dataclass
class Held:
    """Launches of a graph, which holds them as they are."""

    launches: list[tuple[Any, list[Any], list[int]]]
    runs: int = 0

    def set_buffer(self, launch: int, slot: int, handle: Any) -> None:
        self.launches[launch][1][slot] = handle

    def set_value(self, launch: int, position: int, value: int) -> None:
        self.launches[launch][2][position] = value

    def __call__(self, *, wait: bool = False) -> float | None:
        self.runs += 1
        for program, buffers, values in self.launches:
            program(buffers, values)
        return 0.0 if wait else None


class Runtime(PythonRuntime):
    """PYTHON, with graphs."""

    def load(self, binary: bytes, info: ProgramInfo) -> Picky:
        return Picky(binary, info)

    def graph(self, launches: Sequence[Launch]) -> Held:
        return Held([(program, list(bufs), list(values)) for program, bufs, values in launches])


class Moving(PythonRenderer):
    """The interpreter's language without arithmetic on vectors: all that are left are moved."""

    vector_ops: ClassVar[bool] = False


def toolchain(arch: str) -> Toolchain[Renderer]:
    made = interpreted("groups=4")
    limits = replace(made.renderer.limits, threads=1, access_alignment=ALIGNMENT)
    return replace(made, renderer=Moving(limits))


BACKEND = Backend(
    name=NAME,
    api=(2, 0),
    open=Runtime,
    renderers={"PYTHON": toolchain},
    capabilities=frozenset({"graph", "local_memory", "external_pointer", "host_memory"})
    | {dtype.name for dtype in dtypes.all},
    priority=-1,
)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    register(BACKEND)
    yield
    unregister(NAME)


def array(size: int) -> Any:
    return numpy.arange(size, dtype=numpy.float32)


def owned(size: int, start: int) -> Tensor:
    """A tensor whose memory is `start` elements into a buffer."""
    base = Buffer.from_cpu(NAME, array(size + start))
    return Tensor.from_blob(address(base) + 4 * start, (size,), device=NAME, dtype=dtypes.float32)


KEPT: list[Buffer] = []


def address(buffer: Buffer) -> int:
    KEPT.append(buffer)
    return int(buffer.handle.ctypes.data)


@pytest.mark.parametrize(("start", "expected"), [(0, 64), (4, 16), (1, 4), (6, 8), (64, 64)])
def test_alignment_of_a_view(start: int, expected: int) -> None:
    base = Buffer(NAME, 256, dtypes.float32)
    assert base.view(8, offset_bytes=4 * start).alignment == expected
    assert Buffer.like(base).alignment == 64


def test_alignment_of_memory_of_somebody_else() -> None:
    base = Buffer(NAME, 256, dtypes.float32).ensure_allocated()
    found = Buffer.external(NAME, address(base) + 8, 8, dtypes.float32)
    assert found.alignment == 8
    assert found.view(2, offset_bytes=8).alignment == 16


@pytest.mark.parametrize("start", [0, 1, 2, 4])
def test_kernels_take_buffers_that_start_anywhere(start: int) -> None:
    found = (owned(64, start) * 2).numpy()
    numpy.testing.assert_array_equal(found, (array(64 + start) * 2)[start:])


def step(x: Tensor) -> tuple[Tensor, Tensor]:
    doubled = (x * 2).contiguous()
    turned = doubled.flip(0).contiguous()  # another kernel, whatever is fused
    return doubled, (turned.flip(0) + 1).contiguous()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("single", [False, True])
def test_replays_on_buffers_that_start_elsewhere(first: int, single: bool) -> None:
    jitted = TinyJit((lambda x: step(x)[:1]) if single else step)
    for start in (first, first, 0, 4, 1, 2, 0, 1):
        results = jitted(owned(64, start))
        right = (array(64 + start) * 2)[start:]
        for more, found in enumerate(results):
            numpy.testing.assert_array_equal(found.numpy(), right + more)
    assert jitted.captured is not None
    kind = Alone if single else HeldLaunches
    assert jitted.captured.graphs is not None
    assert [type(part) for part in jitted.captured.graphs] == [kind]


def test_aligned_replays_stay_in_the_graph() -> None:
    jitted = TinyJit(step)
    for start in (0, 0, 4, 0, 1, 4):
        jitted(owned(64, start))[0].realize()
    assert jitted.captured is not None
    assert jitted.captured.graphs is not None
    (part,) = jitted.captured.graphs
    assert isinstance(part, HeldLaunches)
    assert isinstance(part.graph, Held)
    assert part.graph.runs == 3  # all but the one of an odd start


def test_only_buffers_that_start_anywhere_are_accessed_by_elements() -> None:
    (owned(64, 4) * 3).realize()
    assert Picky.launched[-1].has_vectors
    (owned(64, 1) * 3).realize()
    assert not Picky.launched[-1].has_vectors


def test_only_a_replay_on_unaligned_memory_is_made_ready_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jitted = TinyJit(lambda x: step(x)[:1])
    for _ in range(3):
        jitted(owned(64, 0))
    anew: list[Single] = []
    right = Single.run

    def noted(self: Single, *rest: Any) -> None:
        anew.append(self)
        right(self, *rest)

    monkeypatch.setattr(Single, "run", noted)
    jitted(owned(64, 4))
    assert not anew
    jitted(owned(64, 1))
    assert len(anew) == 1
