"""Rings of pushbuffers: doorbells, pointers, and what is executed next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rm_standin.machine import Machine
    from rm_standin.objects import Channel

__all__ = ["Ring"]


class Ring:
    """The ring of one channel."""

    def __init__(self, machine: Machine, channel: Channel) -> None:
        self.machine, self.channel = machine, channel
        self.is_stopped = False

    def fail(self, code: int) -> None:
        """Stop, and tell by the notifier."""
        from rm_standin.controls import notify  # noqa: PLC0415

        self.is_stopped = True
        notify(self.channel.notifier, code, 0, self.channel.gpu.clock())
