"""Hardware command queues: base classes of drivers that fill the queues of a device themselves.

Floor 1, in the device floor. A driver inherits from `HCQCompiled`, `HCQAllocator`, `HCQProgram` and
`HWQueue`; the device that comes out is an ordinary backend. The files, in the order in which a
launch passes them: `compiled.py` (device and timeline), `memory.py`, `allocator.py`, `program.py`,
`arena.py` (arguments), `words.py`, `queue.py` (commands), `signal.py` (signals and fences),
`transfer.py` (copies between devices), `dependencies.py`, `graph.py` (many launches at once).
See docs/decisions/0031-queues-and-timelines.md.
"""

from tinycore.device.hcq.allocator import HCQAllocator
from tinycore.device.hcq.arena import ArgumentArena
from tinycore.device.hcq.compiled import HCQCompiled
from tinycore.device.hcq.graph import HCQGraph, LaunchTime
from tinycore.device.hcq.memory import HCQBuffer, HostView, Place
from tinycore.device.hcq.program import HCQArgsState, HCQProgram
from tinycore.device.hcq.queue import HWQueue
from tinycore.device.hcq.signal import HCQSignal, Moment, SignalPlace, SymbolicSignal
from tinycore.device.hcq.transfer import HCQTransfer
from tinycore.device.hcq.words import Number, Symbol, Word, halves

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
