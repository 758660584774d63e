"""Hardware command queues: base classes of drivers that fill the queues of a device themselves.

Floor 1, in the device floor. A driver inherits from `HCQCompiled`, `HCQAllocator`, `HCQProgram` and
`HWQueue`; the device that comes out is an ordinary backend. The files, in the order in which a
launch passes them: `compiled.py` (device and timeline), `allocator.py` (memory and copies),
`program.py` (launches and their arguments), `queue.py` (commands, and what waits for what),
`words.py` (what commands refer to: words, buffers, signals), `graph.py` (many launches at once).
See docs/decisions/0031-queues-and-timelines.md.
"""

from tinycore.device.hcq.allocator import HCQAllocator, HCQTransfer
from tinycore.device.hcq.compiled import HCQCompiled
from tinycore.device.hcq.graph import HCQGraph, LaunchTime
from tinycore.device.hcq.program import ArgumentArena, HCQArgsState, HCQProgram
from tinycore.device.hcq.queue import HWQueue
from tinycore.device.hcq.words import (
    HCQBuffer,
    HCQSignal,
    HostView,
    Moment,
    Number,
    Place,
    SignalPlace,
    Symbol,
    SymbolicSignal,
    Word,
    halves,
)

__all__ = [
    "ArgumentArena",
    "HCQAllocator",
    "HCQArgsState",
    "HCQBuffer",
    "HCQCompiled",
    "HCQGraph",
    "HCQProgram",
    "HCQSignal",
    "HCQTransfer",
    "HWQueue",
    "HostView",
    "LaunchTime",
    "Moment",
    "Number",
    "Place",
    "SignalPlace",
    "Symbol",
    "SymbolicSignal",
    "Word",
    "halves",
]
