"""The power controller (SMU): features, clocks, and the reset of a whole card.

Linux, drivers/gpu/drm/amd/pm/swsmu/inc/pmfw_if/smu_v13_0_0_ppsmc.h: numbers of messages. A message
is a word in a mailbox, its argument in a second, its answer in a third.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tiny_amd.am.registers import Register, Registers, smu_mailbox
from tinycore.errors import DeviceError

__all__ = ["Clock", "Message", "Smu"]

MESSAGE_SECONDS: Final = 5.0
"""Time that it has to answer."""
_DONE: Final = 1
_MESSAGES: Final = (smu_mailbox(82), smu_mailbox(66), smu_mailbox(90))
_DEBUG: Final = (smu_mailbox(53), smu_mailbox(75), smu_mailbox(54))
"""Mailboxes: of the argument, of the message, of the answer."""
_DEBUG_MODE_1: Final = 2
ANSWERS: Final = {
    0xFF: "it failed",
    0xFE: "there is no such message",
    0xFD: "something that it needs is not there",
    0xFC: "it is busy",
}


class Message(IntEnum):
    """Messages that are sent."""

    GET_VERSION = 2
    ENABLE_ALL_FEATURES = 6
    SET_SOFT_MIN = 25
    GET_FREQUENCY = 31


class Clock(IntEnum):
    """Clocks that are set: of the graphics core, of the system, of the memory."""

    GRAPHICS = 0
    SYSTEM = 1
    MEMORY = 2


_HIGHEST: Final = 0xFF
"""In place of the number of a clock's level: how many there are."""


class Smu:
    """The power controller of a card."""

    def __init__(self, registers: Registers) -> None:
        self.registers = registers

    def start(self) -> None:
        """Switch on what the firmware can do, and ask for the highest clocks."""
        self.send(Message.GET_VERSION)
        self.send(Message.ENABLE_ALL_FEATURES)
        for clock in Clock:
            levels = self.send(Message.GET_FREQUENCY, clock << 16 | _HIGHEST) & 0xFF
            if levels:
                top = self.send(Message.GET_FREQUENCY, clock << 16 | (levels - 1)) & 0x7FFF
                self.send(Message.SET_SOFT_MIN, clock << 16 | top)

    def send(self, message: Message, argument: int = 0) -> int:
        """Send a message and return what is answered. Raises DeviceError."""
        return self._send(_MESSAGES, message, argument, message.name)

    def reset_card(self) -> None:
        """Reset the whole card (mode 1): all that is in it is lost. It needs half a second."""
        self._send(_DEBUG, _DEBUG_MODE_1, 0, "reset of the card")

    def _send(
        self, mailbox: tuple[Register, Register, Register], message: int, argument: int, name: str
    ) -> int:
        given, sent, answered = mailbox
        registers = self.registers
        registers.write(answered, 0)
        registers.write(given, argument)
        registers.write(sent, message)
        what = f"the power controller did not answer {name}"
        told = registers.wait(answered, lambda told: told != 0, MESSAGE_SECONDS, what)
        if told != _DONE:
            why = ANSWERS.get(told, f"answer {told:#x}")
            raise DeviceError(
                f"{registers.bus.name}: the power controller refuses {name}({argument:#x}): {why}"
            )
        return registers.read(given)
