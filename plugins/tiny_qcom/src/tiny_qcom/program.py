"""A loaded kernel and the arguments of its launches: the constant file, then descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack_into
from typing import TYPE_CHECKING, ClassVar, Final

from tiny_hcq import HCQArgsState, HCQBuffer, HCQProgram, Number
from tiny_qcom import chip
from tiny_qcom.code import MAGIC, Code, Image
from tiny_qcom.container import read_container
from tiny_qcom.descriptors import (
    DESCRIPTOR_BYTES,
    NEAREST,
    SAMPLER_BYTES,
    descriptor,
    texel_buffer,
)
from tiny_qcom.memory import CHANNELS, Pixels, pixels_of
from tinycore.errors import DeviceError, LaunchTooLarge, UnsupportedError
from tinycore.plugin import ProgramInfo

if TYPE_CHECKING:
    from tiny_qcom.device import QcomDevice

__all__ = ["QcomArguments", "QcomProgram"]

MACHINE_ALIGNMENT: Final = 128
TEXELS: Final = {Image.TEXELS: 4, Image.HALVES: 2}
THREADS_OF_A_GROUP: Final = 32
"""Offset among Mesa's parameters of a launch."""


class QcomArguments(HCQArgsState):
    """The arguments of one launch, at the places that the compiler chose."""

    program: QcomProgram

    def fill(self, buffers: Sequence[HCQBuffer], values: Sequence[int]) -> None:
        """Write constants, addresses, values and descriptors."""
        program = self.program
        self.view[: program.argument_bytes] = program.template
        for slot, buffer in enumerate(buffers):
            self.set_buffer(slot, buffer)
        for position, value in enumerate(values):
            self.set_value(position, value)

    def set_buffer(self, slot: int, buffer: HCQBuffer) -> None:
        """Put another address, or the descriptor of another image, into a slot."""
        program = self.program
        place = program.descriptors.get(slot)
        if place is None or slot in program.texels:
            at = program.code.arguments[slot]
            if at >= 0:
                pack_into("<Q", self.view, at, buffer.address)
            if place is not None:
                self.view[place[0] : place[0] + DESCRIPTOR_BYTES] = texels_of(program, slot, buffer)
            return
        pixels: Pixels | None = pixels_of(buffer)
        if pixels is None:
            raise DeviceError(f"{program.info.name}: slot {slot} is for an image, got {buffer!r}")
        start, is_texture = place
        made = descriptor(buffer.address, pixels, is_texture)
        self.view[start : start + DESCRIPTOR_BYTES] = made

    def set_value(self, position: int, value: int) -> None:
        """Put another value in the place of a variable."""
        program = self.program
        at = program.code.arguments[program.info.buffers + position]
        if at >= 0:
            pack_into("<q", self.view, at, value)


def texels_of(program: QcomProgram, slot: int, buffer: HCQBuffer) -> bytes:
    """The descriptor of a buffer that is read as pixels. Raises DeviceError."""
    channel_bytes = program.texels[slot]
    pixel = CHANNELS * channel_bytes
    if buffer.address % pixel or pixels_of(buffer) is not None:
        raise DeviceError(
            f"{program.info.name}: slot {slot} is for a buffer that starts at a multiple of "
            f"{pixel} bytes, got {buffer!r}"
        )
    return texel_buffer(buffer.address, buffer.size, channel_bytes)


class QcomProgram(HCQProgram):
    """Machine code in memory, and what a launch of it needs."""

    ARGS_STATE: ClassVar[type[HCQArgsState]] = QcomArguments
    device: QcomDevice

    def __init__(self, device: QcomDevice, binary: bytes, info: ProgramInfo) -> None:
        ours = binary.startswith(MAGIC)
        self.code = code = (Code.unpack if ours else read_container)(binary, info.name)
        self.images = [slot for slot, how in code.images if how == Image.WRITTEN]
        self.textures = [slot for slot, how in code.images if how != Image.WRITTEN]
        self.texels = {slot: TEXELS[how] for slot, how in code.images if how in TEXELS}
        """Buffers that are read as pixels, and the bytes of a channel."""
        self._check(device, code, info)
        size = self._lay_out(code, info.block)
        super().__init__(device, info, argument_bytes=size, scratch_bytes=code.private_bytes)
        self.argument_bytes = size
        self.private: Number = device.scratch_address + 0 if code.private_bytes else 0
        """Address of private memory: what the device has at each submission."""
        self.private_of_thread, self.private_of_core = device.private_sizes(code.private_bytes)
        size = len(code.machine) + MACHINE_ALIGNMENT
        self.memory = self.owns(device.allocator.alloc_visible(size))
        self.address = -(-self.memory.address // MACHINE_ALIGNMENT) * MACHINE_ALIGNMENT
        start = self.address - self.memory.address
        assert self.memory.view is not None
        self.memory.view[start : start + len(code.machine)] = code.machine

    @staticmethod
    def _check(device: QcomDevice, code: Code, info: ProgramInfo) -> None:
        """Refuse what no launch could do. Raises DeviceError, UnsupportedError."""
        if len(code.arguments) != info.buffers + len(info.values):
            raise DeviceError(
                f"{info.name} takes {len(code.arguments)} arguments by its binary, and "
                f"{info.buffers} buffers and {len(info.values)} values by its description"
            )
        read = sum(how != Image.WRITTEN for _, how in code.images)
        if read > chip.MOST_TEXTURES:
            raise UnsupportedError(
                f"{info.name} reads {read} images, and a launch has {chip.MOST_TEXTURES}: compute "
                "it in parts, or keep some operands in plain memory"
            )
        threads = info.block[0] * info.block[1] * info.block[2]
        waves = chip.waves_of(code.full_registers, code.half_registers, code.merged)
        if threads > waves * chip.WAVE:
            raise LaunchTooLarge(
                f"{info.name}: a group of {threads} threads does not fit {device.chip.name} beside "
                f"{code.full_registers} registers, which leave room for {waves * chip.WAVE}",
                most=waves * chip.WAVE,
            )
        if max(code.shared_bytes, info.shared_bytes) > chip.SHARED_BYTES:
            raise UnsupportedError(
                f"{info.name}: {max(code.shared_bytes, info.shared_bytes)} bytes of shared memory "
                f"are more than the {chip.SHARED_BYTES} of a group"
            )

    def _lay_out(self, code: Code, block: tuple[int, ...]) -> int:
        """Find a place for constants and descriptors; the bytes of all."""
        self.images_start = -(-code.constant_bytes // DESCRIPTOR_BYTES) * DESCRIPTOR_BYTES
        self.textures_start = self.images_start + DESCRIPTOR_BYTES * len(self.images)
        self.samplers_start = self.textures_start + DESCRIPTOR_BYTES * len(self.textures)
        size = self.samplers_start + SAMPLER_BYTES * code.samplers
        self.descriptors: dict[int, tuple[int, bool]] = {}
        """For slots of images where the descriptor lies, and whether it is one of a texture."""
        for start, slots, is_texture in (
            (self.images_start, self.images, False),
            (self.textures_start, self.textures, True),
        ):
            for number, slot in enumerate(slots):
                self.descriptors[slot] = start + DESCRIPTOR_BYTES * number, is_texture
        template = bytearray(size)
        for place, data in code.constants:
            template[place : place + len(data)] = data
        if code.launch_parameters >= 0:
            pack_into("<3I", template, code.launch_parameters + THREADS_OF_A_GROUP, *block)
        template[self.samplers_start :] = NEAREST * code.samplers
        self.template = bytes(template)
        return size

    def sizes(
        self, grid: tuple[Number, ...], block: tuple[Number, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Groups and threads of a launch, on three axes."""
        groups = tuple(n for n in (*grid, 1, 1)[:3] if isinstance(n, int))
        threads = tuple(n for n in (*block, 1, 1)[:3] if isinstance(n, int))
        assert len(groups) == len(threads) == 3, "sizes of launches are numbers"
        return groups, threads
