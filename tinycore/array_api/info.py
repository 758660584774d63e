"""Capabilities of this namespace: `__array_namespace_info__`.

Floor 6. Opens no device: what a dtype needs is read from the declaration of the backend.
"""

from __future__ import annotations

from tinycore.array_api import constants
from tinycore.array_api.data_types import isdtype
from tinycore.device import Device
from tinycore.dtype import DType, dtypes

__all__ = ["__array_namespace_info__"]


class NamespaceInfo:
    """Devices, dtypes and abilities, by methods of the standard."""

    def capabilities(self) -> dict[str, bool | int | None]:
        """Boolean indexing and shapes that depend on data exist, and there may be any rank."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The device of arrays that name none."""
        return Device.DEFAULT

    def devices(self) -> list[str]:
        """The devices that can be used, the preferred first."""
        return Device.get_available_devices()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """Default dtypes of numbers and positions. There is no "complex floating" one."""
        whole = dtypes.default_int
        return {"real floating": dtypes.default_float, "integral": whole, "indexing": whole}

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes of the standard that a device computes, of a kind if one is given."""
        able = Device.backend(device or Device.DEFAULT).capabilities
        named = {name: getattr(constants, name) for name in constants.__all__}
        found = {name: x for name, x in named.items() if isinstance(x, DType) and x.name in able}
        return {name: x for name, x in found.items() if kind is None or isdtype(x, kind)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  the standard's name
    """Devices, dtypes and abilities of this namespace."""
    return NamespaceInfo()
