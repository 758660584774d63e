"""Command queues of the CPU: words for a native thread that executes them; see queue.c.

A command is six words. Queues that are bound lie in native memory and are called from there, so a
captured step is one command for its thread.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Final, Self

from tiny_cpu._lib import (
    Pointer,
    address_of,
    aligned_memory,
    as_function,
    free_memory,
    keep_forever,
    view,
)
from tiny_cpu.pool import code_of_pool, pool
from tiny_cpu.program import CpuProgram, chunk_of
from tiny_hcq import HCQArgsState, HCQProgram, HWQueue, Number, SignalPlace
from tinycore.config import settings
from tinycore.errors import DeviceError

__all__ = ["CpuQueue", "Worker", "wait_a_little"]

WAIT, SIGNAL, TIMESTAMP, BARRIER, EXEC, COPY, CALL = range(1, 8)
_COMMAND_WORDS: Final = 6
_WORD_BYTES: Final = 8
_COMMAND_BYTES: Final = _COMMAND_WORDS * _WORD_BYTES
_CAPACITY: Final = 1 << 10
"""Commands that a ring holds."""
_SPINS: Final = 20_000
"""Turns a worker waits at full speed: as long as the threads of the pool do."""
_HOST_SPINS: Final = 1000
_HOST_NAPS: Final = 20
_ALIGNMENT_BYTES: Final = 128


class Worker:
    """A native thread with a ring of commands."""

    def __init__(self, name: str) -> None:
        self.name = name
        code = code_of_pool().symbols
        size = as_function("queue_bytes", code["tc_queue_bytes"])(_CAPACITY)
        self._submit = as_function("queue_submit", code["tc_queue_submit"])
        self._stop = as_function("queue_stop", code["tc_queue_stop"])
        self._state = aligned_memory(size, _ALIGNMENT_BYTES)
        keep_forever(self._state)  # the thread uses it, whatever Python forgets
        view(self._state, size)[:] = bytes(size)
        start = as_function("queue_start", code["tc_queue_start"])
        inherited = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:  # signals reach the threads of Python
            darwin = sys.platform == "darwin"
            started = start(self._state, pool().state, _CAPACITY, _SPINS, darwin)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, inherited)
        self.is_running = bool(started)
        if not started:
            free_memory(self._state)
            raise DeviceError(f"the system has no thread left for {name}: end other programs")

    def submit(self, commands: bytes) -> None:
        """Append commands to the ring, waiting for room. Raises DeviceError when none comes."""
        count = len(commands) // _COMMAND_BYTES
        taken = self._submit(self._state, commands, count)
        if taken != count:
            self._submit_rest(commands[taken * _COMMAND_BYTES :])

    def _submit_rest(self, commands: bytes) -> None:
        since = time.monotonic()
        while commands:
            time.sleep(1e-4)
            taken = self._submit(self._state, commands, len(commands) // _COMMAND_BYTES)
            if taken:
                since = time.monotonic()
            elif time.monotonic() - since > settings.WAIT_TIMEOUT_MS / 1e3:
                raise DeviceError(
                    f"{self.name} has taken no command for {settings.WAIT_TIMEOUT_MS} ms"
                )
            commands = commands[taken * _COMMAND_BYTES :]

    def stop(self) -> None:
        """End the thread, which leaves what it waits for, and free its memory; once."""
        if self.is_running:
            self._stop(self._state)
            self.is_running = False
            free_memory(self._state)


class CpuQueue(HWQueue):
    """Commands for one worker, which can do all of them."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._bound: Pointer = None
        self._call = b""
        """The command that calls what is bound."""

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Go on when the signal is at least at `value`."""
        return self.append(WAIT, signal.address, value, 0, 0, 0)

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set the signal to `value`."""
        return self.append(SIGNAL, signal.address, value, 0, 0, 0)

    def timestamp(self, signal: SignalPlace) -> Self:
        """Note the nanoseconds of the system's steady clock."""
        return self.append(TIMESTAMP, signal.address, 0, 0, 0, 0)

    def memory_barrier(self) -> Self:
        """Nothing: a wait sees all that was written before its signal."""
        return self

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        """Run a kernel, its iterations shared among the threads of the pool."""
        buffers = args_state.memory.address
        values = buffers + program.info.buffers * _WORD_BYTES
        kernel: CpuProgram = program.program  # type: ignore[attr-defined]
        extent = grid[0]
        assert isinstance(extent, int), "steps are numbers"
        chunk = kernel.chunk if extent == kernel.extent else chunk_of(extent)
        return self.append(EXEC, kernel.entry, buffers, values, extent, chunk)

    def copy(self, dst: Number, src: Number, size: int) -> Self:
        """Copy bytes, which may overlap."""
        return self.append(COPY, dst, src, size, 0, 0)

    def bind_words(self) -> memoryview | None:
        """The commands in native memory."""
        size = len(self.words) * _WORD_BYTES
        if not size:
            return None
        self._bound = aligned_memory(size, _ALIGNMENT_BYTES)
        memory = view(self._bound, size)
        memory[:] = memoryview(self.words).cast("B")
        call = CpuQueue(self._worker)
        call.append(CALL, address_of(self._bound), len(self.words) // _COMMAND_WORDS, 0, 0, 0)
        self._call = call.words.tobytes()
        return memory.cast("Q")

    def submit_words(self) -> None:
        """Hand the commands to the worker."""
        if self._call:
            self._worker.submit(self._call)
        elif self.words:
            self._worker.submit(self.words.tobytes())


def wait_a_little(address: int, value: int, long: bool) -> None:
    """Wait for a signal in native code, some microseconds, or some hundreds when `long`."""
    wait = as_function("queue_await", code_of_pool().symbols["tc_queue_await"])
    wait(address, value, 0 if long else _HOST_SPINS, _HOST_NAPS if long else 1)
