"""Faults of a kernel: what a card punishes by an error, by a hang, or by a wrong result."""

from __future__ import annotations


class Fault(Exception):
    """A kernel did what no kernel may do; the text names instruction, thread and values."""


class SyntaxFault(Fault):
    """The text is not PTX that this executor knows."""


class IllegalAddress(Fault):
    """An access outside of every allocation, or of an array in shared or local memory."""


class MisalignedAddress(Fault):
    """An address that is no multiple of the size of the access."""


class BarrierFault(Fault):
    """A barrier that some threads of a block reach and others never do."""


class RaceFault(Fault):
    """Two threads of a block use one place in shared memory, one writes, and no barrier between."""


class ConvergenceFault(Fault):
    """An instruction of a whole warp that a part of the warp executes."""


class LaunchFault(Fault):
    """A launch that no card takes: too many threads, too much shared memory, wrong parameters."""


class TimeoutFault(Fault):
    """A kernel that executed more instructions than it was allowed."""
