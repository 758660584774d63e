"""Bring-up of a card without a kernel driver: the steps in order, as far as they are known.

Nothing is changed before the user has named the card in NV_PCI_TAKE, and whatever ends the
bring-up, the card goes back to the driver that had it. Starting the card's own processor (GSP) is
the step after these: FWSEC and the booter, or the message to the security processor, run signed
code by registers that no public document describes to the bit, and no card was at hand to try.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from tiny_nv.pci.bus import CONSENT, PciCard, TakenCard, cards_on_bus
from tiny_nv.pci.firmware import verify_firmware
from tiny_nv.pci.registers import Architecture, Registers
from tiny_nv.settings import nv_settings
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import system

__all__ = ["Inspection", "card_count", "inspect", "obstacle", "open_card"]

START_SECONDS: Final = 4.0
"""Time that a card has to start by itself, after a reset too."""


@dataclass(frozen=True)
class Inspection:
    """Facts of a card that is ready to have its processor started."""

    architecture: Architecture
    memory_bytes: int | None
    firmware: tuple[str, ...]
    was_reset: bool
    complaint: str = ""
    """Work left to the user for the card's driver to have it again; "" for nothing."""


def card_count() -> int:
    """Number of cards on the bus, whoever has them."""
    return len(cards_on_bus(system()))


def obstacle() -> str:
    """Why there is no card, with what to do; empty when there is one. Opens nothing."""
    if card_count():
        return ""
    return "no card of NVIDIA is on the PCI bus (/sys/bus/pci/devices)"


def open_card(index: int) -> NoReturn:
    """Bring a card up. Raises DeviceUnavailable, with the card back where it was: the last step is
    not known.
    """
    cards = cards_on_bus(system())
    if index >= len(cards):
        names = ", ".join(map(str, cards)) or "none"
        raise DeviceUnavailable(f"there is no PCI+NV:{index}; there are: {names}")
    card = cards[index]
    verify_consent(card)
    found = inspect(card)
    memory = f"{found.memory_bytes >> 20:,} MiB" if found.memory_bytes else "memory not told"
    way = "the security processor" if found.architecture.has_fsp else "FWSEC and the booter"
    back = f"The card is back with {card.driver or 'no driver'}, as it was."
    raise DeviceUnavailable(
        f"{card} is ready ({found.architecture.name}, {memory}), its firmware is there, and NV "
        f"cannot start its processor: {way} is not driven yet. {found.complaint.strip() or back} "
        "Use DEV=NV, over NVIDIA's kernel driver."
    )


def verify_consent(card: PciCard) -> None:
    """Raise DeviceUnavailable, saying what would be done, unless the user has named the card."""
    if card.address == nv_settings.NV_PCI_TAKE:
        return
    taken = f"take it from its driver {card.driver}, " if card.driver else ""
    again = f", and give it back to {card.driver}" if card.driver else ""
    raise DeviceUnavailable(
        f"DEV=PCI+NV would use {card} without a kernel driver: {taken}enable it, map its "
        f"registers, reset it if its processor runs{again}. Every other program that uses the "
        f"card, a desktop too, fails meanwhile. It ends before the card's processor is started, "
        f"which NV cannot do yet, so that nothing runs. To see how far the card comes: {CONSENT}="
        f"{card.address}, as root"
    )


def inspect(card: PciCard) -> Inspection:
    """Take a card, bring it to where its processor can be started, and give it back.

    Raises DeviceUnavailable.
    """
    machine = system()
    taken = TakenCard(machine, card)
    try:
        found = _steps(taken)
    except DeviceUnavailable as error:
        if complaint := taken.give_back():
            raise DeviceUnavailable(f"{error}.{complaint}") from error
        raise
    except BaseException:
        taken.give_back()
        raise
    return replace(found, complaint=taken.give_back())


def _steps(taken: TakenCard) -> Inspection:
    """The steps on a card that is taken."""
    machine, card = taken.machine, taken.card
    with ExitStack() as undo:
        registers = Registers(machine, card)
        undo.callback(registers.close)
        architecture = registers.architecture
        firmware = verify_firmware(machine, architecture)
        must_reset = registers.has_protected_memory(architecture)
        if must_reset:
            taken.reset()
            registers.wait_until(
                lambda: not registers.has_protected_memory(architecture),
                START_SECONDS,
                lambda: "its processor still runs after a reset",
            )
        registers.wait_for_start(architecture, START_SECONDS)
        memory = registers.memory_bytes(architecture)
        return Inspection(architecture, memory, tuple(firmware), must_reset)
