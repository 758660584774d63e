"""`HCQProgram`: a loaded program launched through a queue, and its arguments in memory.

Floor 1. Imports `protocols`, `signal`. A driver inherits from `HCQProgram` and adds what its
hardware needs to know of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct, pack_into
from typing import TYPE_CHECKING, ClassVar

from tinycore.device.hcq.memory import HCQBuffer
from tinycore.device.hcq.signal import Moment
from tinycore.device.protocols import ProgramInfo
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

__all__ = ["HCQArgsState", "HCQProgram"]

_POINTER_BYTES = 8


class HCQArgsState:
    """The arguments of one launch, as the program reads them: addresses, then values.

    `memory` is host-visible and at least `program.argument_bytes` long. Laid out as C passes a
    structure of pointers and integers; a driver with another layout overrides the three methods.
    """

    __slots__ = ("memory", "program", "view")

    def __init__(
        self,
        program: HCQProgram,
        memory: HCQBuffer,
        buffers: Sequence[HCQBuffer],
        values: Sequence[int],
    ) -> None:
        assert memory.view is not None, "arguments lie in memory that the host sees"
        self.program = program
        self.memory = memory
        self.view = memory.view
        self.fill(buffers, values)

    def fill(self, buffers: Sequence[HCQBuffer], values: Sequence[int]) -> None:
        """Write all arguments."""
        self.program.layout.pack_into(self.view, 0, *[b.address for b in buffers], *values)

    def set_buffer(self, slot: int, buffer: HCQBuffer) -> None:
        """Put another address into a slot."""
        pack_into("=Q", self.view, slot * _POINTER_BYTES, buffer.address)

    def set_value(self, position: int, value: int) -> None:
        """Put another value in the place of a variable."""
        program = self.program
        size = program.value_bytes
        start = program.info.buffers * _POINTER_BYTES + position * size
        pack_into(f"={program.VALUE_FORMAT}", self.view, start, value)


class HCQProgram:
    """A program of one device. Calling it launches it, after all that was asked before."""

    ARGS_STATE: ClassVar[type[HCQArgsState]] = HCQArgsState
    VALUE_FORMAT: ClassVar[str] = "q"
    """The type of a variable's value among the arguments, as in `struct`: q or i."""
    ARGUMENT_ALIGNMENT: ClassVar[int] = 64
    """Of the memory for the arguments of a launch, in bytes."""

    def __init__(
        self,
        device: HCQCompiled,
        info: ProgramInfo,
        *,
        argument_bytes: int = 0,
        scratch_bytes: int = 0,
    ) -> None:
        """`scratch_bytes` is what one thread spills to the device's scratch."""
        self.device = device
        self.info = info
        self.layout = Struct(f"={info.buffers}Q{len(info.values)}{self.VALUE_FORMAT}")
        self.value_bytes = Struct(f"={self.VALUE_FORMAT}").size
        self.argument_bytes = max(self.layout.size, argument_bytes, 1)
        self.last_launch: Moment | None = None
        self.owned: list[HCQBuffer] = []
        device.loaded_programs.add(self)
        with device.lock:
            device.reap()
            if scratch_bytes:
                device.need_scratch(scratch_bytes)

    def __del__(self) -> None:
        launched = getattr(self, "last_launch", None)
        owned = getattr(self, "owned", ())
        for buffer in owned:  # the hardware may still be in its code
            self.device.discard(buffer, launched)
        if launched is not None and not owned:  # a driver that frees its code by itself
            with suppress(DeviceError):
                launched.wait()

    def owns(self, buffer: HCQBuffer) -> HCQBuffer:
        """Hold memory such as code, which is freed some time after the last launch.

        Returns the buffer. `covers` says whether an address of a fault lies in it.
        """
        self.owned.append(self.device.own(buffer))
        return buffer

    def covers(self, address: int) -> bool:
        """Whether memory of its own contains an address."""
        return any(b.address <= address < b.address + b.size for b in self.owned)

    def arguments(
        self, memory: HCQBuffer, buffers: Sequence[HCQBuffer], values: Sequence[int]
    ) -> HCQArgsState:
        """The arguments of a launch, written to `memory`."""
        return self.ARGS_STATE(self, memory, buffers, values)

    def __call__(
        self, buffers: Sequence[HCQBuffer], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds between its two timestamps.

        Raises DeviceError when the device is lost, or becomes so during the wait.
        """
        device, info = self.device, self.info
        with device.lock:
            device.ready()
            arena = device.kernel_arguments
            place = arena.take(self.argument_bytes, self.ARGUMENT_ALIGNMENT)
            arguments = self.arguments(place, buffers, values)
            queue = device.compute_queue()
            queue.wait(device.timeline_signal, device.timeline_value - 1).memory_barrier()
            if wait:
                begin, end = device.new_signal(), device.new_signal()
                queue.timestamp(begin).exec(self, arguments, info.grid, info.block).timestamp(end)
            else:
                queue.exec(self, arguments, info.grid, info.block)
            self.last_launch = launched = device.finish(queue, info.name)
        if not wait:
            return None
        device.wait_for(launched)
        return end.seconds - begin.seconds
