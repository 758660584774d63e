"""Limits of the hardware: bytes read, bytes moved, multiplications; on all processors together.

`python -m benchmarks.limits` is a worker like the peers' (see `lines`), so that the limits are
measured in the same minutes as the work. The probes are loops in LLVM IR, compiled and run in
parallel by what tiny_cpu has for kernels, but not by tinycore's own code generator.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from benchmarks.lines import private_stdout, serve
from benchmarks.samples import take
from tiny_cpu import _lib
from tiny_cpu.arch import Arch
from tiny_cpu.code import Code
from tiny_cpu.llvm import LlvmCompiler
from tiny_cpu.pool import pool

__all__ = ["PROBES", "Probe"]

_MIB: Final = 1 << 20
_READ_BYTES: Final = 256 * _MIB
_TRIAD_BYTES: Final = 128 * _MIB
"""Size of each of its three arrays."""
_BLOCK: Final = 16384
"""Floats, or rounds of multiplications, in one iteration of a probe's parallel loop."""
_STREAMS: Final = 8
_ACCUMULATORS: Final = 12
"""Enough to cover a latency of four cycles at two per cycle; few enough for sixteen registers."""
_FMA_BLOCKS: Final = 512
_CHUNKS_PER_THREAD: Final = 8


@dataclass(frozen=True)
class Probe:
    """A parallel loop of `extent` blocks that does `amount` of work in all."""

    name: str
    unit: str
    source: Callable[[int], str]
    """LLVM IR for vectors of so many floats."""
    buffer_bytes: tuple[int, ...]
    extent: int
    amount: Callable[[int], float]


def _loop(name: str, buffers: int, step: int, phis: int, lanes: int, body: str, end: str) -> str:
    """A kernel over floats from begin * _BLOCK, `step` at a time, with accumulators a0 and on."""
    vector = f"<{lanes} x float>"
    pointers = "\n".join(
        f"  %place{i} = getelementptr ptr, ptr %buffers, i64 {i}\n  %b{i} = load ptr, ptr %place{i}"
        for i in range(buffers)
    )
    carried = "\n".join(
        f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in range(phis)
    )
    return f"""
define void @{name}(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {{
entry:
{pointers}
  %first = mul i64 %begin, {_BLOCK}
  %last = mul i64 %end, {_BLOCK}
  br label %loop
loop:
  %i = phi i64 [ %first, %entry ], [ %next, %loop ]
{carried}
{body}
  %next = add i64 %i, {step}
  %more = icmp slt i64 %next, %last
  br i1 %more, label %loop, label %done
done:
{end}
  ret void
}}
"""


def _store_sums(count: int, lanes: int, buffer: int) -> str:
    """Keep every accumulator: what nobody reads is not computed."""
    return "\n".join(
        f"  %r{i} = getelementptr <{lanes} x float>, ptr %b{buffer}, i64 {i}\n"
        f"  store <{lanes} x float> %n{i}, ptr %r{i}, align 4"
        for i in range(count)
    )


def _at(buffer: int, stream: int, lanes: int) -> str:
    return (
        f"  %p{buffer}_{stream} = getelementptr float, ptr %b{buffer}, i64 %i\n"
        f"  %q{buffer}_{stream} = getelementptr float, ptr %p{buffer}_{stream}, "
        f"i64 {stream * lanes}\n"
    )


def _read(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    body = "\n".join(
        f"{_at(0, i, lanes)}"
        f"  %v{i} = load {vector}, ptr %q0_{i}, align 4\n"
        f"  %n{i} = fadd {vector} %a{i}, %v{i}"
        for i in range(_STREAMS)
    )
    end = _store_sums(_STREAMS, lanes, 1)
    return _loop("read", 2, _STREAMS * lanes, _STREAMS, lanes, body, end)


def _triad(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    body = "\n".join(
        f"{_at(0, i, lanes)}{_at(1, i, lanes)}{_at(2, i, lanes)}"
        f"  %x{i} = load {vector}, ptr %q0_{i}, align 4\n"
        f"  %y{i} = load {vector}, ptr %q1_{i}, align 4\n"
        f"  %s{i} = fadd {vector} %y{i}, %y{i}\n"
        f"  %t{i} = fadd {vector} %x{i}, %s{i}\n"
        f"  store {vector} %t{i}, ptr %q2_{i}, align {4 * lanes}, !nontemporal !0"
        for i in range(_STREAMS)
    )
    return _loop("triad", 3, _STREAMS * lanes, 0, lanes, body, "") + "!0 = !{ i32 1 }\n"


def _multiply(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    load = (
        f"  %x = load {vector}, ptr %b0, align 4\n"
        f"  %far = getelementptr {vector}, ptr %b0, i64 1\n"
        f"  %y = load {vector}, ptr %far, align 4\n"
    )
    body = load + "\n".join(
        f"  %n{i} = call {vector} @llvm.fmuladd.v{lanes}f32"
        f"({vector} %a{i}, {vector} %x, {vector} %y)"
        for i in range(_ACCUMULATORS)
    )
    end = _store_sums(_ACCUMULATORS, lanes, 1)
    intrinsic = f"declare {vector} @llvm.fmuladd.v{lanes}f32({vector}, {vector}, {vector})\n"
    return _loop("fma", 2, 1, _ACCUMULATORS, lanes, body, end) + intrinsic


_SUMS_BYTES: Final = 4096

PROBES: Final[Mapping[str, Probe]] = {
    "read": Probe(
        "read", "B/s", _read, (_READ_BYTES, _SUMS_BYTES),
        _READ_BYTES // 4 // _BLOCK, lambda lanes: _READ_BYTES,
    ),
    "triad": Probe(
        "triad", "B/s", _triad, (_TRIAD_BYTES,) * 3,
        _TRIAD_BYTES // 4 // _BLOCK, lambda lanes: 3 * _TRIAD_BYTES,
    ),
    "fma": Probe(
        "fma", "FLOP/s", _multiply, (_SUMS_BYTES, _SUMS_BYTES),
        _FMA_BLOCKS, lambda lanes: 2.0 * lanes * _ACCUMULATORS * _BLOCK * _FMA_BLOCKS,
    ),
}  # fmt: skip
"""Reading one array; two arrays read and a third written past the caches; fused multiply-adds."""


class Ready:
    """A probe, compiled, with its memory touched."""

    def __init__(self, probe: Probe, arch: Arch) -> None:
        lanes = arch.limits().vector_bytes // 4
        binary = LlvmCompiler(arch).compile(probe.source(lanes))
        self.code = Code(binary, probe.name)
        self.entry = self.code.symbols[probe.name]
        self.memory = [_lib.mapped_memory(size) for size in probe.buffer_bytes]
        for pointer, size in zip(self.memory, probe.buffer_bytes, strict=True):
            _lib.view(pointer, size)[:] = bytes(size)
        self.addresses = struct.pack(f"={len(self.memory)}Q", *map(_lib.address_of, self.memory))
        self.amount = probe.amount(lanes)
        self.extent = probe.extent
        self.chunk = -(-probe.extent // (pool().threads * _CHUNKS_PER_THREAD))

    def __call__(self) -> None:
        pool().run(self.entry, self.addresses, b"", self.extent, self.chunk)

    def rates(self, seconds: float) -> list[float]:
        """Work per second, in each of some runs within about so many seconds."""
        self()
        rates: list[float] = []
        end = perf_counter() + seconds
        while not rates or perf_counter() < end:
            rates.append(self.amount / take(self, 1).seconds)
        return rates


def main() -> None:
    """Set up, then serve."""
    answers = private_stdout()
    arch = Arch.parse("")
    ready = {name: Ready(probe, arch) for name, probe in PROBES.items()}

    def turn(seconds: float) -> dict[str, list[float]]:
        return {name: probe.rates(seconds / len(ready)) for name, probe in ready.items()}

    serve(answers, {"about": str(arch)}, turn)


if __name__ == "__main__":
    main()
