"""The processors that start a card: its boot loader and security processor, and its power
controller.

They do what drivers may rely on, and a Mistake is what they would refuse without a word, or hang
at. Linux, drivers/gpu/drm/amd/amdgpu/psp_gfx_if.h and psp_v13_0.c; smu_v13_0_0_ppsmc.h.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from kfd_standin.gpu import Mistake

if TYPE_CHECKING:
    from pci_standin.card import PciGpu

__all__ = ["PowerController", "SecurityProcessor"]

READY: Final = 1 << 31
MEBIBYTE: Final = 1 << 20
STAGES: Final = {
    0x80000: 3,
    0x10000000: 5,
    0x10000: 2,
    0xB0000: 7,
    0xD0000: 8,
    0xC0000: 9,
    0xE0000: 10,
    0x20000: 1,
}
"""Commands of the boot loader, in the only order in which it takes them, and what each loads."""
SMU: Final = 18
TRUSTED_BYTES: Final = 5 * MEBIBYTE


class SecurityProcessor:
    """The boot loader, then the security processor's own system."""

    def __init__(self, card: PciGpu) -> None:
        self.card = card
        self.hangs_at = ""
        """Request that it does not answer: "loader", "ring", "fence" or "autoload"."""
        self.first_word = 0
        """Place in the ring where its first command is expected."""
        self.refuses = 0
        """The type of firmware that it refuses."""
        self.reset()

    def reset(self) -> None:
        """After power-up."""
        self.loaded: list[int] = []
        self.is_alive = False
        self.ring = (0, 0)
        self.fence = 0
        self.firmware: list[int] = []
        self.has_toc = self.has_memory = self.is_done = False
        self.card.set("PSP_BOOT", 0 if self.hangs_at == "loader" else READY)
        for name in ("PSP_ALIVE", "PSP_RING", "PSP_WRITTEN", "PSP_RING_LOW", "PSP_RING_HIGH"):
            self.card.set(name, 0)

    def boot(self, command: int) -> None:
        """PSP_BOOT is written: load what lies at the address."""
        card = self.card
        if self.is_alive or not card.get("PSP_BOOT") & READY:
            raise Mistake(f"the boot loader is given {command:#x}, and does not listen")
        if command not in STAGES:
            raise Mistake(f"the boot loader knows no command {command:#x}")
        wanted = [kind for kind in STAGES.values() if kind in dict(card.firmware.sos)]
        if STAGES[command] != wanted[len(self.loaded)]:
            raise Mistake(f"the boot loader is given {command:#x} after {self.loaded}")
        content = dict(card.firmware.sos)[STAGES[command]]
        place = (card.get("PSP_ADDRESS") << 20) - card.first
        if card.seen(place, len(content)) != content:
            raise Mistake(f"component {STAGES[command]} does not lie at {place:#x}")
        self.loaded.append(STAGES[command])
        self.is_alive = STAGES[command] == 1
        card.set("PSP_ALIVE", 0x00130000 if self.is_alive else 0)
        card.set("PSP_BOOT", READY)

    def make_ring(self, command: int) -> None:
        """PSP_RING is written."""
        card = self.card
        if not self.is_alive:
            raise Mistake("a ring is made before the security processor's system runs")
        if command != 2 << 16:
            raise Mistake(f"a ring of kind {command:#x}")
        place = (card.get("PSP_RING_HIGH") << 32 | card.get("PSP_RING_LOW")) - card.first
        size = card.get("PSP_RING_SIZE")
        if size != 0x10000 or place % 4096:
            raise Mistake(f"a ring of {size} bytes at {place:#x}")
        self.ring = (place, size)
        card.set("PSP_WRITTEN", self.first_word)
        card.set("PSP_RING", command if self.hangs_at == "ring" else READY | command)

    def submit(self, written: int) -> None:
        """PSP_WRITTEN is written: take one frame."""
        card, (place, size) = self.card, self.ring
        before = card.get("PSP_WRITTEN")
        if not size or written != (before + 16) % (size // 4):
            raise Mistake(f"the ring goes from word {before} to {written}")
        frame = struct.unpack("<9I28x", card.seen(place + before * 4, 64))
        command = (frame[0] | frame[1] << 32) - card.first
        fence = (frame[3] | frame[4] << 32) - card.first
        if frame[2] != 1024 or frame[5] != self.fence + 1:
            raise Mistake(f"a frame of {frame[2]} bytes, fence {frame[5]} after {self.fence}")
        self.fence = frame[5]
        content = bytearray(card.seen(command, 1024))
        total, version, number = struct.unpack_from("<3I", content)
        if total != 1024 or version != 1:
            raise Mistake(f"a command of {total} bytes, version {version}")
        body = struct.unpack_from("<7I", content, 28)
        status, trusted = self.execute(number, body)
        card.put(command + 864, struct.pack("<5I", status, 0, 0, 0, trusted))
        if self.hangs_at != "fence":
            card.put(fence, self.fence.to_bytes(4, "little"))
        card.set("PSP_WRITTEN", written)

    def execute(self, number: int, body: tuple[int, ...]) -> tuple[int, int]:
        """A command: its status, and the bytes of trusted memory it wants."""
        place = (body[0] | body[1] << 32) - self.card.first
        if number == 0x20:
            table = dict(self.card.firmware.sos)[4]
            if self.card.seen(place, body[2]) != table:
                raise Mistake("what is loaded as the table of contents is none")
            self.has_toc = True
            return 0, TRUSTED_BYTES - 1000
        if number == 5:
            if not self.has_toc or body[2] != TRUSTED_BYTES or place % MEBIBYTE:
                raise Mistake(f"trusted memory of {body[2]} bytes at {place:#x}")
            if body[3] != 2 or body[4] | body[5] << 32 != place:
                raise Mistake(f"trusted memory by its other address: {body[3:6]}")
            self.has_memory = True
            self.trusted = place
            return 0, 0
        if number == 6:
            return self.load(place, body[2], body[3]), 0
        if number == 0x21:
            return self.autoload(), 0
        raise Mistake(f"the security processor knows no command {number:#x}")

    def load(self, place: int, size: int, kind: int) -> int:
        """Firmware of another processor."""
        if not self.has_memory:
            raise Mistake(f"firmware {kind} is loaded before there is memory for it")
        if not self.firmware and kind != SMU:
            raise Mistake(f"firmware {kind} is loaded before that of the power controller")
        wanted = {image.kind: image.content for image in self.card.firmware.images}
        if self.card.seen(place, size) != wanted.get(kind):
            raise Mistake(f"what is loaded as firmware {kind} is something else")
        if kind == self.refuses:
            return 0xFFFF0007
        self.firmware.append(kind)
        self.card.power.is_alive = self.card.power.is_alive or kind == SMU
        return 0

    def autoload(self) -> int:
        """All firmware is there: the graphics core loads its own, and has power from now on."""
        missing = {image.kind for image in self.card.firmware.images} - {*self.firmware}
        if missing:
            raise Mistake(f"the graphics core starts without firmware {sorted(missing)}")
        if self.hangs_at != "autoload":
            self.is_done = True
            self.card.switch_on()
        return 0


class PowerController:
    """Messages, their arguments and answers."""

    def __init__(self, card: PciGpu) -> None:
        self.card = card
        self.is_alive = False
        self.answer = 1
        """Its answer; 0 for none."""
        self.sent: list[tuple[int, int]] = []

    def message(self, number: int, argument: int) -> tuple[int, int]:
        """Its answer, and the argument that comes with it."""
        if not self.is_alive:
            raise Mistake(f"message {number} to a power controller without firmware")
        self.sent.append((number, argument))
        if number not in (2, 6, 25, 31):
            return 0xFE, 0
        if number == 31:
            levels = {0: 2, 1: 3, 2: 4}.get(argument >> 16, 0)
            return self.answer, levels if argument & 0xFF == 0xFF else 500 * (argument & 0xFF) + 500
        return self.answer, 0x004E5C00 if number == 2 else 0

    def debug_message(self, number: int) -> int:
        """Its answer to a message of the debug mailbox: 2 resets the card."""
        if number != 2:
            raise Mistake(f"debug message {number}")
        if self.card.is_bus_master:
            raise Mistake("a card is reset that may still write to the system's memory")
        self.card.reset()
        return 1
