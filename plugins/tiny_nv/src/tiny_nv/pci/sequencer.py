"""Sequences of register accesses that the GSP asks the host for while it starts.

NVIDIA/open-gpu-kernel-modules, rmgspseq.h.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Final, Protocol

from tiny_nv.pci.registers import Registers
from tinycore.errors import DeviceError

__all__ = ["Core", "run_sequence"]

_SEQUENCE_HEADER: Final = struct.Struct("<2I8I")
"""Words of the buffer, words that are commands, and where registers are saved."""
WRITE, MODIFY, POLL, DELAY, STORE, RESET, START, WAIT_FOR_HALT, RESUME = range(9)
_ARGUMENTS: Final[Mapping[int, int]] = {WRITE: 2, MODIFY: 3, POLL: 5, DELAY: 1, STORE: 2}
_POLL_SECONDS: Final = 4.0
_SAVED: Final = 8


class Core(Protocol):
    """The GSP's processor, as sequences drive it."""

    def reset_core(self) -> None:
        """Reset it, with the falcon's core chosen."""
        ...

    def start_core(self) -> None:
        """Start the falcon's core."""
        ...

    def wait_for_halt(self) -> None:
        """Wait until the falcon's core halts."""
        ...

    def resume(self) -> None:
        """Have the RISC-V core run again."""
        ...


def run_sequence(registers: Registers, core: Core, content: bytes) -> list[int]:
    """Run a sequence, and return the registers it saved. Raises DeviceError."""
    if len(content) < _SEQUENCE_HEADER.size:
        raise DeviceError(f"the GSP asks for a sequence of {len(content)} bytes")
    _, count, *saved = _SEQUENCE_HEADER.unpack_from(content)
    if _SEQUENCE_HEADER.size + 4 * count > len(content):
        raise DeviceError(f"the GSP asks for {count} words in {len(content)} bytes")
    words = list(struct.unpack_from(f"<{count}I", content, _SEQUENCE_HEADER.size))
    while words:
        operation = words.pop(0)
        arguments = [words.pop(0) for _ in range(min(_ARGUMENTS.get(operation, 0), len(words)))]
        if operation > RESUME or len(arguments) < _ARGUMENTS.get(operation, 0):
            raise DeviceError(f"the GSP asks for operation {operation} with {arguments}")
        _run(registers, core, operation, arguments, saved)
    return saved


def _run(
    registers: Registers, core: Core, operation: int, arguments: list[int], saved: list[int]
) -> None:
    if operation == WRITE:
        registers.write(*arguments)
    elif operation == MODIFY:
        register, mask, value = arguments
        registers.write(register, registers.read(register) & ~mask | value)
    elif operation == POLL:
        register, mask, value, timeout_ms, error = arguments
        registers.wait_until(
            lambda: registers.read(register) & mask == value,
            timeout_ms / 1e3 or _POLL_SECONDS,
            lambda: f"the GSP waits for {value:#x} in register {register:#x} (its error {error})",
        )
    elif operation == DELAY:
        time.sleep(arguments[0] / 1e6)
    elif operation == STORE:
        register, index = arguments
        if index >= _SAVED:
            raise DeviceError(f"the GSP saves register {register:#x} at {index}")
        saved[index] = registers.read(register)
    else:
        (core.reset_core, core.start_core, core.wait_for_halt, core.resume)[operation - RESET]()
