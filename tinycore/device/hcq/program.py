"""`HCQProgram`: a loaded program, its launches through a queue, and its arguments.

Floor 1. Imports `protocols`, `signal`. A driver inherits from `HCQProgram` and adds what its
hardware needs to know of the code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct, pack_into
from typing import TYPE_CHECKING, ClassVar

from tinycore.device.hcq.launch import EncodedLaunches
from tinycore.device.hcq.memory import HCQBuffer, losses, verify_intact
from tinycore.device.hcq.signal import Moment
from tinycore.device.protocols import ProgramInfo
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

_POINTER_BYTES = 8


class HCQArgsState:
    """The arguments of one launch, as the program reads them: addresses, then values.

    The host reaches `memory`, at least `program.argument_bytes` of it. Laid out as C passes a
    structure of pointers and integers; a driver with another layout overrides the three methods.
    """

    __slots__ = ("addresses", "memory", "numbers", "program", "view")

    def __init__(
        self,
        program: HCQProgram,
        memory: HCQBuffer,
        buffers: Sequence[HCQBuffer],
        values: Sequence[int],
    ) -> None:
        self.program = program
        self.memory = memory
        view = memory.view
        self.view = memoryview(bytearray(memory.size)) if view is None else view
        self.addresses, self.numbers = self._words()
        """The arguments as words, which are written faster than by `struct`; None for values in a
        layout of other words.
        """
        self.fill(buffers, values)
        self.flush()

    def _words(self) -> tuple[memoryview, memoryview | None]:
        program, view = self.program, self.view
        size, split = program.layout.size, program.info.buffers * _POINTER_BYTES
        if program.VALUE_FORMAT != "q" or len(view) < size:
            return view, None
        return view[:split].cast("Q"), view[split:size].cast("q")

    def flush(self) -> None:
        """Hand what was written to memory that the host reaches by calls alone; `view` is a copy of
        it. Called by the core after each change.
        """
        if self.memory.window is not None:
            self.memory.window[0 : self.view.nbytes] = self.view

    def fill(self, buffers: Sequence[HCQBuffer], values: Sequence[int]) -> None:
        """Write all arguments."""
        addresses, numbers = self.addresses, self.numbers
        if numbers is None:
            self.program.layout.pack_into(self.view, 0, *[b.address for b in buffers], *values)
            return
        for place, buffer in enumerate(buffers):
            addresses[place] = buffer.address
        for place, value in enumerate(values):
            numbers[place] = value

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
    """A program of one device. Calling it launches it, after all earlier submissions."""

    ARGS_STATE: ClassVar[type[HCQArgsState]] = HCQArgsState
    VALUE_FORMAT: ClassVar[str] = "q"
    """The type of a variable's value among the arguments, as in `struct`: q or i."""
    ARGUMENT_ALIGNMENT: ClassVar[int] = 64
    """Alignment of the memory for the arguments of a launch, in bytes."""

    def __init__(
        self,
        device: HCQCompiled,
        info: ProgramInfo,
        *,
        argument_bytes: int = 0,
        scratch_bytes: int = 0,
    ) -> None:
        """`scratch_bytes` is the scratch of one thread."""
        self.device = device
        self.info = info
        self.scratch_bytes = scratch_bytes
        self.layout = Struct(f"={info.buffers}Q{len(info.values)}{self.VALUE_FORMAT}")
        self.value_bytes = Struct(f"={self.VALUE_FORMAT}").size
        self.argument_bytes = max(self.layout.size, argument_bytes, 1)
        self.names = (info.name,)
        self._era = self._value = 0
        """Era and timeline value of the last launch; 0 before the first."""
        self._encoded: EncodedLaunches | None = None
        self.owned: list[HCQBuffer] = []
        device.loaded_programs.add(self)
        with device.lock:
            device.reap()
            if scratch_bytes:
                device.need_scratch(scratch_bytes)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # names of modules are gone, and the device was closed
            return
        launched = getattr(self, "last_launch", None)
        owned = getattr(self, "owned", ())
        for buffer in owned:  # the hardware may still be in its code
            self.device.discard(buffer, launched)
        if launched is not None and not owned:  # a driver that frees its code by itself
            with suppress(DeviceError):
                launched.wait()

    @property
    def last_launch(self) -> Moment | None:
        """The end of the last launch; None before the first."""
        if not self._value:
            return None
        return Moment(self.device, self._era, self.device.timeline_signal, self._value)

    @last_launch.setter
    def last_launch(self, moment: Moment) -> None:
        self._era, self._value = moment.era, moment.value

    def launched_until(self, moment: Moment) -> None:
        """Record a later moment as the end of the last launch."""
        self._era, self._value = max((self._era, self._value), (moment.era, moment.value))

    def owns(self, buffer: HCQBuffer) -> HCQBuffer:
        """Hold memory such as code, which is freed some time after the last launch.

        Returns the buffer. `covers` says whether an address of a fault lies in it.
        """
        self.owned.append(self.device.own(buffer))
        return buffer

    def covers(self, address: int) -> bool:
        """True if the memory of the program contains an address."""
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
        device = self.device
        with device.lock:
            device.ready()
            if losses.count:
                verify_intact(buffers)
            if self._value and not wait and not self.info.grid_extents:
                if self._encoded is None:
                    self._encoded = EncodedLaunches(device)
                if value := self._encoded.launch(self, buffers, values):
                    self._era, self._value = device.era, value
                    return None
            return self._launch_once(buffers, values, wait)

    def _launch_once(
        self, buffers: Sequence[HCQBuffer], values: Sequence[int], wait: bool
    ) -> float | None:
        """Launch by commands that are not cached. Called with the lock held."""
        device, info = self.device, self.info
        place = device.kernel_arguments.take(self.argument_bytes, self.ARGUMENT_ALIGNMENT)
        arguments = self.arguments(place, buffers, values)
        queue = device.compute_queue()
        queue.wait(device.timeline_signal, device.timeline_value - 1).memory_barrier()
        grid = info.groups(values)
        if wait:
            begin, end = device.new_signal(), device.new_signal()
            queue.timestamp(begin).exec(self, arguments, grid, info.block).timestamp(end)
        else:
            queue.exec(self, arguments, grid, info.block)
        self.last_launch = launched = device.finish(queue, info.name)
        if not wait:
            return None
        device.wait_for(launched)
        return end.seconds - begin.seconds
