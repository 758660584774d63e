"""Bring-up of a card without a kernel driver: the steps in order, and all of them taken back.

Nothing is changed before the user has named the card in NV_PCI_TAKE, and whatever ends the
bring-up, the card goes back to the driver that had it. Cards of Ampere (GA10x), Ada, Hopper and
Blackwell are started; the chip of Ampere without FRTS data (GA100) is inspected and given back.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, cast

from tiny_hcq import PciFunction, System, system
from tiny_nv.pci.access import Access, open_access
from tiny_nv.pci.bus import CONSENT, VFIO, TakenCard, cards_on_bus, driver_in_the_end
from tiny_nv.pci.card import ChipClasses, GspCard
from tiny_nv.pci.firmware import load_firmware, verify_firmware
from tiny_nv.pci.gsp import GspProcessor
from tiny_nv.pci.pages import SystemMemory
from tiny_nv.pci.registers import Architecture, Registers
from tiny_nv.settings import nv_settings
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory

__all__ = ["OpenedCard", "card_count", "obstacle", "open_card"]

START_SECONDS: Final = 4.0
"""Time that a card has to start by itself, after a reset too."""
_CLASSES: Final = {
    "ga102": ChipClasses(0xC7C0, 0xC7B5, 0xC56F),
    "ad102": ChipClasses(0xC9C0, 0xC7B5, 0xC56F),
    "gh100": ChipClasses(0xCBC0, 0xC8B5, 0xC86F),
    "gb100": ChipClasses(0xCDC0, 0xC9B5, 0xC96F),
    "gb202": ChipClasses(0xCEC0, 0xCAB5, 0xCA6F),
}
"""Classes by the first chip of each architecture."""
_CARDS_KEPT: Final = "tiny_nv cards of PCI"
"""Attribute of a machine that holds its open cards, by their addresses."""


def card_count() -> int:
    """Number of cards on the bus, whoever has them."""
    return len(cards_on_bus(system()))


def obstacle() -> str:
    """Why there is no card, with what to do; empty when there is one. Opens nothing."""
    if card_count():
        return ""
    return "no card of NVIDIA is on the PCI bus (/sys/bus/pci/devices)"


def open_card(index: int) -> OpenedCard:
    """A card, brought up once for all its users. Raises DeviceUnavailable, with the card back where
    it was.
    """
    machine = system()
    cards = cards_on_bus(machine)
    if index >= len(cards):
        names = ", ".join(map(str, cards)) or "none"
        raise DeviceUnavailable(f"there is no PCI+NV:{index}; there are: {names}")
    card = cards[index]
    opened = _opened(machine)
    if card.address in opened and opened[card.address].process == os.getpid():
        opened[card.address].users += 1
        return opened[card.address]
    verify_consent(card)
    found = opened[card.address] = _bring_up(machine, card)
    return found


def _opened(machine: System) -> dict[str, OpenedCard]:
    """Open cards of a machine, by their addresses."""
    return cast("dict[str, OpenedCard]", vars(machine).setdefault(_CARDS_KEPT, {}))


def verify_consent(card: PciFunction) -> None:
    """Raise DeviceUnavailable, saying what would be done, unless the user has named the card."""
    if card.address == nv_settings.NV_PCI_TAKE:
        return
    has_driver = card.driver not in ("", VFIO)
    taken = f"take it from its driver {card.driver}, " if has_driver else ""
    former = driver_in_the_end(system(), card)
    again = f", and give it back to {former}" if former not in ("", VFIO) else ""
    raise DeviceUnavailable(
        f"DEV=PCI+NV would use {card} without a kernel driver: {taken}enable it, map its "
        f"registers and memory, reset it if its processor runs, start that processor with firmware "
        f"of linux-firmware, and in the end reset it{again}. Every other program that uses the "
        f"card, a desktop too, fails meanwhile. No card was ever driven this way: it is tried "
        f"against a stand-in only, and the machine may have to be started anew. If you want it: "
        f"{CONSENT}={card.address}, as root"
    )


@dataclass(frozen=True)
class _Ready:
    """A card that is ready to have its processor started."""

    registers: Registers
    architecture: Architecture


class OpenedCard(GspCard):
    """A card of this process, which gives it back in the end."""

    def __init__(
        self,
        taken: TakenCard,
        ready: _Ready,
        access: Access,
        memory: SystemMemory,
        processor: GspProcessor,
    ) -> None:
        card = taken.card
        bar1 = access.map_bar(1), card.bar_bytes[1]
        classes = _CLASSES[ready.architecture.chip]
        super().__init__(ready.registers, memory, processor, classes, bar1)
        self.taken = taken
        self.process = os.getpid()
        self.undo = ExitStack()

    def close(self) -> None:
        """Give the card back, when this was its last user. Raises DeviceError where its driver does
        not take it.
        """
        self.users -= 1
        if self.users:
            return
        _opened(self.taken.machine).pop(self.taken.card.address, None)
        super().close()
        self.doorbell.release()
        self.undo.close()
        if self.taken.complaint:
            raise DeviceError(self.taken.complaint.strip())


def _bring_up(machine: System, card: PciFunction) -> OpenedCard:
    """Take a card and start it; all that is done is undone by the card's `undo`."""
    with ExitStack() as undo:
        taken = TakenCard(machine, card)
        undo.callback(_give_back, taken)
        try:
            access = open_access(taken)
            undo.callback(access.close)
            ready = _ready(taken, access)
            found = _start(taken, ready, access, undo)
        except (DeviceError, OutOfMemory) as error:
            undo.close()
            raise DeviceUnavailable(f"{error}{taken.complaint}") from error
        found.undo = undo.pop_all()
        return found


def _give_back(taken: TakenCard) -> None:
    taken.complaint = taken.give_back()


def _ready(taken: TakenCard, access: Access) -> _Ready:
    """Bring a card to where its processor can be started."""
    registers = Registers(taken.machine, taken.card, access.map_bar(0))
    architecture = registers.architecture
    verify_firmware(taken.machine, architecture)
    if registers.has_protected_memory(architecture):
        access.reset()
        registers.wait_until(
            lambda: not registers.has_protected_memory(architecture),
            START_SECONDS,
            lambda: "its processor still runs after a reset",
        )
    registers.wait_for_start(architecture, START_SECONDS)
    return _Ready(registers, architecture)


def _start(taken: TakenCard, ready: _Ready, access: Access, undo: ExitStack) -> OpenedCard:
    """Start the processor of a card that is ready. Raises DeviceUnavailable and OutOfMemory."""
    registers, architecture = ready.registers, ready.architecture
    if registers.is_ga100:
        memory = registers.memory_bytes(architecture)
        raise DeviceUnavailable(
            f"{registers.card} is ready ({architecture.name}, {memory >> 20:,} MiB), its firmware "
            "is there, and NV cannot start its processor: a chip without FRTS is not driven yet. "
            "Use DEV=NV, over NVIDIA's kernel driver"
        )
    firmware = load_firmware(taken.machine, architecture)
    system_memory = SystemMemory(access)
    undo.callback(system_memory.close)
    # The reset ends what runs on the card before its memory goes back to the system.
    undo.callback(_stop, access)
    processor = GspProcessor(registers.card, registers, architecture, system_memory, firmware)
    undo.callback(processor.close)
    return OpenedCard(taken, ready, access, system_memory, processor)


def _stop(access: Access) -> None:
    """Let a card address memory no more, then reset it as far as it can be."""
    access.stop()
    with suppress(DeviceUnavailable):  # what has it next resets it, or says that it cannot
        access.reset()
