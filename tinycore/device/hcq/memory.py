"""`HCQBuffer`: a span of memory that commands of a queue address.

Floor 1. Imports nothing. It is the handle that allocators of such devices return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

__all__ = ["HCQBuffer"]


class HCQBuffer:
    """`size` bytes from a device address on, memory of `owner`.

    `view` are the same bytes as the host sees them, None where it cannot; `meta` is the driver's
    own. A part made by `offset` knows the whole allocation as its `base`. `external` memory belongs
    to somebody else, and may overlap other such.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "base",
        "external",
        "mapped",
        "meta",
        "owner",
        "size",
        "view",
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
    ) -> None:
        self.address = address
        self.size = size
        self.owner = owner
        self.view = view
        self.meta = meta
        self.base = base
        self.external = external
        self.mapped: set[HCQCompiled] = set()
        """Other devices that can address it; kept on the base."""

    def __repr__(self) -> str:
        return f"<HCQBuffer {self.address:#x}, {self.size} bytes of {self.owner.name}>"

    @property
    def root(self) -> HCQBuffer:
        """The whole allocation."""
        return self if self.base is None else self.base

    def offset(self, start: int, size: int) -> HCQBuffer:
        """The `size` bytes from `start` on, sharing the memory."""
        view = None if self.view is None else self.view[start : start + size]
        return HCQBuffer(
            self.address + start, size, self.owner, view=view, meta=self.meta, base=self.root
        )
