"""`HCQSignal`: sixteen bytes by which queues, devices and the host synchronize.

Floor 1. Imports `config`, `errors`. A signal's value only grows while somebody may wait for it, so
"at least" is the one comparison there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from tinycore.config import settings
from tinycore.device.hcq.memory import HCQBuffer, Words
from tinycore.device.hcq.words import Number, Symbol, Word
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

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
