"""Devices: what a backend implements, which ones there are, and their memory.

Floor 1. The files, in the order in which a device is found, opened and used:

- `protocols.py`, `extent.py`, `backend.py`: what a plugin declares and implements
- `target.py`: the text of DEV; `discovery.py`: installed backends and their states
- `presence.py`: how devices are seen, by the data of packages that are not imported
- `host_copies.py`: copies of host memory by threads
- `worker_process.py`: programs that answer questions in processes of their own
- `registry.py`, `open_device.py`: devices by name, and a device in use
- `pool.py`, `buffer.py`: memory
- `hooks.py`: observers
- `exported.py`: models for backends that write them to files
"""

from tinycore.device.buffer import Buffer
from tinycore.device.discovery import DeviceState, State
from tinycore.device.open_device import OpenDevice
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
