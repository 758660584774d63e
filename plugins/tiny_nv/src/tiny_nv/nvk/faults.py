"""Faults of a card, in words: error, address, kernel.

The driver writes a notifier when it stops a group of channels; what a kernel did it tells by the
object that debuggers ask. NVIDIA, "XID Errors"; ctrl83dedebug.h of 580.142.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Final

from tiny_nv.nvk.channel import ChannelGroup
from tiny_nv.nvk.classes import Control

__all__ = ["Faults"]

_MOST_SMS: Final = 100
_MOST_FAULTS: Final = 4
_WARP_STATE: Final = Struct("<4xI16xQQ")
"""Error, address and program counter of a warp."""

CHANNEL_ERRORS: Final[Mapping[int, str]] = {
    13: "a kernel did what it may not",
    31: "an access to memory that is not mapped",
    32: "a command that the channel does not know",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "a copy failed"),
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
    154: "the card has to be reset",
}
FAULT_KINDS: Final[Mapping[int, str]] = {
    0: "nothing is mapped there",
    1: "nothing is mapped there",
    2: "nothing is mapped there",
    3: "it is beyond all addresses",
    4: "the channel has no memory for its state",
    5: "it may not be accessed",
    6: "it may only be read",
    7: "it may only be written",
    0xA: "this memory cannot be reached",
    0xB: "its memory is compressed in another way",
    0xC: "its memory is of another kind",
    0xD: "it is of a region that may not be accessed",
    0xE: "its memory is poisoned",
    0xF: "no atomic access is possible there",
}
ACCESSES: Final[Mapping[int, str]] = {
    0: "a read",
    1: "a write",
    2: "an atomic access",
    3: "a prefetch",
    4: "an atomic access",
}
OF_ADDRESSES: Final = (0xE, 0xF, 0x10)
"""Errors of warps that are about an address."""
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
            accesses = [*self._accesses()] or self.group.card.channel_faults
            told = [*accesses, *self._warps()]
            what = CHANNEL_ERRORS.get(code, "an error")
            self.found = f"{what} (Xid {code})" + "".join(f": {each}" for each in told[:1])
            self.found += "".join(f"; {each}" for each in told[1:])
        return self.found

    def _accesses(self) -> Iterator[str]:
        """Accesses that page tables do not allow: told by the debugger, else by the channels."""
        group = self.group
        record = group.rm.record("mmu_faults")
        told = group.ask(group.debugger, Control.READ_MMU_FAULT_INFO, record)
        if told is None:
            yield from self._accesses_of_channels()
            return
        for index in range(min(told.number("count"), _MOST_FAULTS)):
            place = told.place("faults", index)
            address, kind, access = (
                int.from_bytes(told.data[place][begin:end], "little")
                for begin, end in ((0, 8), (8, 12), (12, 16))
            )
            why = FAULT_KINDS.get(kind, f"fault of type {kind:#x}")
            yield f"{ACCESSES.get(access, 'an access')} at {address:#x}: {why}"

    def _accesses_of_channels(self) -> Iterator[str]:
        """The same of each channel that had one; the driver does not tell what they did there."""
        group = self.group
        for channel in (group.compute, group.copies):
            record = group.rm.record("channel_fault")
            told = group.ask(channel.handle, Control.GET_MMU_FAULT_INFO, record)
            if told is None or not any(told.data):
                continue
            address = told.number("addrHi") << 32 | told.number("addrLo")
            kind = told.number("type")
            why = FAULT_KINDS.get(kind, f"fault of type {kind:#x}")
            yield f"an access at {address:#x}: {why}"

    def _warps(self) -> Iterator[str]:
        """Kernels that a multiprocessor has stopped, each once."""
        seen = set()
        for state in self._states():
            error, where, at = _WARP_STATE.unpack_from(state)
            error &= 0xFF
            if error and (error, at) not in seen:
                seen.add((error, at))
                why = WARPS.get(error, f"error {error:#x}")
                address = f" ({where:#x})" if error in OF_ADDRESSES else ""
                yield f"{self.kernel_at(at)} at {at:#x}: {why}{address}"

    def _states(self) -> Iterator[memoryview | bytearray]:
        """Error states of multiprocessors.

        The driver refuses a range that ends behind the last one, and a card may have fewer than its
        counts of units multiply to: half as many are asked for then.
        """
        first, most = 0, _MOST_SMS
        while first < self.sms and most:
            count = min(most, self.sms - first)
            record = self.group.rm.record(
                "sm_errors",
                hTargetChannel=self.group.compute.handle,
                numSMsToRead=count,
                startingSM=first,
            )
            told = self.group.ask(self.group.debugger, Control.READ_ALL_SM_ERROR_STATES, record)
            if told is None:
                most = count // 2
                continue
            yield from (told.data[told.place("states", index)] for index in range(count))
            first += count
