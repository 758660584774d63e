"""Devices: what a backend implements, which ones there are, and their memory."""

from tinycore.device.buffer import Buffer
from tinycore.device.discovery import DeviceState, State
from tinycore.device.opened import OpenDevice
from tinycore.device.pool import LRUAllocator, MemoryStats, memory
from tinycore.device.registry import Device
from tinycore.device.target import Target

__all__ = [
    "Buffer",
    "Device",
    "DeviceState",
    "LRUAllocator",
    "MemoryStats",
    "OpenDevice",
    "State",
    "Target",
    "memory",
]
