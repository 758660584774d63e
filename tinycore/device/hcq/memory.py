"""`HCQBuffer`: memory addressed by queue commands, and its view for the host.

Floor 1. Imports nothing. It is the handle that allocators of such devices return.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled


class Place(enum.Enum):
    """Memory by who writes it and who reads it. A driver may have one kind for several."""

    LOCAL = "of tensors and code: near the device"
    STAGING = "the host copies in and out of it, so it is cached for the host"
    COMMANDS = "the host writes and the device reads, as arguments and words of queues"
    SIGNALS = "both write single words that the other sees at once"


class HostView(Protocol):
    """Memory that the host reaches by calls, as over USB or through a window of registers.

    What a memoryview does, and no more; slices have a start and an end.
    """

    def __getitem__(self, part: slice) -> bytes | memoryview:
        """The bytes from a start to an end."""

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        """Write all of the bytes."""

    def word(self, offset: int) -> int:
        """The 64 bits at an offset, read at once."""

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset at once."""


class Part:
    """The bytes of a view from a start on."""

    __slots__ = ("start", "view")

    def __init__(self, view: HostView, start: int) -> None:
        self.view = view
        self.start = start

    def __getitem__(self, part: slice) -> bytes | memoryview:
        return self.view[self.start + (part.start or 0) : self.start + part.stop]

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        self.view[self.start + (part.start or 0) : self.start + part.stop] = content

    def word(self, offset: int) -> int:
        """The 64 bits at an offset."""
        return self.view.word(self.start + offset)

    def set_word(self, offset: int, value: int) -> None:
        """Write the 64 bits at an offset."""
        self.view.set_word(self.start + offset, value)


class Words:
    """The words of a view by index, like `memoryview.cast("Q")`."""

    __slots__ = ("view",)

    def __init__(self, view: HostView) -> None:
        self.view = view

    def __getitem__(self, number: int) -> int:
        return self.view.word(8 * number)

    def __setitem__(self, number: int, value: int) -> None:
        self.view.set_word(8 * number, value)


class Losses:
    """Count of the devices of this process that were lost; while it is 0, no memory is theirs."""

    count = 0


losses: Final = Losses()


def verify_intact(buffers: Iterable[HCQBuffer]) -> None:
    """Raise DeviceError for memory of a device that was lost: see `HCQCompiled.verify_intact`."""
    if losses.count:
        for buffer in buffers:
            buffer.owner.verify_intact()


class HCQBuffer:
    """`size` bytes from a device address on, memory of `owner`.

    `view` are the same bytes as the host sees them, None where it cannot; `meta` is the driver's
    own. Memory that the host reaches by calls alone has a `window` instead. It is `readable` where
    the host reads it fast: memory behind a bus is written in bursts and read word by word. A part
    made by `offset` knows the whole allocation as its `base`. `external` memory belongs to somebody
    else, and may overlap other such.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "base",
        "external",
        "mapped",
        "meta",
        "owner",
        "readable",
        "size",
        "view",
        "window",
    )

    def __init__(
        self,
        address: int,
        size: int,
        owner: HCQCompiled,
        *,
        view: memoryview | None = None,
        meta: Any = None,
        base: HCQBuffer | None = None,
        external: bool = False,
        window: HostView | None = None,
        readable: bool = True,
    ) -> None:
        self.address = address
        self.size = size
        self.owner = owner
        self.view = view
        self.meta = meta
        self.base = base
        self.external = external
        self.window = window
        self.readable = readable
        self.mapped: set[HCQCompiled] = set()
        """Other devices that can address it; stored on the base."""

    def __repr__(self) -> str:
        return f"<HCQBuffer {self.address:#x}, {self.size} bytes of {self.owner.name}>"

    @property
    def root(self) -> HCQBuffer:
        """The whole allocation."""
        return self if self.base is None else self.base

    @property
    def host(self) -> memoryview | HostView | None:
        """The host's access to it: its `view`, else its `window`."""
        return self.window if self.view is None else self.view

    def offset(self, start: int, size: int) -> HCQBuffer:
        """The `size` bytes from `start` on, sharing the memory."""
        return HCQBuffer(
            self.address + start,
            size,
            self.owner,
            view=None if self.view is None else self.view[start : start + size],
            meta=self.meta,
            base=self.root,
            window=None if self.window is None else Part(self.window, start),
            readable=self.readable,
        )
