"""The limits for which kernels are scheduled: the device's, or those of an export target.

Floor 3. An exported model runs elsewhere, on a device that this machine may lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tinycore.device.registry import Device
from tinycore.dtype import DType, ImageDType
from tinycore.errors import DeviceError
from tinycore.render.base import Limits
from tinycore.render.chains import units_of
from tinycore.uop.shape import DeviceLike, is_group

elsewhere: Final[ContextVar[Limits | None]] = ContextVar("elsewhere", default=None)
"""The limits of the device that kernels are cut for, if it is not the one of the tensors."""


LAUNCH_CLOCKS: Final = 4000
"""Clocks between the ends of two kernels of a card of which one reads the other's result."""
UNIT_RATE: Final = 16.0
"""Bytes that a unit of a card loads in a clock, where it is not stated."""


@contextmanager
def cut_for(limits: Limits) -> Iterator[None]:
    """Inside, kernels are cut for a device with these limits."""
    before = elsewhere.set(limits)
    try:
        yield
    finally:
        elsewhere.reset(before)


def is_image(image: ImageDType, device: str) -> bool:
    """True if a device stores requested images as images; else they are plain memory."""
    if elsewhere.get() is None and not Device[device].has("image"):
        return False  # it renders kernels for a device with images, but stores none itself
    largest = limits_of(device).image
    return largest is not None and image.width <= largest[0] and image.height <= largest[1]


def multiplies_by_lanes(limits: Limits) -> bool:
    """True for a card without matrix units: each thread adds up products in its registers."""
    return bool(limits.units) and not limits.matrix


def rate_of_unit(limits: Limits) -> float:
    """Bytes that a unit of a card loads in a clock."""
    return limits.l2_rate or UNIT_RATE


def limits_of(device: DeviceLike) -> Limits:
    """The limits that kernels of a device are cut for. Raises DeviceError as `Device` does."""
    assert isinstance(device, str), f"kernels are cut for one device, not for {device}"
    if (limits := elsewhere.get()) is None:
        limits = Device[device].toolchain.renderer.limits
    assert isinstance(limits, Limits)
    return limits


def device_limits(device: DeviceLike) -> Limits | None:
    """The limits that kernels are cut for; None for a device that cannot be opened."""
    if is_group(device):
        return None
    try:
        return limits_of(device)
    except DeviceError:
        return None  # it cannot compute here, but its kernels can be looked at


def chained_types(device: DeviceLike) -> frozenset[DType]:
    """The operand types for which a device computes chains of products."""
    limits = device_limits(device)
    return frozenset() if limits is None else frozenset(unit.a for unit in units_of(limits))
