"""Listings of NIR for tests: compiled by Mesa, launched on the stand-in, on numbers."""

from __future__ import annotations

from typing import Any

import numpy

from tiny_qcom import ir3
from tiny_qcom.chip import chip_of
from tiny_qcom.device import QcomDevice
from tinycore.plugin import ProgramInfo

Array = numpy.ndarray[Any, Any]
A630 = chip_of("a630")
THREADS = 64
HEAD = """kernel k
block {threads} 1 1
shared {shared}
arguments {bytes}
%one = const 32 0x1
%size = const 32 {shift:#x}
%t = thread 0
%wide = u2u64 %t
%far = ishl %wide %size
"""


NARROW = """%p1 = argument 64 8
%q1 = iadd %p1 %far
%x1 = load global {bits} 1 8 %q1
%y1 = {extend} %x1
%p2 = argument 64 16
%q2 = iadd %p2 %far
%x2 = load global {bits} 1 8 %q2
%y2 = {extend} %x2
"""


LOAD = """%p{n} = argument 64 {place}
%q{n} = iadd %p{n} %far
%x{n} = load global {bits} 1 8 %q{n}
"""
STORE = """%p0 = argument 64 0
%q0 = iadd %p0 %far
store global {bits} 1 8 %r %q0
"""


def compiled(body: str, arguments: int, shared: int = 0, threads: int = THREADS) -> bytes:
    head = HEAD.format(threads=threads, shared=shared, bytes=8 * arguments, shift=3)
    return ir3.Ir3Compiler(A630).compile(head + body)


def launched(
    device: QcomDevice,
    binary: bytes,
    arrays: list[Array],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = THREADS,
    shared: int = 0,
) -> list[Array]:
    """Run a kernel on arrays; what they are afterwards."""
    info = ProgramInfo("k", len(arrays), grid=grid, block=(threads, 1, 1), shared_bytes=shared)
    kernel = device.load(binary, info)
    handles = [device.allocator.alloc(max(a.nbytes, 64)) for a in arrays]
    for handle, array in zip(handles, arrays, strict=True):
        device.allocator.write(handle, array.data.cast("B"))
    kernel(handles, [], wait=True)
    found = []
    for handle, array in zip(handles, arrays, strict=True):
        back = bytearray(array.nbytes)
        device.allocator.read(memoryview(back), handle)
        device.allocator.free(handle)
        found.append(numpy.frombuffer(back, array.dtype))
    return found


def operands(kind: str, seed: int) -> Array:
    """Numbers at random, with those that are special in front."""
    generator = numpy.random.default_rng(seed)
    if kind == "f":
        special = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e30, -1e-30]
        floats = [*special, *(generator.standard_normal(THREADS - 8) * 100)]
        return generator.permutation(numpy.array(floats, "f")).view("I").astype("Q")
    bits = 32 if kind == "i" else 64
    bounds = [0, 1, 2, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 31, 0xFFFF]
    numbers = generator.integers(0, (1 << bits) - 1, THREADS - 8, "Q", endpoint=True)
    return generator.permutation(numpy.concatenate([numpy.array(bounds, "Q"), numbers]))


def s32(a: Array) -> Array:
    return a.astype("I").view("i").astype("q")


def s64(a: Array) -> Array:
    return a.view("q")


def f32(a: Array) -> Array:
    return a.astype("I").view("f")


def as_bits(a: Any) -> Array:
    return numpy.asarray(a, "f").view("I").astype("Q")


def computed(device: QcomDevice, operation: str, a: Array, b: Array, bits: int) -> Array:
    """An operation on each pair of numbers."""
    loads = "".join(LOAD.format(n=n, place=8 * n, bits=bits) for n in (1, 2))
    binary = compiled(loads + operation + STORE.format(bits=min(bits, 64)), 3)
    return launched(device, binary, [numpy.zeros(THREADS, "Q"), a, b])[0]
