"""Start of the GSP of Ampere and Ada: by FWSEC and the booter, signed programs on its falcons.

FWSEC puts the FRTS data into protected memory, and the booter copies the GSP's firmware beside it
and starts it. NVIDIA/open-gpu-kernel-modules 570.144: gsp_fw_wpr_meta.h; Linux,
Documentation/gpu/nova/core/fwsec.rst. No card was at hand: docs/hardware.md says what is uncertain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiny_nv.pci.falcon import GSP, SEC2, Falcon
from tiny_nv.pci.firmware import secure_image_of
from tiny_nv.pci.images import GspFirmware, StartParts
from tiny_nv.pci.layout import protected_memory
from tiny_nv.pci.vbios import FRTS_BYTES, fwsec_of, rom_reader
from tinycore.errors import DeviceUnavailable

__all__ = ["BooterStart"]

_FRTS_ERROR: Final = 0x1438
"""Scratch register whose upper half FWSEC leaves an error in."""
_SECONDS: Final = 4.0


class BooterStart:
    """The way of a card without a security processor of its own."""

    def __init__(self, parts: StartParts) -> None:
        """Raises DeviceUnavailable for firmware of another form, before anything is started."""
        registers, architecture, kept = parts.registers, parts.architecture, parts.kept
        self.registers, self.architecture, self.kept = registers, architecture, kept
        self.firmware = GspFirmware(architecture, parts.files)
        self.booter = secure_image_of(parts.files["booter_load"])
        self.falcon = Falcon(registers, GSP, kept.memory)
        self.booter_falcon = Falcon(registers, SEC2, kept.memory)
        self.layout = protected_memory(
            registers.memory_bytes(architecture),
            len(self.firmware.image),
            len(self.firmware.bootloader.image),
        )
        self._arguments_at = (0, 0)

    @property
    def first_protected(self) -> int:
        """First byte of the card's memory that belongs to the GSP."""
        return self.layout.open_heap

    def prepare(self) -> None:
        """Have memory protected. Raises DeviceUnavailable."""
        registers, frts = self.registers, self.layout.frts
        self.falcon.run(fwsec_of(rom_reader(registers), frts))
        error = registers.read(_FRTS_ERROR) >> 16
        low, high = registers.protected_memory(self.architecture)
        if error or low != frts or high <= low:
            raise DeviceUnavailable(
                f"FWSEC of {registers.card} ended with error {error:#x} and protects {low:#x} to "
                f"{high:#x}; {frts:#x} to {frts + FRTS_BYTES:#x} was asked for"
            )

    def start(self, arguments: int, state: Callable[[], str]) -> None:
        """Start the GSP with arguments at a bus address. Raises DeviceUnavailable with `state`."""
        self.falcon.reset()
        self._arguments_at = (arguments & 0xFFFFFFFF, arguments >> 32)
        self.falcon.write_mailboxes(*self._arguments_at)
        self._run_booter()
        self.falcon.set_version(self.firmware.bootloader.version)
        self._wait_until_active(lambda: f"its GSP does not run: {state()}")

    def _run_booter(self) -> None:
        """Have the firmware copied into protected memory, verified, and started."""
        meta = self.kept.keep(self.layout.meta(self.kept.images(self.firmware))).bus()
        status, _ = self.booter_falcon.run(self.booter, (meta & 0xFFFFFFFF, meta >> 32))
        if status:
            raise DeviceUnavailable(
                f"the booter of {self.registers.card} ended with status {status:#x}"
            )

    def _wait_until_active(self, state: Callable[[], str]) -> None:
        self.registers.wait_until(lambda: self.falcon.is_active, _SECONDS, state)

    def resume(self, state: Callable[[], str]) -> None:
        """Have the RISC-V core run again: by the booter, which has halted."""
        self.falcon.reset()
        self.falcon.write_mailboxes(*self._arguments_at)
        self.booter_falcon.start()
        self._wait_until_active(lambda: f"its GSP does not resume: {state()}")
