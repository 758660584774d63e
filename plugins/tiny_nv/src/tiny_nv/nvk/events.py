"""An event of a card: what wakes a waiting process when a channel raises an interrupt.

The event belongs to a file of its own, which `poll` waits for. It tells that some channel of the
card has come to a NON_STALL_INTERRUPT, of whichever process, and nothing more: so who waits looks
at the signal again, and never sleeps for long. NVIDIA/open-gpu-kernel-modules 580.142: cl0005.h,
cl2080_notification.h, ctrl2080event.h, nv-ioctl.h.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tiny_nv.nvk.classes import Class, Control, Escape
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from tiny_nv.nvk.card import Card

__all__ = ["InterruptEvent", "SupportsPoll"]

_FIFO_EVENT: Final = 35
"""NV2080_NOTIFIERS_FIFO_EVENT_MTHD."""
_OF_INTERRUPTS: Final = 0x7000_0000
"""NONSTALL_INTR, SUBDEVICE_SPECIFIC and WITHOUT_EVENT_DATA, for subdevice 0."""
_REPEAT: Final = 2


@runtime_checkable
class SupportsPoll(Protocol):
    """A machine whose files are not this process's own."""

    def poll(self, file: int, timeout_ms: int) -> bool:
        """Wait for an event of a file; False when the time is over."""
        ...


class InterruptEvent:
    """The event of one card, armed as long as this is open."""

    def __init__(self, card: Card) -> None:
        rm, self.card = card.rm, card
        self.machine = rm.machine
        self.file = rm.machine.open(card.info.node)
        self.handle = 0
        try:
            rm.register(self.file)
            record = rm.record("alloc_os_event", hClient=rm.root, hDevice=card.device, fd=self.file)
            rm.request(Escape.ALLOC_OS_EVENT, record, "an event", self.file)
            rm.verify(record, "an event")
            params = rm.record(
                "event",
                hParentClient=rm.root,
                hSrcResource=card.subdevice,
                hClass=Class.NV01_EVENT_OS_EVENT,
                notifyIndex=_FIFO_EVENT | _OF_INTERRUPTS,
                data=self.file,
            )
            what = f"an event of {card}"
            self.handle = rm.alloc(card.subdevice, Class.NV01_EVENT_OS_EVENT, params, what=what)
            armed = rm.record("set_notification", event=_FIFO_EVENT, action=_REPEAT)
            rm.control(card.subdevice, Control.EVENT_SET_NOTIFICATION, armed)
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_ms: int) -> bool:
        """Sleep until an interrupt; False when the time is over."""
        if isinstance(self.machine, SupportsPoll):
            return self.machine.poll(self.file, timeout_ms)
        asked = select.poll()
        asked.register(self.file, select.POLLIN | select.POLLPRI)
        return bool(asked.poll(timeout_ms))

    def close(self) -> None:
        """Give the event back."""
        rm = self.card.rm
        with suppress(DeviceError):  # of a card that was lost
            if self.handle:
                rm.free(self.handle)
            record = rm.record(
                "alloc_os_event", hClient=rm.root, hDevice=self.card.device, fd=self.file
            )
            rm.request(Escape.FREE_OS_EVENT, record, "an event", self.file)
        self.machine.close(self.file)
