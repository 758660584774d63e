"""`Interface`: one way to reach the devices of a backend, such as a kernel driver or the PCI bus.

Floor 1. Imports nothing of this floor. A backend declares its interfaces as data; `discovery` asks
their probes, and the device string `PCI+AMD` or the variable AMD_IFACE=PCI names one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Interface", "InterfaceState"]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A way to reach the devices of a backend."""

    probe: Callable[[], str] | None = None
    """Why no device can be reached through it, and what to do about it; "" when all is well. Opens
    nothing. None: `Backend.probe` answers."""
    count: Callable[[], int] | None = None
    """Number of devices reached through it. Opens nothing. None: `Backend.count` answers."""
    automatic: bool = True
    """True if it may be used without being named. False for an interface that changes the machine
    (takes a card from its kernel driver, needs root), and for stand-ins."""
    platforms: tuple[str, ...] = ()
    """Values of `sys.platform` it exists on; those of the backend when empty."""


@dataclass(frozen=True)
class InterfaceState:
    """State of one interface of a backend."""

    name: str
    reason: str
    """Why no device can be reached through it; "" when one can."""
    automatic: bool

    @property
    def is_available(self) -> bool:
        """True if a device can be reached through it."""
        return not self.reason
