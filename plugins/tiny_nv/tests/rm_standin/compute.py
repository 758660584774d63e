"""The compute class: inline copies, windows, caches, and launches of kernels.

open-gpu-doc: clc6c0.h, clc9c0.h, clcbc0.h, clcec0.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rm_standin.launches import Launcher, Settings
from rm_standin.status import Mistake
from rm_standin.view import WRITE, View

if TYPE_CHECKING:
    from rm_standin.machine import Machine
    from rm_standin.objects import Channel

__all__ = ["Compute"]

INLINE: Final = {
    0x180: "length",
    0x184: "lines",
    0x188: "high",
    0x18C: "low",
    0x190: "pitch",
}
HARMLESS: Final = {0x140, 0x280, 0x288, 0x298, 0x310, 0x1528, 0x25F8, 0x25FC}
"""PM_TRIGGER, versions, INVALIDATE_SKED_CACHES, SPA, exceptions, trap handler."""
WINDOWS: Final = {
    0x2A0: ("shared_window", 1),
    0x2A4: ("shared_window", 0),
    0x7B0: ("local_window", 1),
    0x7B4: ("local_window", 0),
    0x790: ("local_base", 1),
    0x794: ("local_base", 0),
    0x2E4: ("local_tpc_bytes", 1),
    0x2E8: ("local_tpc_bytes", 0),
    0x2EC: ("local_units", 0),
}
REPORT: Final = {
    0x158: "payload_low",
    0x15C: "payload_high",
    0x160: "low",
    0x164: "high",
}
OLD_REPORT: Final = {0x1B00: "high", 0x1B04: "low", 0x1B08: "payload_low"}
FIRST_INLINE_QMD: Final = 0x320
DATA_AND_CONSTANTS: Final = 1 << 4 | 1 << 12
INVALIDATE, SCHEDULE, INVALIDATE_COPY_SCHEDULE = 1, 2, 3
PREFETCH_SCHEDULE, INVALIDATE_PREFETCH_COPY_SCHEDULE = 9, 0xA
LAUNCHING: Final = (SCHEDULE, INVALIDATE_COPY_SCHEDULE, PREFETCH_SCHEDULE, 0xA)


class Compute:
    """The class on a channel. Launches that nothing waits for run in reverse order."""

    def __init__(self, machine: Machine, channel: Channel, view: View) -> None:
        self.machine, self.channel, self.view = machine, channel, view
        self.settings = Settings()
        self.launcher = Launcher(machine, channel, view, self.settings)
        self.inline: dict[str, int] = {}
        self.loading: list[int] | None = None
        self.report: dict[str, int] = {}
        self.qmd_address: int | None = None
        self.inline_qmd = [0, 0]
        self.qmd_words: dict[int, int] = {}
        self.is_fresh = False
        """True if caches hold nothing from before others' work that was waited for."""
        self.forgets_code = False
        self.seen: dict[int, bytes] = {}

    def write(self, method: int, value: int) -> None:
        """A method."""
        if self.loading is not None and method != 0x1B4:
            raise Mistake(f"method {method:#x} within the data of an inline copy")
        if method in INLINE:
            self.inline[INLINE[method]] = value
        elif method in WINDOWS:
            self.settings.set(*WINDOWS[method], value)
        elif method in REPORT:
            self.report[REPORT[method]] = value
        elif method in OLD_REPORT:
            self.report[OLD_REPORT[method]] = value
        elif FIRST_INLINE_QMD <= method < FIRST_INLINE_QMD + 384:
            self.load_qmd((method - FIRST_INLINE_QMD) // 4, value)
        elif method not in HARMLESS:
            self.act(method, value)

    def act(self, method: int, value: int) -> None:
        """A method that does something."""
        match method:
            case 0x1B0:
                self.begin_inline(value)
            case 0x1B4:
                self.load_inline(value)
            case 0x110:
                self.flush()
            case 0x168 | 0x1B0C:
                self.release(method, value)
            case 0x21C | 0x1698:
                self.invalidate(value)
            case 0x2B4:
                self.qmd_address = value << 8
            case 0x2C0:
                self.schedule(value)
            case 0x318 | 0x31C:
                self.inline_qmd[method == 0x31C] = value
            case _:
                raise Mistake(f"the compute class is sent method {method:#x} with {value:#x}")

    # --- inline copies, semaphores, caches

    def begin_inline(self, value: int) -> None:
        if value & 1 != 1:
            raise Mistake(f"an inline copy to blocks of pixels: {value:#x}")
        if missing := {"length", "lines", "high", "low"} - {*self.inline}:
            raise Mistake(f"an inline copy without {', '.join(sorted(missing))}")
        if self.inline["lines"] != 1 or not self.inline["length"]:
            raise Mistake(f"an inline copy of {self.inline}")
        self.loading = []

    def load_inline(self, value: int) -> None:
        """Data, which arrives when all of it is there: nothing waits for kernels before it."""
        if self.loading is None:
            raise Mistake("data of an inline copy that was not launched")
        self.loading.append(value)
        length = self.inline["length"]
        if 4 * len(self.loading) < length:
            return
        data = b"".join(word.to_bytes(4, "little") for word in self.loading)[:length]
        self.loading = None
        address = self.inline["high"] << 32 | self.inline["low"]
        self.view.span(address, length, WRITE)[:] = list(data)
        self.is_fresh = False

    def release(self, method: int, value: int) -> None:
        """A report: a semaphore after all kernels."""
        if value & 3:
            raise Mistake(f"a report of {value:#x}")
        self.flush()
        is_long = method == 0x168 and bool(value >> 12 & 1)
        shape = value >> 3 & 3 if method == 0x168 else value >> 28 & 1
        clock = None if shape else self.channel.gpu.clock()
        payload = self.report["payload_low"]
        if is_long:
            payload |= self.report.get("payload_high", 0) << 32
        address = self.report["high"] << 32 | self.report["low"]
        self.view.release(address, payload, is_long, clock)

    def invalidate(self, value: int) -> None:
        if value & DATA_AND_CONSTANTS == DATA_AND_CONSTANTS:
            self.is_fresh = True
        self.forgets_code = self.forgets_code or bool(value & 1)

    # --- launches

    def schedule(self, value: int) -> None:
        """SEND_SIGNALING_PCAS2_B."""
        action = value & 15
        if action == INVALIDATE:
            return
        if action not in LAUNCHING or value >> 4:
            raise Mistake(f"SEND_SIGNALING_PCAS2_B of {value:#x}")
        if self.qmd_address is None:
            raise Mistake("a launch without SEND_PCAS_A")
        self.launch(self.qmd_address, invalidates=action != SCHEDULE)

    def load_qmd(self, index: int, value: int) -> None:
        """A descriptor within the pushbuffer, which its last word launches."""
        words = 96 if self.inline_qmd[0] >> 30 & 1 else 64
        needed = self.channel.gpu.facts.qmd[1] // 4
        if words != needed:
            raise Mistake(f"an inline descriptor of {words} words; this card has {needed}")
        if index != len(self.qmd_words):
            raise Mistake(f"word {index} of an inline descriptor after {len(self.qmd_words)}")
        self.qmd_words[index] = value
        if len(self.qmd_words) < words:
            return
        address = ((self.inline_qmd[0] & 0x1FF) << 32 | self.inline_qmd[1]) << 8
        data = b"".join(self.qmd_words[n].to_bytes(4, "little") for n in range(words))
        self.qmd_words = {}
        self.view.span(address, 4 * words, WRITE)[:] = list(data)
        self.machine.inline_launches += 1
        self.launch(address, invalidates=True)

    def launch(self, address: int, *, invalidates: bool) -> None:
        """A launch, which runs when something waits for it."""
        found = self.launcher.read(address)
        content = bytes(found.data)
        if not invalidates and self.seen.get(address, content) != content:
            raise Mistake(f"the descriptor at {address:#x} has changed, and is not invalidated")
        self.seen[address] = content
        self.launcher.begin(found, is_fresh=self.is_fresh, forgets_code=self.forgets_code)

    def flush(self) -> bool:
        """End what has begun."""
        found = self.launcher.flush()
        if found:
            self.forgets_code = False
        return found
