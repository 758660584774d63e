"""The GSP of Ampere and Ada, from a card that has started by itself to RPCs that are answered.

FWSEC puts the FRTS data into protected memory, the booter copies the GSP's firmware beside it and
starts it, and messages tell it about the system. NVIDIA/open-gpu-kernel-modules 570.144:
gsp_fw_wpr_meta.h, gsp_init_args.h, gsp_static_config.h, libos_init_args.h, rpc_global_enums.h.
No card was at hand: docs/hardware.md says what of this is uncertain.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Final

from tiny_nv.pci.bus import PciCard
from tiny_nv.pci.falcon import GSP, SEC2, Falcon
from tiny_nv.pci.firmware import bootloader_of, sections_of, secure_image_of
from tiny_nv.pci.layout import ProtectedMemory, protected_memory
from tiny_nv.pci.machine import PAGE
from tiny_nv.pci.messages import Message, MessageQueues
from tiny_nv.pci.pages import PinnedMemory, SystemMemory
from tiny_nv.pci.registers import LEAST_LOOKS, Architecture, Registers
from tiny_nv.pci.sequencer import run_sequence
from tiny_nv.pci.vbios import FRTS_BYTES, fwsec_of, rom_reader
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = ["GspProcessor"]

_WPR2_LOW: Final = 0x1FA824
_FRTS_ERROR: Final = 0x1438
"""Scratch register whose upper half FWSEC leaves an error in."""
_QUEUE_HEAD: Final = 0x110C00
_GSP_LOG_BYTES: Final = 64 << 10
_LOGS: Final = ("LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL")
_LIBOS_PART: Final = struct.Struct("<QQQBB6x")
_CONTIGUOUS, _IN_SYSTEM = 1, 1
_RM_ARGUMENTS: Final = struct.Struct("<QI4xQQ IIB3xI B7x QQ")
"""GSP_ARGUMENTS_CACHED: queues, suspended state, instance, profiler; 72 bytes."""
_SYSTEM_INFO_BYTES: Final = 928
_SYSTEM_INFO: Final = struct.Struct("<4QQ2QQQQ5I")
_CONFIG_MIRROR, _CONFIG_MIRROR_BYTES = 0x88000, 0x1000
_LARGEST_ADDRESS: Final = 0x7FFFFFFFF000
SET_SYSTEM_INFO, SET_REGISTRY, UNLOADING, UPDATE_BAR_PDE = 0x48, 0x49, 0x2F, 0x46
INIT_DONE, RUN_SEQUENCE, CHANNEL_ERROR, ERROR_LOG = 0x1001, 0x1002, 0x1004, 0x1006
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
        card: PciCard,
        registers: Registers,
        architecture: Architecture,
        memory: SystemMemory,
        firmware: Mapping[str, bytes],
    ) -> None:
        """Start it. Raises DeviceUnavailable."""
        self.card, self.registers, self.architecture = card, registers, architecture
        self.memory = memory
        self.falcon = Falcon(registers, GSP, memory)
        self.booter_falcon = Falcon(registers, SEC2, memory)
        self.errors: list[str] = []
        """Errors that the GSP has logged since it runs."""
        self.channel_error = 0
        """Code of the last error that stopped a channel (Xid); 0 without one."""
        self.is_lost = False
        """True once it did not answer: nothing more is asked."""
        self._kept: list[PinnedMemory] = []
        self.bootloader = bootloader_of(firmware["bootloader"])
        self.booter = secure_image_of(firmware["booter_load"])
        sections = sections_of(firmware["gsp"])
        self._image = self._section(sections, ".fwimage")
        self._signature = self._section(sections, f".fwsignature_{architecture.signature}")
        self.layout = self._layout()
        self.queues = MessageQueues(memory, lambda: registers.write(_QUEUE_HEAD, 0))
        self._start()

    def _section(self, sections: Mapping[str, bytes], name: str) -> bytes:
        if not sections.get(name):
            names = ", ".join(sorted(sections))
            raise DeviceUnavailable(f"the GSP's firmware has no section {name}; it has: {names}")
        return sections[name]

    def _layout(self) -> ProtectedMemory:
        size = self.registers.memory_bytes(self.architecture)
        if not size:
            raise DeviceUnavailable(f"{self.card} does not tell how much memory it has")
        return protected_memory(size, len(self._image), len(self.bootloader.image))

    # --- start

    def _start(self) -> None:
        self._run_fwsec()
        self._offer()
        arguments = self._libos_arguments()
        self.falcon.reset()
        self._arguments_at = (arguments & 0xFFFFFFFF, arguments >> 32)
        self.falcon.write_mailboxes(*self._arguments_at)
        self._run_booter()
        self.falcon.set_version(self.bootloader.version)
        self.registers.wait_until(
            lambda: self.falcon.is_active, 4.0, lambda: f"its GSP does not run: {self.state()}"
        )
        self._wait_for_start()

    def _run_fwsec(self) -> None:
        """Have FRTS put where the layout says, and protected."""
        registers, frts = self.registers, self.layout.frts
        self.falcon.run(fwsec_of(rom_reader(registers), frts))
        error = registers.read(_FRTS_ERROR) >> 16
        low = registers.read(_WPR2_LOW) >> 4 << 12
        high = registers.read(self.architecture.wpr2) >> 4 << 12
        if error or low != frts or high <= low:
            raise DeviceUnavailable(
                f"FWSEC of {self.card} ended with error {error:#x} and protects {low:#x} to "
                f"{high:#x}; {frts:#x} to {frts + FRTS_BYTES:#x} was asked for"
            )

    def _run_booter(self) -> None:
        """Have the firmware copied into protected memory, verified, and started."""
        meta = self._keep(
            self.layout.meta(
                (self._radix3(self._image), len(self._image)),
                (self._keep(self.bootloader.image).bus(), len(self.bootloader.image)),
                (
                    self.bootloader.code_offset,
                    self.bootloader.data_offset,
                    self.bootloader.manifest_offset,
                ),
                (self._keep(self._signature).bus(), len(self._signature)),
            )
        ).bus()
        status, _ = self.booter_falcon.run(self.booter, (meta & 0xFFFFFFFF, meta >> 32))
        if status:
            raise DeviceUnavailable(f"the booter of {self.card} ended with status {status:#x}")

    def _keep(self, content: bytes) -> PinnedMemory:
        """Content in pinned memory as long as the GSP runs. Contiguous."""
        made = self.memory.allocate(len(content))
        made.view[: len(content)] = content
        self._kept.append(made)
        if not made.is_contiguous:
            raise DeviceUnavailable(f"{len(content):,} bytes of firmware lie in several pieces")
        return made

    def _radix3(self, image: bytes) -> int:
        """Bus address of the root of a tree of three levels of page tables over an image."""
        memory = self.memory.allocate(len(image))
        memory.view[: len(image)] = image
        self._kept.append(memory)
        pages = memory.pages()
        for _ in range(3):
            pages = self._table_of(pages)
        assert len(pages) == 1, "the firmware is larger than three levels name"
        return pages[0]

    def _table_of(self, pages: list[int]) -> list[int]:
        table = self.memory.allocate(8 * len(pages))
        table.view[: 8 * len(pages)] = struct.pack(f"<{len(pages)}Q", *pages)
        self._kept.append(table)
        return table.pages()

    def _libos_arguments(self) -> int:
        """Bus address of the list of regions that the GSP's system begins with."""
        regions = []
        for name in _LOGS:
            log = self._keep(bytes(_GSP_LOG_BYTES))
            pages = log.pages()
            log.view[8 : 8 + 8 * len(pages)] = struct.pack(f"<{len(pages)}Q", *pages)
            regions.append((name, log.bus(), _GSP_LOG_BYTES))
        queues = self.queues
        arguments = _RM_ARGUMENTS.pack(
            queues.memory.bus(),
            queues.page_count,
            queues.command_offset,
            queues.status_offset,
            *(0, 0, 0, 0, 1, 0, 0),
        )
        regions.append(("RMARGS", self._keep(arguments.ljust(PAGE, b"\0")).bus(), PAGE))
        packed = (
            _LIBOS_PART.pack(
                int.from_bytes(name.encode(), "big"), at, size, _CONTIGUOUS, _IN_SYSTEM
            )
            for name, at, size in regions
        )
        return self._keep(b"".join(packed)).bus()

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
            *(_CONFIG_MIRROR, _CONFIG_MIRROR_BYTES),
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
        if message.function == CHANNEL_ERROR and len(message.content) >= 16:
            self.channel_error = int.from_bytes(message.content[12:16], "little")
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
        """Have the RISC-V core run again: by the booter, which has halted."""
        self.falcon.reset()
        self.falcon.write_mailboxes(*self._arguments_at)
        self.booter_falcon.start()
        self.registers.wait_until(
            lambda: self.falcon.is_active, 4.0, lambda: f"its GSP does not resume: {self.state()}"
        )

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
