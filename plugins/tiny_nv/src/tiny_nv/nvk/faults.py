"""Faults of a card, in words: error, address, kernel.

The driver writes a notifier when it stops a group of channels; what a kernel did it tells by the
object that debuggers ask. NVIDIA, "XID Errors"; ctrl83dedebug.h of 580.142.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tiny_nv.nvk.channel import ChannelGroup
from tiny_nv.nvk.classes import Control

__all__ = ["Faults"]

_MOST_SMS: Final = 100
_MOST_FAULTS: Final = 4

CHANNEL_ERRORS: Final[Mapping[int, str]] = {
    13: "a kernel did what it may not",
    31: "an access to memory that is not mapped",
    32: "a command that the channel does not know",
    39: "a copy failed",
    43: "the channel was reset",
    45: "the channels were stopped because of another error",
    48: "memory of the card has an error that cannot be corrected",
    69: "a method or a descriptor that the engine does not take",
    79: "the card does not answer any more",
    94: "memory has an error, which was contained",
    95: "memory has an error, which was not contained",
    109: "a switch of contexts took too long",
    119: "the card's own processor does not answer",
    120: "the card's own processor failed",
}
FAULT_KINDS: Final[Mapping[int, str]] = {
    0: "nothing is mapped there",
    1: "nothing is mapped there",
    2: "nothing is mapped there",
    3: "it is beyond all addresses",
    5: "it may not be accessed",
    6: "it may only be read",
    7: "it may only be written",
    0xA: "this memory cannot be reached",
    0xE: "its memory is poisoned",
    0xF: "no atomic access is possible there",
}
ACCESSES: Final[Mapping[int, str]] = {0: "a read", 1: "a write", 2: "an atomic access"}
WARPS: Final[Mapping[int, str]] = {
    0x1: "its stack is used up",
    0x4: "its code goes round",
    0x5: "its code is not aligned",
    0x6: "its code has ended",
    0x9: "it has an instruction that there is not",
    0xB: "an instruction has a parameter that it may not have",
    0xD: "it uses a register that it does not have",
    0xE: "it accesses an address that there is not",
    0xF: "it accesses an address that is not aligned",
    0x10: "it accesses an address of another space",
    0x12: "it reads constants that there are not",
}


class Faults:
    """Error notifications of one group of channels."""

    def __init__(self, group: ChannelGroup, kernel_at: Callable[[int], str], sms: int) -> None:
        self.group = group
        self.kernel_at = kernel_at
        self.sms = sms
        self.found = ""
        """Description of the first fault; "" without one."""

    def poll(self) -> str:
        """Look at the notifier, and ask for more when it tells of an error."""
        if not self.found and (code := self.group.error):
            told = [*self._accesses(), *self._warps()]
            what = CHANNEL_ERRORS.get(code, "an error")
            self.found = f"{what} (Xid {code})" + "".join(f": {each}" for each in told[:1])
            self.found += "".join(f"; {each}" for each in told[1:])
        return self.found

    def _accesses(self) -> Iterator[str]:
        """Accesses that the page tables do not allow."""
        record = self.group.rm.record("mmu_faults")
        told = self.group.ask(Control.READ_MMU_FAULT_INFO, record)
        if told is None:
            return
        for index in range(min(told.number("count"), _MOST_FAULTS)):
            place = told.place("faults", index)
            address, kind, access = (
                int.from_bytes(told.data[place][begin:end], "little")
                for begin, end in ((0, 8), (8, 12), (12, 16))
            )
            why = FAULT_KINDS.get(kind, f"fault of type {kind:#x}")
            yield f"{ACCESSES.get(access, 'an access')} at {address:#x}: {why}"

    def _warps(self) -> Iterator[str]:
        """Kernels that a multiprocessor has stopped, each once."""
        seen = set()
        for first in range(0, self.sms, _MOST_SMS):
            record = self.group.rm.record(
                "sm_errors",
                hTargetChannel=self.group.compute.handle,
                numSMsToRead=min(_MOST_SMS, self.sms - first),
                startingSM=first,
            )
            told = self.group.ask(Control.READ_ALL_SM_ERROR_STATES, record)
            for index in range(min(_MOST_SMS, self.sms - first) if told else 0):
                assert told is not None
                state = told.data[told.place("states", index)]
                error = int.from_bytes(state[4:8], "little") & 0xFF
                at = int.from_bytes(state[32:40], "little")
                if error and (error, at) not in seen:
                    seen.add((error, at))
                    why = WARPS.get(error, f"error {error:#x}")
                    yield f"{self.kernel_at(at)} at {at:#x}: {why}"
