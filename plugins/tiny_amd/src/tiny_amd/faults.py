"""Faults of a card, from KFD's events, in words: address, kernel and reason.

Linux, include/uapi/linux/kfd_ioctl.h, `kfd_hsa_memory_exception_data` and
`kfd_hsa_hw_exception_data`.
"""

from __future__ import annotations

from typing import Any, Final

from tiny_amd.kfd import Event, EventType, Kfd
from tiny_amd.topology import Card

__all__ = ["Faults"]

RESETS: Final = {0: "the whole card was reset", 1: "the kernel's queues were reset"}
CAUSES: Final = {0: "it hung", 1: "its memory has errors that cannot be corrected"}


class Faults:
    """The events of one card, and what they have told."""

    def __init__(self, kfd: Kfd, card: Card) -> None:
        self.kfd, self.card = kfd, card
        self.events: list[Event] = []
        self.found = ""
        """Description of the first fault; "" without one."""
        self.address = 0
        """The address of a memory fault."""
        try:
            for kind in (EventType.SIGNAL, EventType.MEMORY, EventType.HARDWARE):
                self.events.append(kfd.create_event(card, kind))
        except BaseException:
            self.close()
            raise

    @property
    def done(self) -> Event:
        """Completion event, which a queue signals at the end of its work."""
        return self.events[0]

    def wait(self, milliseconds: int) -> None:
        """Wait for the end of some work, or for a fault."""
        _, memory, hardware = self.kfd.wait_events(self.events, milliseconds)
        self.note(memory, hardware)

    def poll(self) -> None:
        """Ask for a fault without waiting."""
        if not self.found and self.events:
            self.note(*self.kfd.wait_events(self.events[1:], 0))

    def note(self, memory: Any, hardware: Any) -> None:
        """Keep the first fault."""
        if not self.found and memory.memory.gpu_id == self.card.gpu_id:
            self.found, self.address = of_memory(memory.memory), memory.memory.va
        if not self.found and hardware.hardware.gpu_id == self.card.gpu_id:
            self.found = of_hardware(hardware.hardware)

    def close(self) -> None:
        """Give the events back."""
        while self.events:
            self.kfd.destroy_event(self.events.pop())


def of_memory(data: Any) -> str:
    """An access that the page table does not allow."""
    reasons = [
        text
        for flag, text in (
            (data.not_present, "nothing is mapped there"),
            (data.read_only, "it may only be read"),
            (data.no_execute, "it may not be executed"),
        )
        if flag
    ]
    about = "about " if data.imprecise else ""
    why = ", ".join(reasons) or "no reason is given"
    return f"a memory fault in {about}the page at {data.va:#x}: {why}"


def of_hardware(data: Any) -> str:
    """A reset."""
    reset = RESETS.get(data.reset_type, f"a reset of type {data.reset_type}")
    cause = CAUSES.get(data.reset_cause, f"cause {data.reset_cause}")
    lost = ", and what was in its memory is lost" if data.memory_lost else ""
    return f"{reset}, as {cause}{lost}"
