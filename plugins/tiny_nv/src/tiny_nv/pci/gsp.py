"""The GSP of a card, from a card that has started by itself to RPCs that are answered.

It is started by the booter or by the security processor (booter.py, fsp.py), and messages tell it
about the system. NVIDIA/open-gpu-kernel-modules 570.144: gsp_init_args.h, gsp_static_config.h,
libos_init_args.h, rpc_global_enums.h. No card was at hand: docs/hardware.md says what of this is
uncertain.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Final

from tiny_hcq import PciFunction
from tiny_nv.nvk.faults import FAULT_KINDS
from tiny_nv.pci.booter import BooterStart
from tiny_nv.pci.fsp import FspStart
from tiny_nv.pci.images import KeptMemory, StartParts
from tiny_nv.pci.machine import PAGE
from tiny_nv.pci.messages import Message, MessageQueues
from tiny_nv.pci.pages import SystemMemory
from tiny_nv.pci.registers import LEAST_LOOKS, Architecture, Registers
from tiny_nv.pci.sequencer import run_sequence
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = ["RM_ARGUMENTS", "GspProcessor"]

_QUEUE_HEAD: Final = 0x110C00
_GSP_LOG_BYTES: Final = 64 << 10
_LOGS: Final = ("LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL")
_LIBOS_PART: Final = struct.Struct("<QQQBB6x")
_CONTIGUOUS, _IN_SYSTEM = 1, 1
RM_ARGUMENTS: Final = struct.Struct("<QI4xQQ IIB3xI B7x QQ")
"""GSP_ARGUMENTS_CACHED: queues, suspended state, instance, profiler; 72 bytes."""
_SYSTEM_INFO_BYTES: Final = 928
_SYSTEM_INFO: Final = struct.Struct("<4QQ2QQQQ5I")
_CONFIG_MIRROR_BYTES: Final = 0x1000
_LARGEST_ADDRESS: Final = 0x7FFFFFFFF000
SET_SYSTEM_INFO, SET_REGISTRY, UNLOADING, UPDATE_BAR_PDE = 0x48, 0x49, 0x2F, 0x46
INIT_DONE, RUN_SEQUENCE, CHANNEL_ERROR, ERROR_LOG = 0x1001, 0x1002, 0x1004, 0x1006
_TRIGGERED: Final = struct.Struct("<6I4xQI")
"""rpc_rc_triggered: engine, channel, function, level, code, scope, address and kind of a fault."""
_MMU_FAULT: Final = 31
_START_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 10.0
_POLL_REST_SECONDS: Final = 1e-5
_REGISTRY: Final[Mapping[str, int]] = {
    "RMForcePcieConfigSave": 1,
    "RMSecBusResetEnable": 1,
}
_REGISTRY_ENTRY: Final = struct.Struct("<IB3xII")
_DWORD: Final = 1


class GspProcessor:
    """A card's own processor, which has started, and its queues."""

    def __init__(
        self,
        card: PciFunction,
        registers: Registers,
        architecture: Architecture,
        memory: SystemMemory,
        firmware: Mapping[str, bytes],
    ) -> None:
        """Start it. Raises DeviceUnavailable."""
        self.card, self.registers, self.architecture = card, registers, architecture
        self.errors: list[str] = []
        """Errors that the GSP has logged since it runs."""
        self.channel_error = 0
        """Code of the last error that stopped a channel (Xid); 0 without one."""
        self.channel_faults: list[str] = []
        """Accesses that stopped a channel, in words."""
        self.is_lost = False
        """True once it did not answer: nothing more is asked."""
        self.kept = KeptMemory(memory)
        parts = StartParts(registers, architecture, self.kept, firmware)
        self.way = FspStart(parts) if architecture.trust else BooterStart(parts)
        self.falcon = self.way.falcon
        self.queues = MessageQueues(memory, lambda: registers.write(_QUEUE_HEAD, 0))
        self._start()

    # --- start

    def _start(self) -> None:
        self.way.prepare()
        self._offer()
        self.way.start(self._libos_arguments(), self.state)
        self._wait_for_start()

    def _libos_arguments(self) -> int:
        """Bus address of the list of regions that the GSP's system begins with."""
        regions = []
        for name in _LOGS:
            log = self.kept.keep(bytes(_GSP_LOG_BYTES))
            pages = log.pages()
            log.view[8 : 8 + 8 * len(pages)] = struct.pack(f"<{len(pages)}Q", *pages)
            regions.append((name, log.bus(), _GSP_LOG_BYTES))
        queues = self.queues
        arguments = RM_ARGUMENTS.pack(
            queues.memory.bus(),
            queues.page_count,
            queues.command_offset,
            queues.status_offset,
            *(0, 0, 0, 0, 1, 0, 0),
        )
        regions.append(("RMARGS", self.kept.keep(arguments.ljust(PAGE, b"\0")).bus(), PAGE))
        packed = (
            _LIBOS_PART.pack(
                int.from_bytes(name.encode(), "big"), at, size, _CONTIGUOUS, _IN_SYSTEM
            )
            for name, at, size in regions
        )
        return self.kept.keep(b"".join(packed)).bus()

    # --- messages

    def _offer(self) -> None:
        """Queue what the GSP reads first: facts of the system, and settings."""
        card = self.card
        bars = [address for address, _ in card.bars]
        info = _SYSTEM_INFO.pack(
            bars[0],
            bars[1],
            bars[3],
            0,
            card.bus_device_function,
            *(0, 0, 0, 0),
            _LARGEST_ADDRESS,
            *(self.architecture.config, _CONFIG_MIRROR_BYTES),
            card.device_id << 16 | 0x10DE,
            card.subsystem,
            card.revision,
        )
        self.queues.send(SET_SYSTEM_INFO, info.ljust(_SYSTEM_INFO_BYTES, b"\0"), _ANSWER_SECONDS)
        self.queues.send(SET_REGISTRY, registry_table(_REGISTRY), _ANSWER_SECONDS)

    def _wait_for_start(self) -> None:
        message = self._wait_for(INIT_DONE, _START_SECONDS)
        if message is None:
            raise DeviceUnavailable(f"the GSP of {self.card} does not start: {self.state()}")
        if message.result:
            raise DeviceUnavailable(
                f"the GSP of {self.card} started with error {message.result:#x}: {self.state()}"
            )

    def _wait_for(self, function: int, timeout_seconds: float) -> Message | None:
        """The next message of a function; None after the limit."""
        until, looks = time.monotonic() + timeout_seconds, 0
        while looks <= LEAST_LOOKS or time.monotonic() <= until:
            message = self.next_message()
            if message is not None and message.function == function:
                return message
            looks += 1
            time.sleep(_POLL_REST_SECONDS)
        return None

    def next_message(self) -> Message | None:
        """The next message that is not about the GSP itself; None where there is none."""
        message = self.queues.receive()
        if message is None:
            return None
        if message.function == RUN_SEQUENCE:
            run_sequence(self.registers, self, message.content)
            return None
        if message.function == ERROR_LOG and len(message.content) >= 12:
            code = int.from_bytes(message.content[:4], "little")
            text = message.content[12:].partition(b"\0")[0].decode("ascii", "replace")
            self.errors.append(f"Xid {code}: {text}")
            return None
        if message.function == CHANNEL_ERROR and len(message.content) >= _TRIGGERED.size:
            _, _, _, _, self.channel_error, _, *fault = _TRIGGERED.unpack_from(message.content)
            address, kind = fault
            if self.channel_error == _MMU_FAULT:
                why = FAULT_KINDS.get(kind, f"fault of type {kind:#x}")
                self.channel_faults.append(f"an access at {address:#x}: {why}")
            return None
        return message

    def call(self, function: int, content: bytes, what: str) -> bytes:
        """Content of the answer to an RPC. Raises DeviceError."""
        if self.is_lost:
            raise DeviceError(f"the GSP of {self.card} stopped to answer: {what}; {self.state()}")
        self.queues.send(function, content, _ANSWER_SECONDS)
        message = self._wait_for(function, _ANSWER_SECONDS)
        if message is None:
            self.is_lost = True
            raise DeviceError(
                f"the GSP of {self.card} does not answer within {_ANSWER_SECONDS:g} s: {what}; "
                f"{self.state()}"
            )
        if message.result:
            raise DeviceError(f"the GSP of {self.card} refused {what}: {message.result:#x}")
        return message.content

    def state(self) -> str:
        """Processor and logged errors, in words."""
        told = "; ".join(self.errors[-3:]) or "it has logged no error"
        runs = "runs" if self.falcon.is_active else "does not run"
        return f"the GSP {runs}, {self.falcon.state()}; {told}"

    # --- the core, for sequences

    def reset_core(self) -> None:
        """Reset it, with the falcon's core chosen."""
        self.falcon.reset()

    def start_core(self) -> None:
        """Start the falcon's core."""
        self.falcon.start()

    def wait_for_halt(self) -> None:
        """Wait until the falcon's core halts."""
        self.falcon.wait_for_halt()

    def resume(self) -> None:
        """Have the RISC-V core run again."""
        self.way.resume(self.state)

    def close(self) -> None:
        """Tell the GSP to end. Its memory stays until the card is reset. Never raises."""
        try:
            self.call(UNLOADING, bytes(8), "to end")
        except DeviceError:
            return  # the reset that follows ends it


def registry_table(settings: Mapping[str, int]) -> bytes:
    """PACKED_REGISTRY_TABLE: size, number, entries, names."""
    names_at = 8 + _REGISTRY_ENTRY.size * len(settings)
    entries, names = bytearray(), bytearray()
    for name, value in settings.items():
        entries += _REGISTRY_ENTRY.pack(names_at + len(names), _DWORD, value, 4)
        names += name.encode() + b"\0"
    size = names_at + len(names)
    return struct.pack("<II", size, len(settings)) + entries + names
