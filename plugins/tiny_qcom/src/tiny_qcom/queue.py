"""The queue of an Adreno: commands of HCQ as PM4 packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from tiny_hcq import HCQArgsState, HCQProgram, HWQueue, Number, SignalPlace, halves
from tiny_qcom import chip, pm4
from tiny_qcom import registers as reg
from tiny_qcom.code import Code, Route
from tiny_qcom.kgsl import MOST_WORDS
from tiny_qcom.program import QcomArguments, QcomProgram
from tinycore.errors import UnsupportedError

if TYPE_CHECKING:
    from tiny_qcom.device import QcomDevice

__all__ = ["QcomQueue"]

RING_BYTES: Final = 1 << 20
WAIT_CYCLES: Final = 32
"""Between two looks at a word in memory."""
ALL_BITS: Final = 0xFFFF_FFFF
WORD: Final = 4
NO_IDS: Final = (0xFCFC_FCFC, 0xFCFC_FCFC, 0xFCFC_FCFC, 0x0000_00FC)


class QcomQueue(HWQueue):
    """PM4 commands, executed one after the other."""

    FORMAT: ClassVar[Literal["I"]] = "I"

    def __init__(self, device: QcomDevice) -> None:
        super().__init__()
        self.device = device
        self._bound: int | None = None
        """Address of bound commands."""

    # --- packets

    def operation(self, opcode: int, *operands: Number) -> Self:
        """A packet of type 7."""
        return self.append(pm4.operation(opcode, len(operands)), *operands)

    def write(self, register: int, *values: Number) -> Self:
        """A packet of type 4: values for consecutive registers."""
        return self.append(pm4.write(register, len(values)), *values)

    def idle(self) -> Self:
        """Wait until everything before is done."""
        return self.operation(pm4.Op.WAIT_FOR_IDLE)

    def flush(self, address: Number, value: Number) -> Self:
        """Write caches back, then a word to memory."""
        place = (pm4.Event.CACHE_FLUSH_TS, *halves(address), low(value))
        return self.operation(pm4.Op.EVENT_WRITE, *place)

    def load(self, kind: int, block: int, units: int, address: int) -> Self:
        """Load state of a shader from memory."""
        head = pm4.state(kind, pm4.StateSource.INDIRECT, block, units)
        return self.operation(pm4.Op.LOAD_STATE, head, *halves(address))

    # --- commands of HCQ

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Go on when the word at a signal is at least the value."""
        place = (pm4.WAIT_MEMORY_AT_LEAST, *halves(signal.address), low(value))
        return self.operation(pm4.Op.WAIT_REG_MEM, *place, ALL_BITS, WAIT_CYCLES)

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set a signal when all before is done, and in memory."""
        self.idle().flush(signal.address, value)
        return self.flush(self.device.scratch_word, 0)

    def timestamp(self, signal: SignalPlace) -> Self:
        """Note the counter of 19.2 MHz."""
        address = signal.address + 8
        head = reg.CP_ALWAYS_ON_COUNTER | 2 << 18 | pm4.COUNTER_64_BITS
        return self.idle().operation(pm4.Op.REG_TO_MEM, head, *halves(address))

    def memory_barrier(self) -> Self:
        """Read anew what others wrote."""
        self.flush(self.device.scratch_word, 0)
        self.operation(pm4.Op.EVENT_WRITE, pm4.Event.CACHE_INVALIDATE)
        return self.operation(pm4.Op.WAIT_MEM_WRITES).idle()

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        """Launch `grid` groups of `block` threads."""
        assert isinstance(program, QcomProgram)
        assert isinstance(args_state, QcomArguments)
        code = program.code
        groups, threads = program.sizes(grid, block)
        if 0 in groups:
            return self
        if program.texels:  # whose cache may hold what an earlier launch read, and another wrote
            self.memory_barrier()
        self.operation(pm4.Op.SET_MARKER, pm4.MARKER_COMPUTE)
        self.write(reg.SP_UPDATE_CNTL, reg.UPDATE_CS_STATE | reg.UPDATE_CS_UAV)
        self.write(reg.SP_UPDATE_CNTL, 0)
        self._modes(code)
        self.idle()
        self._ranges(code, groups, threads)
        self._program(program)
        constants = args_state.memory.address
        vectors = code.constant_bytes // 16
        if vectors:
            place = (pm4.StateKind.CONSTANTS, pm4.StateBlock.CS_SHADER)
            self.load(*place, vectors, constants)
        preloaded = min(code.groups, chip.PRELOADED_GROUPS)
        place = (pm4.StateKind.SHADER, pm4.StateBlock.CS_SHADER)
        self.load(*place, preloaded, program.address)
        self.write(reg.SP_REG_PROG_ID_0, *NO_IDS, vectors >> 2 | reg.CONSTANTS_ENABLED)
        self.write(reg.SP_CS_PVT_MEM_STACK_OFFSET, program.private_of_core >> 11)
        self.write(reg.SP_CS_INSTR_SIZE, code.groups)
        self._images(program, args_state)
        return self._start(code, groups)

    def _modes(self, code: Code) -> None:
        """State common to all launches of a kind of code."""
        from_mesa = code.route == Route.IR3
        isam = reg.ISAM_GL if from_mesa else reg.ISAM_CL
        self.write(reg.SP_CS_TSIZE, 0x80)
        self.write(reg.SP_CS_USIZE, 0x40)
        self.write(reg.SP_MODE_CNTL, isam << 1 | (reg.CONSTANT_DEMOTION if from_mesa else 0))
        self.write(reg.SP_PERFCTR_SHADER_MASK, reg.PERFCTR_COMPUTE)
        self.write(reg.TPL1_MODE_CNTL, isam)
        self.write(reg.TPL1_DBG_ECO_CNTL, 0)

    def _ranges(self, code: Code, groups: tuple[int, ...], threads: tuple[int, ...]) -> None:
        """Sizes of the grid and of a group, and where code finds its numbers."""
        x, y, z = threads
        sizes = [n * t for n, t in zip(groups, threads, strict=True)]
        local = 3 | (x - 1) << 2 | (y - 1) << 12 | (z - 1) << 22
        self.write(
            reg.SP_CS_NDRANGE_0,
            *(local, sizes[0], 0, sizes[1], 0, sizes[2], 0),
            self._identities(code),
            reg.NO_REGISTER,
            *(groups if code.route == Route.BLOB else (1, 1, 1)),
        )

    @staticmethod
    def _identities(code: Code) -> int:
        """Registers and constants that hold the numbers of a group and of a thread."""
        if code.route == Route.BLOB:
            return reg.BLOB_IDS
        none = reg.NO_REGISTER
        return code.group_register | none << 8 | none << 16 | code.thread_register << 24

    def _program(self, program: QcomProgram) -> None:
        """Registers, shared and private memory, and the address of the code."""
        code, private = program.code, program.private
        counts = code.half_registers << 1 | code.full_registers << 7 | code.branch_stack << 14
        merged = reg.MERGED_REGISTERS if code.merged else 0
        shared = max((code.shared_bytes - 1) // 1024, 1)
        self.write(
            reg.SP_CS_CNTL_0,
            counts | merged,
            shared | reg.CONSTANTS_256,
            0,
            code.entry,
            *halves(program.address),
            program.private_of_thread >> 9,
            *halves(private),
            program.private_of_core >> 12,
        )

    def _images(self, program: QcomProgram, arguments: QcomArguments) -> None:
        """Descriptors of images, and what the launch takes of them."""
        code = program.code
        read, written = program.textures, program.images
        base = arguments.memory.address
        if code.samplers:
            address = base + program.samplers_start
            place = (pm4.StateKind.SHADER, pm4.StateBlock.CS_TEXTURES)
            self.load(*place, code.samplers, address)
            self.write(reg.SP_CS_SAMPLER_BASE, *halves(address))
            self.write(reg.TPL1_CS_BORDER_COLOR_BASE, *halves(self.device.border_color))
        if read:
            address = base + program.textures_start
            place = (pm4.StateKind.CONSTANTS, pm4.StateBlock.CS_TEXTURES)
            self.load(*place, len(read), address)
            self.write(reg.SP_CS_TEXMEMOBJ_BASE, *halves(address))
        if written:
            address = base + program.images_start
            self.load(pm4.StateKind.UAV, pm4.StateBlock.CS_SHADER, len(written), address)
            self.write(reg.SP_CS_UAV_BASE, *halves(address))
        counts = len(read) << 9 | code.samplers << 17 | len(written) << 22
        self.write(reg.SP_CS_CONFIG, reg.CONFIG_ENABLED | counts)

    def _start(self, code: Code, groups: tuple[int, ...]) -> Self:
        """Let it run, and wait for its end: what comes next may read what it wrote."""
        if code.route == Route.BLOB:
            self.operation(pm4.Op.RUN_OPENCL, 0)
        else:
            self.operation(pm4.Op.EXEC_CS, 0, *groups)
        return self.idle()

    # --- submission

    def bind_words(self) -> memoryview | None:
        """The commands in memory of their own."""
        if not len(self.words):
            return None
        size = len(self.words) * WORD
        memory = self.device.allocator.alloc_visible(size)
        assert memory.view is not None
        memory.view[:] = memoryview(self.words).cast("B")
        self._memory = memory
        self._bound = memory.address
        return memory.view.cast("I")

    def __del__(self) -> None:
        if (memory := getattr(self, "_memory", None)) is not None:
            self.device.discard(memory, None)

    def submit_words(self) -> None:
        """Hand the commands to KGSL."""
        if len(self.words) > MOST_WORDS:
            raise UnsupportedError(
                f"{len(self.words)} words of commands are more than one submission may have "
                f"({MOST_WORDS}): capture a shorter step"
            )
        commands, kgsl = self.device.commands, self.device.kgsl
        if self._bound is not None:
            kgsl.submit(self._bound, len(self.words))
            return
        memory = commands.take(len(self.words) * WORD)
        assert memory.view is not None
        memory.view[:] = memoryview(self.words).cast("B")
        kgsl.submit(memory.address, len(self.words))


def low(value: Number) -> Number:
    """The low half of a number: signals are compared by 32 bits."""
    return halves(value)[0]
