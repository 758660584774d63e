"""Channels of a card as its driver makes them: rings of entries that name commands, and doorbells.

A group of channels runs on the graphics engine, which computes, and copies by an engine of its own;
or copies have a group on another copy engine. A fault stops the whole group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from tiny_hcq import bytes_at, fence
from tiny_nv.nvk.card import Allocation
from tiny_nv.nvk.classes import Class, Control
from tiny_nv.nvk.rm import Refused
from tinycore.config import settings
from tinycore.errors import DeviceError, OutOfMemory
from tinycore.plugin import lock

if TYPE_CHECKING:
    from tiny_nv.nvk.layouts import Record
    from tiny_nv.nvk.protocols import OpenCard

__all__ = ["LARGEST_ENTRY", "Channel", "ChannelGroup"]

ENTRIES: Final = 1024
RING_BYTES: Final = 8 * ENTRIES
USERD_BYTES: Final = 512
GET: Final = 0x88
PUT: Final = 0x8C
LARGEST_ENTRY: Final = (1 << 21) - 1
"""Words that one entry names."""
NOTIFIER_BYTES: Final = 4096
_STATUS, _CODE = 14, 8
_RECORDED: Final = 0xFFFF
_SUBROUTINE: Final = 1 << 41
_LENGTH_SHIFT: Final = 42
_GRAPHICS: Final = 1
_FIRST_COPY_ENGINE: Final = 9
_ASYNCHRONOUS: Final = 1


class ChannelGroup:
    """A channel that computes and one that copies, which report errors in one place."""

    def __init__(self, card: OpenCard, copy_engine: int | None = None) -> None:
        """`copy_engine`: the engine that copies in a group of its own; None for the graphics
        engine's.
        """
        self.card, self.rm = card, card.rm
        self.copy_engine = copy_engine
        self._undo = ExitStack()
        self.memory = self._undo.enter_context(ExitStack())
        """Memory that the channels use, freed after them."""
        try:
            self._open()
        except BaseException:
            self._undo.close()
            raise

    def _open(self) -> None:
        card, rm, undo = self.card, self.rm, self._undo
        notifier = card.allocate(NOTIFIER_BYTES, is_system=True, is_visible=True)
        undo.callback(card.free, notifier)
        self.notifier = notifier
        self._note = bytes_at(notifier.host, NOTIFIER_BYTES)
        self._note[:] = bytes(NOTIFIER_BYTES)
        rings = [self._ring(), self._ring()]  # before the channels, as they outlive them
        self.group = rm.alloc(
            card.device,
            Class.KEPLER_CHANNEL_GROUP_A,
            rm.record("channel_group", hVASpace=card.va_space, engineType=_GRAPHICS),
            what="a group of channels",
        )
        undo.callback(self._free, self.group)
        share = rm.alloc(
            self.group,
            Class.FERMI_CONTEXT_SHARE_A,
            rm.record("context_share", hVASpace=card.va_space, flags=_ASYNCHRONOUS),
            what="a context",
        )
        self.compute = Channel(
            self, self.group, share, rings[0], card.generation.compute, "compute"
        )
        groups, copy_share = [self.group], share
        if self.copy_engine is not None:
            groups.append(self._group_of_copies(self.copy_engine))
            copy_share = 0
        self.copies = Channel(self, groups[-1], copy_share, rings[1], card.copy_class, "copy")
        self.debugger = self._debugger()
        for channel in (self.compute, self.copies):
            card.register_channel(channel.handle, undo)
        for group in groups:
            schedule = rm.record("schedule", bEnable=1)
            rm.control(group, Control.GPFIFO_SCHEDULE, schedule)

    def _group_of_copies(self, engine: int) -> int:
        """A group of channels on a copy engine; they need no context share."""
        card, rm = self.card, self.rm
        made = rm.alloc(
            card.device,
            Class.KEPLER_CHANNEL_GROUP_A,
            rm.record(
                "channel_group", hVASpace=card.va_space, engineType=_FIRST_COPY_ENGINE + engine
            ),
            what=f"a group of channels on copy engine {engine}",
        )
        self._undo.callback(self._free, made)
        return made

    def _ring(self) -> Allocation:
        """Memory for the ring of a channel."""
        size = RING_BYTES + USERD_BYTES
        made = self.card.allocate(size, is_visible=True, is_contiguous=True)
        self._undo.callback(self.card.free, made)
        return made

    def _debugger(self) -> int:
        """The object that tells of errors in kernels; 0 where the driver gives none."""
        card, rm = self.card, self.rm
        params = rm.record("debugger", hAppClient=rm.root, hClass3dObject=self.compute.engine)
        try:
            made = rm.alloc(card.device, Class.GT200_DEBUGGER, params, what="reports of errors")
        except Refused:
            return 0
        self._undo.callback(self._free, made)
        return made

    def _free(self, handle: int) -> None:
        with suppress(DeviceError):
            self.rm.free(handle)

    @property
    def error(self) -> int:
        """The code of the error that stopped the group; 0 as long as none did."""
        note = self._note
        recorded = int.from_bytes(note[_STATUS : _STATUS + 2], "little") == _RECORDED
        return (
            int.from_bytes(note[_CODE : _CODE + 4], "little")
            if recorded
            else self.card.channel_error
        )

    def ask(self, target: int, command: Control, record: Record) -> Record | None:
        """Reply of an object to a control command; None if there is none."""
        if not target:
            return None
        with suppress(DeviceError, OutOfMemory):
            return self.rm.control(target, command, record)
        return None

    def close(self) -> None:
        """Give the channels back."""
        self._undo.close()


class Channel:
    """A ring of entries in the card's memory, which one engine takes commands from."""

    def __init__(
        self,
        group: ChannelGroup,
        parent: int,
        share: int,
        memory: Allocation,
        engine: int,
        name: str,
    ) -> None:
        card, rm = group.card, group.rm
        self.group, self.card, self.name = group, card, name
        self.lock = lock()
        self._place(memory)
        params = rm.record(
            "channel",
            gpFifoOffset=memory.address,
            gpFifoEntries=ENTRIES,
            hContextShare=share,
            userdOffset=RING_BYTES,
        )
        group.memory.push(card.describe_channel(params, memory, group.notifier))
        self.handle = rm.alloc(parent, card.channel_class, params, what=f"a {name} channel")
        if engine == card.generation.compute:
            card.promote_context(self.handle, group.memory)
        self.engine = rm.alloc(self.handle, engine, what=f"the {name} engine")
        token = rm.control(
            self.handle, Control.GET_WORK_SUBMIT_TOKEN, rm.record("work_submit_token")
        )
        self.token = token.number("token")

    def _place(self, memory: Allocation) -> None:
        content = bytes_at(memory.host, RING_BYTES + USERD_BYTES)
        content[:] = bytes(len(content))
        self.ring = content[:RING_BYTES].cast("Q")
        control = content[RING_BYTES:]
        self._get = control[GET : GET + 4].cast("I")
        self._put = control[PUT : PUT + 4].cast("I")
        self.written = 0
        """Entries written so far; only grows."""
        self.taken = 0
        """Entries that the card is known to have taken. Its own count lies in memory of the card,
        which the host reads slowly, so it is read only where the ring may be full.
        """

    # --- submission

    @property
    def pending(self) -> int:
        """Entries that the card has not taken yet."""
        return (self.written - self._get[0]) % ENTRIES

    def submit(self, address: int, words: int) -> None:
        """Let the card execute so many words. Called with the lock held; there is room."""
        entry = address | _SUBROUTINE | words << _LENGTH_SHIFT
        self.ring[self.written % ENTRIES] = entry
        self.written += 1

    def ring_doorbell(self) -> None:
        """Tell the card how many entries there are: in memory first, then by the doorbell."""
        self._put[0] = self.written % ENTRIES
        fence()  # memory of the card is write-combined for the host
        self.card.doorbell[0] = self.token

    def wait_for_room(self, entries: int, sleep: Callable[[], None]) -> None:
        """Wait until entries are free. Raises DeviceError when the card takes none."""
        since = 0.0
        while self.written + entries - self.taken >= ENTRIES:
            before, self.taken = self.taken, self.written - self.pending
            if self.taken != before or not since:
                since = time.monotonic()
                continue
            if time.monotonic() - since > settings.WAIT_TIMEOUT_MS / 1e3:
                raise DeviceError(
                    f"the {self.name} channel of {self.card} is full and has taken nothing for "
                    f"{settings.WAIT_TIMEOUT_MS} ms: {self.state()}"
                )
            sleep()

    def state(self) -> str:
        """Progress of the card through the entries of the ring, in words."""
        pending = self.pending
        of = f"of {self.written} entries"
        return f"the {self.name} channel has taken {self.written - pending} {of}"
