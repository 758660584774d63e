"""The native thread pool, from Python: compiled once per machine, started once per process.

`pool.c` is the pool, and `queue.c` the queues that stand on it. Clang compiles them as they are;
llvmlite compiles `pool.ll`, which is both as LLVM IR, in words that every LLVM since 20 reads.
It is generated where the wheel is built (`hatch_build.py`). A forked child starts threads of its
own.
See docs/decisions/0020-cpu-thread-pool.md.
"""

from __future__ import annotations

import signal
import struct
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final

from tiny_cpu._lib import Pointer, aligned_memory, as_function, keep_forever, view
from tiny_cpu.arch import Arch, host_machine
from tiny_cpu.clang import ClangCompiler, is_clang_installed
from tiny_cpu.code import Code
from tiny_cpu.llvm import LlvmCompiler
from tinycore import cache as disk
from tinycore.config import cpu_count
from tinycore.plugin import file_identity, in_child, lock

__all__ = ["RECORD", "Pool", "code_of_pool", "pool", "pool_in_c"]

_HERE: Final = Path(__file__).parent
_RELAX: Final = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.isb(i32 15)"}
"""Spin-wait hints, by machine."""
_SPINS: Final = 20_000
"""Turns a thread spins before it sleeps: .4 to .8 ms, at 20 to 40 ns a turn.

That is longer than the Python between two kernels. A thread that sleeps then costs 50 us to wake,
and as much again where the caller waits for it.
"""
_ALIGNMENT_BYTES: Final = 128

RECORD: Final = struct.Struct("=QQQqq")
"""One launch of `Pool.run_many`: addresses of entry, buffers and values, extent, chunk."""


class Pool:
    """Threads that run kernels together with the caller, until the process ends."""

    def __init__(self, threads: int) -> None:
        code = code_of_pool()
        self._bytes = as_function("pool_bytes", code.symbols["tc_pool_bytes"])()
        self._run = as_function("pool_run", code.symbols["tc_pool_run"])
        self._run_slice = as_function("pool_run_slice", code.symbols["tc_pool_run_slice"])
        self._run_many = as_function("pool_run_many", code.symbols["tc_pool_run_many"])
        self.state = aligned_memory(self._bytes, _ALIGNMENT_BYTES)
        keep_forever(self.state)
        view(self.state, self._bytes)[:] = bytes(self._bytes)
        self.threads = 1 + self._start(code, threads - 1)

    def _start(self, code: Code, workers: int) -> int:
        start = as_function("pool_start", code.symbols["tc_pool_start"])
        inherited = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:  # workers inherit the mask, so signals reach the threads of Python
            return int(start(self.state, workers, _SPINS, sys.platform == "darwin"))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, inherited)

    def run(self, entry: int, buffers: bytes, values: bytes, extent: int, chunk: int) -> bool:
        """Run iterations 0 to `extent` of a kernel, `chunk` at a time. True if it was quick.

        Another kernel runs in slices of 50 ms: a signal handler of Python waits for one, and may
        end the run.
        """
        at = slices = 0
        while at < extent:
            at = self._run_slice(self.state, entry, buffers, values, at, extent, chunk)
            slices += 1
        return slices == 1

    def bound(
        self, entry: int, buffers: bytes, values: bytes, extent: int, chunk: int
    ) -> Callable[[], None]:
        """A whole run as one native call without arguments."""
        return partial(self._run, self.state, entry, buffers, values, extent, chunk)

    def run_many(self, records: Pointer, count: int) -> None:
        """Run `count` launches, packed as RECORD, one after the other in one native call."""
        self._run_many(self.state, records, count)


# One pool per process

_pools: Final[list[Pool]] = []
_starting: Final = lock()


def pool() -> Pool:
    """The pool of this process; the first call starts it, with as many threads as CPU_COUNT."""
    if not _pools:
        with _starting:
            if not _pools:
                _pools.append(Pool(cpu_count()))
    return _pools[0]


def _forget() -> None:
    """In a forked child: the threads stayed behind in the parent."""
    _pools.clear()


in_child(_forget)


# From source to code


@cache
def code_of_pool() -> Code:
    """The functions of the pool and of queues, loaded for as long as the process lives."""
    key = f"{host_machine()}\n{file_identity(__file__)}\n{source_in_c()}\n{_source('pool.ll')}"
    known = disk.get("pool", key)
    compiled = known or (compile_by_clang() if is_clang_installed() else compile_by_llvm())
    code = Code(compiled, "the thread pool")
    if known is None:  # of whichever compiler made it first, but nothing that does not load
        disk.put("pool", key, compiled)
    code.keep_forever()  # workers are still inside it when the interpreter takes its modules apart
    return code


def compile_by_clang() -> bytes:
    """The pool as clang makes it, for any processor of this machine's kind."""
    return ClangCompiler(Arch.parse(host_machine())).compile(source_in_c())


def compile_by_llvm() -> bytes:
    """The pool as llvmlite makes it."""
    return LlvmCompiler(Arch.parse(host_machine())).compile(portable_source(host_machine()))


def portable_source(machine: str) -> str:
    """pool.ll, completed by what it leaves to the machine."""
    relax = _RELAX[machine]
    declaration = "declare void " + relax.replace("i32 15", "i32")
    definition = (
        f"{declaration}\n\ndefine internal void @relax() {{\n  call void {relax}\n  ret void\n}}"
    )
    return _source("pool.ll").replace("declare void @relax()", definition)


def source_in_c() -> str:
    """The pool and the queues as one text."""
    return pool_in_c() + "\n" + _source("queue.c")


def pool_in_c() -> str:
    """The pool alone."""
    return _source("pool.c")


def _source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
