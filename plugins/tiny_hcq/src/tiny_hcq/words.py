"""Words, buffers and signals: what the commands of queues refer to.

A queue that is submitted again and again is built once; where a command needs the timeline's next
value or the address of an input, it holds a `Word`, a function of a `Symbol` that each submission
gives. `HCQBuffer` is the handle that allocators return, with its view for the host. `HCQSignal` is
sixteen bytes by which queues, devices and the host synchronize: its value only grows while somebody
may wait for it, so "at least" is the one comparison there is.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from tinycore.config import settings
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tiny_hcq.compiled import HCQCompiled

_WHOLE: Final = 64
_HALF: Final = 32


class Symbol:
    """A number given at each submission. `name` is for people: symbols are compared by identity.

    `symbol + 8` is a Word, and so is `symbol * 4`.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __add__(self, addend: int) -> Word:
        return Word(self, addend)

    def __sub__(self, subtrahend: int) -> Word:
        return Word(self, -subtrahend)

    def __mul__(self, factor: int) -> Word:
        return Word(self, scale=factor)


@dataclass(frozen=True, slots=True)
class Word:
    """A multiple of a symbol plus a constant, or some bits of that: `bits` from bit `shift` on."""

    symbol: Symbol
    addend: int = 0
    shift: int = 0
    bits: int = _WHOLE
    scale: int = 1
    """Factor of the symbol, such as the threads of a group where a command counts threads."""

    def __add__(self, addend: int) -> Word:
        return replace(self, addend=self.addend + addend)

    def __sub__(self, subtrahend: int) -> Word:
        return self + -subtrahend

    def __mul__(self, factor: int) -> Word:
        return replace(self, scale=self.scale * factor, addend=self.addend * factor)

    def value(self, number: int) -> int:
        """Value of the word if the symbol is `number`."""
        return ((number * self.scale + self.addend) >> self.shift) & self.mask

    @property
    def mask(self) -> int:
        """Mask of all of its bits."""
        return (1 << self.bits) - 1


Number: TypeAlias = int | Word
"""Operand of a command: a number, or a symbol whose number each submission gives."""


def halves(number: Number) -> tuple[Number, Number]:
    """The low and the high 32 bits of a number of 64, for queues of 32-bit words."""
    if isinstance(number, Word):
        return replace(number, bits=_HALF), replace(number, shift=_HALF, bits=_HALF)
    return number & (1 << _HALF) - 1, number >> _HALF


class Place(enum.Enum):
    """Memory by who writes it and who reads it. A driver may have one kind for several."""

    LOCAL = "of tensors and code: near the device"
    STAGING = "the host copies in and out of it, so it is cached for the host"
    COMMANDS = "the host writes and the device reads, as arguments and words of queues"
    SIGNALS = "both write single words that the other sees at once"


class HostView(Protocol):
    """Memory that the host reaches by calls, as over USB or through a window of registers.

    What a memoryview does, and no more; slices have a start and an end.
    """

    def __getitem__(self, part: slice) -> bytes | memoryview:
        """The bytes from a start to an end."""

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        """Write all of the bytes."""

    def word(self, offset: int) -> int:
        """The 64 bits at an offset, read at once."""

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset at once."""


class Part:
    """The bytes of a view from a start on."""

    __slots__ = ("start", "view")

    def __init__(self, view: HostView, start: int) -> None:
        self.view = view
        self.start = start

    def __getitem__(self, part: slice) -> bytes | memoryview:
        return self.view[self.start + (part.start or 0) : self.start + part.stop]

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        self.view[self.start + (part.start or 0) : self.start + part.stop] = content

    def word(self, offset: int) -> int:
        """The 64 bits at an offset."""
        return self.view.word(self.start + offset)

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset."""
        self.view.set_word(self.start + offset, value)


class Words:
    """The words of a view by index, like `memoryview.cast("Q")`."""

    __slots__ = ("view",)

    def __init__(self, view: HostView) -> None:
        self.view = view

    def __getitem__(self, number: int) -> int:
        return self.view.word(8 * number)

    def __setitem__(self, number: int, value: int) -> None:
        self.view.set_word(8 * number, value)


class Losses:
    """Count of the devices of this process that were lost; while it is 0, no memory is theirs."""

    count = 0


losses: Final = Losses()


def verify_intact(buffers: Iterable[HCQBuffer]) -> None:
    """Raise DeviceError for memory of a device that was lost: see `HCQCompiled.verify_intact`."""
    if losses.count:
        for buffer in buffers:
            buffer.owner.verify_intact()


class HCQBuffer:
    """`size` bytes from a device address on, memory of `owner`.

    `view` are the same bytes as the host sees them, None where it cannot; `meta` is the driver's
    own. Memory that the host reaches by calls alone has a `window` instead. It is `readable` where
    the host reads it fast: memory behind a bus is written in bursts and read word by word. A part
    made by `offset` knows the whole allocation as its `base`. `external` memory belongs to somebody
    else, and may overlap other such.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "base",
        "external",
        "mapped",
        "meta",
        "owner",
        "readable",
        "size",
        "view",
        "window",
    )

    def __init__(
        self,
        address: int,
        size: int,
        owner: HCQCompiled,
        *,
        view: memoryview | None = None,
        meta: Any = None,
        base: HCQBuffer | None = None,
        external: bool = False,
        window: HostView | None = None,
        readable: bool = True,
    ) -> None:
        self.address = address
        self.size = size
        self.owner = owner
        self.view = view
        self.meta = meta
        self.base = base
        self.external = external
        self.window = window
        self.readable = readable
        self.mapped: set[HCQCompiled] = set()
        """Other devices that can address it; stored on the base."""

    def __repr__(self) -> str:
        return f"<HCQBuffer {self.address:#x}, {self.size} bytes of {self.owner.name}>"

    @property
    def root(self) -> HCQBuffer:
        """The whole allocation."""
        return self if self.base is None else self.base

    @property
    def host(self) -> memoryview | HostView | None:
        """The host's access to it: its `view`, else its `window`."""
        return self.window if self.view is None else self.view

    def offset(self, start: int, size: int) -> HCQBuffer:
        """The `size` bytes from `start` on, sharing the memory."""
        return HCQBuffer(
            self.address + start,
            size,
            self.owner,
            view=None if self.view is None else self.view[start : start + size],
            meta=self.meta,
            base=self.root,
            window=None if self.window is None else Part(self.window, start),
            readable=self.readable,
        )


_EAGER_SECONDS: Final = 2e-4
"""Time of busy waiting, by which most waits are over."""
_LONGEST_SLEEP_SECONDS: Final = 1e-3


class SignalPlace(Protocol):
    """Address of a signal, as queues take it."""

    @property
    def address(self) -> Number:
        """The address of the value; the timestamp lies TIMESTAMP_OFFSET bytes after it."""


class SymbolicSignal:
    """A signal whose address each submission gives: a timeline has two in turn."""

    __slots__ = ("address",)

    def __init__(self, symbol: Symbol) -> None:
        self.address = Word(symbol)


class HCQSignal:
    """A value and a timestamp, 64 bits each, in memory that devices of one group and the host see.

    A driver whose engines want timestamps elsewhere has a class of its own, which
    `HCQCompiled.SIGNAL` names. Slots come from `HCQCompiled.new_signal` and go back when the signal
    is dropped.
    """

    BYTES: ClassVar[int] = 16
    """Size, and alignment: a power of two."""
    TIMESTAMP_OFFSET: ClassVar[int] = 8
    """From the value to the timestamp, in bytes."""

    __slots__ = ("_words", "address", "buffer", "device")

    def __init__(self, buffer: HCQBuffer, value: int = 0) -> None:
        self.buffer = buffer
        self.address: int = buffer.address
        self.device = buffer.owner
        self._words = words_of(buffer)
        self._words[0] = value
        self._words[self.TIMESTAMP_OFFSET // 8] = 0

    def __repr__(self) -> str:
        return f"<HCQSignal of {self.device.name} at {self.value}>"

    def __del__(self) -> None:
        if hasattr(self, "_words"):
            self.device.free_slots.append(self.buffer)

    @property
    def value(self) -> int:
        """Current value."""
        return self._words[0]

    @value.setter
    def value(self, number: int) -> None:
        self._words[0] = number

    @property
    def timestamp(self) -> int:
        """Time of the last `HWQueue.timestamp` on it, in ticks of the device's clock."""
        return self._words[self.TIMESTAMP_OFFSET // 8]

    @property
    def seconds(self) -> float:
        """The timestamp in seconds of the device's clock."""
        return self.timestamp / self.device.ticks_per_second

    def wait(
        self,
        value: int,
        timeout_ms: float | None = None,
        unless: Callable[[], bool] | None = None,
    ) -> None:
        """Wait until the value is at least `value`, or until `unless` says that nobody needs it.

        Each change of the value starts the time limit (WAIT_TIMEOUT_MS) anew. Raises DeviceError
        naming the device and its state when it is lost, or when nothing changed for that long.
        """
        seen = self.value
        if seen >= value:
            return
        limit = (settings.WAIT_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1e3
        since = started = time.monotonic()
        while (found := self.value) < value and not (unless is not None and unless()):
            now = time.monotonic()
            if found != seen:
                seen, since = found, now
            if now - started > _EAGER_SECONDS and (reason := self.device.trouble()):
                raise self.device.lost(f"waiting for {value} at {found}: {reason}")
            if now - since > limit:
                raise DeviceError(self._late(value, limit))
            self.device.sleep(self, value, now - since)

    def _late(self, value: int, limit: float) -> str:
        return (
            f"{self.device.name} did not bring a signal from {self.value} to {value} within "
            f"{limit * 1e3:.0f} ms: {self.device.state()}. If kernels may take that long, set "
            "WAIT_TIMEOUT_MS higher."
        )


def words_of(buffer: HCQBuffer) -> memoryview | Words:
    """The words of a signal, as the host reaches them."""
    if buffer.view is not None:
        return buffer.view.cast("Q")
    assert buffer.window is not None, "signals lie in memory that the host reaches"
    return Words(buffer.window)


def pause(waited_seconds: float) -> None:
    """Yield to other threads, for longer the longer the wait has been."""
    eager = waited_seconds < _EAGER_SECONDS
    time.sleep(0 if eager else min(waited_seconds / 4, _LONGEST_SLEEP_SECONDS))


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take a microsecond more to make
class Moment:
    """A fence: a point of a device's timeline, passed when all work submitted before it is done.

    It stays right when the timeline begins anew (`era`), since all before that is done. Never
    changed once it is made.
    """

    device: HCQCompiled
    era: int
    signal: HCQSignal
    value: int

    @property
    def passed(self) -> bool:
        """True if the timeline has reached it."""
        return self.device.era != self.era or self.signal.value >= self.value

    def wait(self, timeout_ms: float | None = None) -> None:
        """Wait until all of it is done. Raises DeviceError as `HCQSignal.wait` does."""
        if not self.passed:
            device, era = self.device, self.era
            self.signal.wait(self.value, timeout_ms, lambda: device.era != era)
