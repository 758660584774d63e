"""Faults of a driver, seeded one by one into the commands of a launch: the stand-in finds them."""

from __future__ import annotations

import re

import numpy
import pytest
from adreno.kgsl import Kgsl
from adreno.processor import HANG_SECONDS
from simulated_qcom import Simulated, execute

from tiny_qcom import ir3, pm4
from tiny_qcom.chip import chip_of
from tiny_qcom.program import QcomProgram
from tinycore import Context
from tinycore.errors import CompilerUnavailable, DeviceError
from tinycore.plugin import ProgramInfo

try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

LISTING = """kernel k
block 64 1 1
shared 256
arguments 16
%two = const 32 0x2
%big = const 32 0x12345678
%t = thread 0
%wide = u2u64 %t
%far = ishl %wide %two
%p0 = argument 64 0
%p1 = argument 64 8
%q0 = iadd %p0 %far
%q1 = iadd %p1 %far
%x = load global 32 1 4 %q1
%y = imul %x %big
%z = fadd %y %x
store global 32 1 4 %z %q0
"""


def packets(words: list[int]) -> list[list[int]]:
    """The packets of commands, apart."""
    found, at = [], 0
    while at < len(words):
        size = words[at] & (0x3FFF if words[at] >> 28 == 7 else 0x7F)
        found.append(words[at : at + 1 + size])
        at += 1 + size
    return found


class Bench:
    """A device, and a launch whose commands may be changed."""

    def __init__(self) -> None:
        self.driver = Kgsl(execute)
        self.device = device = Simulated(self.driver)
        binary = ir3.Ir3Compiler(chip_of("a630")).compile(LISTING)
        info = ProgramInfo("k", 2, block=(64, 1, 1), written=frozenset({0}))
        self.program: QcomProgram = device.load(binary, info)
        self.out, self.given = (device.allocator.alloc(256) for _ in range(2))
        self.numbers = numpy.arange(64, dtype="f")
        device.allocator.write(self.given, self.numbers.data.cast("B"))
        device.allocator.write(self.out, memoryview(bytes(256)))

    def words(self) -> list[int]:
        """The commands of a launch, as the driver writes them."""
        device = self.device
        place = device.kernel_arguments.take(self.program.argument_bytes)
        self.arguments = self.program.arguments(place, [self.out, self.given], [])
        queue = device.compute_queue()
        queue.wait(device.timeline_signal, device.timeline_value - 1).memory_barrier()
        queue.exec(self.program, self.arguments, (1, 1, 1), (64, 1, 1))
        queue.signal(device.timeline_signal, device.next_timeline())
        return list(queue.words)

    def found(self, words: list[int], timeout_ms: int = 3000) -> str:
        """Fault that other commands cause; "" without one."""
        device = self.device
        try:
            with device.submitting(), Context(WAIT_TIMEOUT_MS=timeout_ms):
                device.compute_queue().append(*words).submit()
                device.synchronize()
        except DeviceError as error:
            return str(error)
        back = bytearray(256)
        device.allocator.read(memoryview(back), self.out)
        x = self.numbers.view("I")
        right = ((x * numpy.uint32(0x12345678)).view("f") + self.numbers).tobytes()
        return "" if bytes(back) == right else "another result"

    def close(self) -> None:
        """End, also a wait that hangs."""
        self.device.close()


def count() -> int:
    bench = Bench()
    try:
        words = bench.words()
        assert bench.found(words) == ""
        return len(packets(words))
    finally:
        bench.close()


def test_the_launch_itself_is_right() -> None:
    assert count() > 25


def test_a_packet_that_is_left_out_is_found() -> None:
    """Every one but those named, and waits of which there are two in a row."""
    missed = []
    for number in range(count()):
        bench = Bench()
        made = packets(bench.words())
        left_out = made.pop(number)
        if not bench.found([word for packet in made for word in packet]):
            missed.append(left_out)
        bench.close()
    assert all(packet[0] >> 28 == 7 for packet in missed), "a write to registers is missed"
    opcodes = [packet[0] >> 16 & 0x7F for packet in missed]
    first_wait, flushes = [0x3C], [0x46, 0x46]  # for value 0; of the scratch word
    assert set(opcodes) <= {*first_wait, *flushes, 0x26, 0x12}, opcodes
    assert opcodes.count(0x3C) == 1
    assert opcodes.count(0x46) == 2
    assert opcodes.count(0x26) == 4, "two before the launch, and two behind it"


@pytest.mark.parametrize(
    ("register", "value", "says"),
    [
        (0xA9B0, 1 << 7, "register"),  # a footprint of one register
        (0xA9B4, 0x1000, "read of"),  # code elsewhere
        (0xA9BC, 5, "groups of code are loaded"),
        (0xA9BB, 0, "not enabled"),
        (0xA9BB, 1 << 8 | 1 << 9, "1 textures, and 0 are loaded"),
        (0xA9BB, 1 << 8 | 1 << 22, "1 images, and 0 are loaded"),
        (0xB987, 0, "not enabled"),
        (0xB987, 1 << 8, "constant"),  # none may be read
        (0xB987, 1 << 8 | 0x40, "vectors of constants are loaded"),
        (0xB990, 3 | 31 << 2, "other sizes in registers"),
        (0xB991, 65, "other sizes in registers"),
        (0xB992, 1, "does not begin at 0"),
        (0xB997, 0xFCFCFCFC, "read of|write of|another result|register"),
        (0xB998, 0xFC | 1 << 9, "sizes of waves differ"),
        (0xB999, 2, "must be 1, 1, 1"),
        (0xA9B1, 1, "256 vectors"),
        (0xA9B6, 1, "private memory"),
        (0xA9B9, 8, "private memory without a size"),
        (0xA9BD, 8, "private memory without a size"),
        (0xBB08, 1 << 5, "stays set|vectors of constants"),
        (0xA9B3, 1 << 31, ""),
    ],
)
def test_a_register_with_another_value_is_found(register: int, value: int, says: str) -> None:
    bench = Bench()
    made = packets(bench.words())
    for packet in made:
        first = packet[0] >> 8 & 0x3FFFF
        if packet[0] >> 28 == 4 and first <= register < first + len(packet) - 1:
            packet[1 + register - first] = value
    found = bench.found([word for packet in made for word in packet])
    bench.close()
    assert re.search(says, found), found
    assert found or not says


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([0x3010_0001, 0], "no packet of type 4 or 7"),
        ([0x7090_0000], "wrong parity"),
        ([0x40A9_B081, 0], "wrong parity"),
        ([pm4.operation(pm4.Op.NOP, 0x3FFF)], "has 16383 operands, and the buffer ends"),
        ([pm4.operation(0x77, 0)], "operation 0x77 is not known"),
        ([pm4.write(0xA9BE, 1), 0], "register 0xa9be is not known"),
        ([pm4.write(0xA9B1, 1), 1 << 30], "register 0xa9b1 has no bits 0x40000000"),
        ([pm4.operation(pm4.Op.EVENT_WRITE, 1), 0x20], "event 0x20 is not known"),
        ([pm4.operation(pm4.Op.RUN_OPENCL, 1), 0], "SET_MARKER does not say"),
        ([pm4.operation(pm4.Op.WAIT_REG_MEM, 6), 6, 0, 0, 0, 0, 0], "only memory, at least"),
        ([pm4.operation(pm4.Op.REG_TO_MEM, 3), 0x981, 0, 0], "only the counter of 64 bits"),
        ([pm4.operation(pm4.Op.MEM_WRITE, 3), 0x40, 0, 0], "write of|no memory|0x40"),
        ([pm4.operation(pm4.Op.LOAD_STATE, 3), 0x34_4000, 0, 0], "only some units from memory"),
    ],
)
def test_packets_that_no_processor_takes(words: list[int], says: str) -> None:
    bench = Bench()
    found = bench.found([*words, *bench.words()])
    bench.close()
    assert re.search(says, found), found


def test_code_that_is_cut_off_before_its_end_is_found() -> None:
    """SP_CS_INSTR_SIZE and what is loaded agree, and leave the last groups out."""
    bench = Bench()
    made = packets(bench.words())
    assert bench.program.code.groups > 1
    for packet in made:
        if packet[0] == pm4.write(0xA9BC, 1):
            packet[1] = 1
        if packet[0] >> 16 & 0x7F == pm4.Op.LOAD_STATE and packet[1] >> 14 & 0xFF == 0xD8:
            packet[1] = packet[1] & (1 << 22) - 1 | 1 << 22
    found = bench.found([word for packet in made for word in packet])
    bench.close()
    assert "goes on behind its end" in found


def test_a_wait_that_nobody_ends_is_a_hang() -> None:
    assert HANG_SECONDS > 1
    bench = Bench()
    words = bench.words()
    words[4] = 99  # the value that is waited for
    assert "0 of 1 submissions are done" in bench.found(words, 100)
    bench.device.timeline_signal.value = 99
    bench.close()
