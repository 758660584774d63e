"""Shared parts of drivers in Python: hardware command queues, ELF objects, PCI, system calls.

A driver that fills the queues of a device itself inherits from `HCQCompiled`, `HCQAllocator`,
`HCQProgram` and `HWQueue`; the device that comes out is an ordinary backend. The files, in the
order in which a launch passes them: `compiled.py` (device and timeline), `allocator.py` (memory and
copies), `program.py` (launches and their arguments), `queue.py` (commands, and what waits for
what), `words.py` (what commands refer to: words, buffers, signals), `graph.py` (many launches at
once). See docs/decisions/0031-queues-and-timelines.md.

Beside them: `elf_file.py`, `relocations.py` and `elf.py` lay out objects of compilers in memory,
`system.py` has the system calls of drivers, and `pci.py` functions on the PCI bus.
"""

from tiny_hcq.allocator import HCQAllocator, HCQTransfer
from tiny_hcq.compiled import HCQCompiled
from tiny_hcq.elf import ElfImage
from tiny_hcq.elf_file import ElfFile
from tiny_hcq.graph import HCQGraph, LaunchTime
from tiny_hcq.pci import PciFunction, pci_functions
from tiny_hcq.program import ArgumentArena, HCQArgsState, HCQProgram
from tiny_hcq.queue import HWQueue
from tiny_hcq.relocations import Machine, Relocation, RelocationValue, integer_writer
from tiny_hcq.system import (
    MAP_FIXED,
    MAP_RESERVED,
    LinuxSystem,
    SupportsWriteText,
    System,
    address_of,
    bytes_at,
    errno_text,
    fence,
    is_library,
    system,
    use_system,
    write_text,
)
from tiny_hcq.words import (
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
    "MAP_FIXED",
    "MAP_RESERVED",
    "ArgumentArena",
    "ElfFile",
    "ElfImage",
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
    "LinuxSystem",
    "Machine",
    "Moment",
    "Number",
    "PciFunction",
    "Place",
    "Relocation",
    "RelocationValue",
    "SignalPlace",
    "SupportsWriteText",
    "Symbol",
    "SymbolicSignal",
    "System",
    "Word",
    "address_of",
    "bytes_at",
    "errno_text",
    "fence",
    "halves",
    "integer_writer",
    "is_library",
    "pci_functions",
    "system",
    "use_system",
    "write_text",
]
