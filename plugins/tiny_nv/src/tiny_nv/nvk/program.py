"""Kernels in a card's memory, and the arguments of their launches: descriptor and bank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, pack_into
from typing import TYPE_CHECKING, ClassVar, Final

from tiny_hcq import HCQArgsState, HCQBuffer, HCQProgram, Number, Symbol, Word
from tiny_nv.arch import arch_of
from tiny_nv.nvk import qmd
from tiny_nv.nvk.constants import bank_of
from tiny_nv.nvk.cubin import SYSTEM_SHARED_BYTES, Cubin, Kernel
from tiny_nv.program import entry_name
from tinycore.errors import DeviceError, LaunchTooLarge, UnsupportedError
from tinycore.plugin import ProgramInfo

if TYPE_CHECKING:
    from tiny_nv.nvk.device import NvDevice

__all__ = ["NvArguments", "NvProgram", "Patch"]

ALIGNMENT: Final = 256
"""Alignment of descriptors and of banks of constants."""
REGISTERS: Final = 65536
"""Registers of a multiprocessor."""
_WARP: Final = 32
_put_payload: Final = Struct("<Q").pack_into
_PARTS: Final = 4
_COUNTS_SYSTEM_SHARED: Final = 90
"""The first architecture whose files count the shared memory that the system takes."""

Patch = tuple[Symbol, Callable[[int], None]]
"""Symbol, and the function that writes the number which a submission gives for it."""


class NvProgram(HCQProgram):
    """A kernel in memory."""

    ARGUMENT_ALIGNMENT: ClassVar[int] = ALIGNMENT

    def __init__(self, device: NvDevice, binary: bytes, info: ProgramInfo) -> None:
        self.nv = device
        card = device.card
        cubin = Cubin(binary, entry_name(info.name))
        self.kernel = kernel = cubin.kernel
        self.verify(info)
        super().__init__(device, info, scratch_bytes=kernel.stack_bytes)
        self.memory: HCQBuffer = self.owns(device.allocator.alloc(cubin.size))
        base = self.memory.address
        device.allocator.write(self.memory, memoryview(cubin.place(base)))
        self.version = card.generation.qmd
        self.bank = bank_of(card.arch)
        self.bank_content = self.bank.content(info.grid, info.block, kernel.parameter_bytes)
        self.descriptor = qmd.descriptor(
            self.version,
            qmd.Launch(
                arch=card.arch,
                sm_version=card.units.sm_version,
                address=base + kernel.entry,
                code_bytes=kernel.code_bytes,
                registers=kernel.registers,
                barriers=kernel.barriers,
                shared_bytes=self.shared_bytes(info),
                local_bytes=device.local_bytes_of(kernel.stack_bytes),
                grid=info.grid,
                block=info.block,
                cluster=kernel.cluster,
                constants={
                    bank: (base + at, size) for bank, (at, size) in kernel.constants.items()
                },
                parameter_bytes=self.bank.parameters + kernel.parameter_bytes,
            ),
        )
        self.bank_word = qmd.bank_word(self.descriptor, self.version)
        self.bank_offset = -(-len(self.descriptor) // ALIGNMENT) * ALIGNMENT
        self.argument_bytes = self.bank_offset + len(self.bank_content)
        self.parameters = Struct(f"<{info.buffers}Q{len(info.values)}q")

    # --- facts

    def verify(self, info: ProgramInfo) -> None:
        """Raise DeviceError for a kernel whose file and launch do not agree."""
        kernel: Kernel = self.kernel
        count = info.buffers + len(info.values)
        if kernel.offsets != tuple(8 * n for n in range(count)):
            raise DeviceError(
                f"kernel {info.name} takes parameters at {list(kernel.offsets)}, and is launched "
                f"with {count} of 8 bytes each"
            )
        x, y, z = info.block
        registers = -(-max(kernel.registers, 1) * _WARP // 256) * 256
        most = REGISTERS // registers // _PARTS * _PARTS * _WARP
        if x * y * z > most:
            raise LaunchTooLarge(
                f"kernel {info.name} has blocks of {x * y * z} threads; as it was compiled, with "
                f"{kernel.registers} registers, {most} fit on {self.nv.card}. NOOPT=1 makes it "
                "smaller.",
                most=most,
            )

    def shared_bytes(self, info: ProgramInfo) -> int:
        """Shared memory of a block, with what the system takes. Raises UnsupportedError."""
        own = self.kernel.static_shared_bytes
        counted = self.nv.card.arch_number >= _COUNTS_SYSTEM_SHARED and own
        static = own - SYSTEM_SHARED_BYTES if counted else own
        total = static if static >= info.shared_bytes else static + info.shared_bytes
        most = arch_of(self.nv.card.arch).shared_bytes
        if total > most:
            raise UnsupportedError(
                f"{total:,} bytes of shared memory of kernel {info.name} do not fit: "
                f"{self.nv.card} has {most:,}"
            )
        return total + SYSTEM_SHARED_BYTES


class NvArguments(HCQArgsState):
    """Descriptor and bank 0 of one launch.

    Both are memory that the card reads when the launch is due, so a graph changes them in place.
    """

    __slots__ = ("address", "bank", "bank_address", "descriptor", "held", "releases", "version")

    program: NvProgram

    def fill(self, buffers: Sequence[HCQBuffer], values: Sequence[int]) -> None:
        """Write what differs from the last launch; the descriptor is written when it is encoded."""
        numbers = (*[buffer.address for buffer in buffers], *values)
        if not hasattr(self, "held"):
            self._lay_out()
        elif numbers == self.held:
            return
        self.held: tuple[int, ...] = ()
        program = self.program
        program.parameters.pack_into(self.bank, program.bank.parameters, *numbers)
        self.held = numbers

    def _lay_out(self) -> None:
        """Write the bank but for the parameters."""
        program, view = self.program, self.view
        self.address = self.memory.address
        self.version = program.version
        self.descriptor = view[: len(program.descriptor)]
        start = program.bank_offset
        self.bank = view[start : start + len(program.bank_content)]
        self.bank_address = self.memory.address + start
        self.releases = 0
        bank, facts = self.bank, program.bank
        bank[:] = program.bank_content
        if facts.own_address is not None:
            pack_into("<Q", bank, facts.own_address, self.bank_address)

    def set_buffer(self, slot: int, buffer: HCQBuffer) -> None:
        """Put another address into a slot."""
        self.held = ()
        pack_into("<Q", self.bank, self.program.bank.parameters + 8 * slot, buffer.address)

    def set_value(self, position: int, value: int) -> None:
        """Put another value in the place of a variable."""
        self.held = ()
        start = self.program.bank.parameters + 8 * (self.program.info.buffers + position)
        pack_into("<q", self.bank, start, value)

    # --- the descriptor

    def begin(self, grid: tuple[Number, ...], block: tuple[Number, ...]) -> list[Patch]:
        """Write the descriptor anew, with nothing after it; say what each submission changes."""
        program = self.program
        self.descriptor[:] = program.descriptor
        qmd.put_bank(self.descriptor, self.version, program.bank_word, self.bank_address)
        self.releases = 0
        if block != program.info.block:
            raise UnsupportedError(
                f"kernel {program.info.name} was compiled for blocks of {program.info.block} "
                f"threads, not {block}"
            )
        return [] if grid == program.info.grid else self.set_grid(grid)

    def set_grid(self, grid: tuple[Number, ...]) -> list[Patch]:
        """Launch another number of groups."""
        patches: list[Patch] = []
        for axis, number in enumerate(grid):
            if isinstance(number, Word):
                patches.append((number.symbol, self._grid_setter(axis, number)))
            else:
                self._put_grid(axis, number)
        return patches

    def _grid_setter(self, axis: int, word: Word) -> Callable[[int], None]:
        return lambda number: self._put_grid(axis, word.value(number))

    def _put_grid(self, axis: int, count: int) -> None:
        qmd.put(self.descriptor, self.version, qmd.GRID[axis], count)
        pack_into("<I", self.bank, self.program.bank.grid + 4 * axis, count)

    def follow_by(self, other: NvArguments) -> None:
        """Launch the other when this launch has ended."""
        qmd.put_next(self.descriptor, self.version, other.address)

    def release(self, address: Number, value: Number, *, timed: bool = False) -> list[Patch]:
        """Set a value, or note the time, when this ends; say what each submission changes."""
        index = self.releases
        self.releases += 1
        fixed = [0 if isinstance(number, Word) else number for number in (address, value)]
        qmd.put_release(self.descriptor, self.version, index, fixed[0], fixed[1], timed=timed)
        patches: list[Patch] = []
        if isinstance(address, Word):
            patches.append((address.symbol, self._address_setter(address, index)))
        if isinstance(value, Word):
            patches.append((value.symbol, self._payload_setter(value, index)))
        return patches

    def _address_setter(self, word: Word, index: int) -> Callable[[int], None]:
        def change(number: int) -> None:
            at = word.value(number)
            qmd.put_wide(self.descriptor, self.version, "RELEASE_ADDRESS", at, index)

        return change

    def _payload_setter(self, word: Word, index: int) -> Callable[[int], None]:
        descriptor, at = self.descriptor, qmd.payload_at(self.version, index)

        def change(number: int) -> None:
            _put_payload(descriptor, at, word.value(number))

        return change


NvProgram.ARGS_STATE = NvArguments
