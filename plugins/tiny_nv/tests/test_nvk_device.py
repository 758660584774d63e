"""The device NV beyond what test_nvk_driver.py asks: launches that launch each other, symbols,
commands of any length, what is refused, other ways to map memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy
import pytest
from cubin import assemble
from driver_memory import closing, content, written
from rm_standin import Machine, Mistake
from rm_standin.cards import GA102, GB202, H200, CardFacts
from simulated_nv import opened

from tiny_hcq import HCQBuffer, Symbol, Word, address_of
from tiny_nv import _nvrtc
from tiny_nv.nvk import compilers, methods, qmd, queues
from tiny_nv.nvk.device import NvDevice
from tiny_nv.nvk.program import NvProgram
from tinycore.errors import (
    CompilerUnavailable,
    DeviceError,
    DeviceUnavailable,
    FileFormatError,
    UnsupportedError,
)
from tinycore.plugin import ProgramInfo

ADD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry add_(.param .u64 out, .param .u64 in, .param .u64 n)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  ld.param.u64 %rd3, [n];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  mul.wide.s32 %rd4, %r4, 4;
  add.s64 %rd5, %rd2, %rd4;
  add.s64 %rd6, %rd1, %rd4;
  ld.global.u32 %r5, [%rd5];
  cvt.u32.u64 %r6, %rd3;
  add.s32 %r7, %r5, %r6;
  st.global.u32 [%rd6], %r7;
  ret;
}
"""
INFO = ProgramInfo("add", 2, ("n",), grid=(2, 1, 1), block=(32, 1, 1), written=frozenset({0}))
BYTES = 256
CARDS = {"Ampere": GA102, "Hopper": H200, "Blackwell": GB202}
Make = Callable[..., NvDevice]


@pytest.fixture
def make() -> Iterator[Make]:
    """Opens cards of a machine, and closes them."""
    with closing(opened) as device:
        yield device


@pytest.fixture(params=CARDS)
def facts(request: pytest.FixtureRequest) -> CardFacts:
    """A card of each version of launch descriptors."""
    return CARDS[request.param]


@pytest.fixture
def machine(facts: CardFacts) -> Machine:
    """A machine with two cards."""
    return Machine((facts, facts))


@pytest.fixture
def device(machine: Machine, make: Make) -> NvDevice:
    """Its first card."""
    return make(machine)


def filled(device: NvDevice) -> HCQBuffer:
    """Memory with numbers that count from 0 on."""
    return written(device, range(BYTES // 4))


def loaded(device: NvDevice, source: str = ADD, info: ProgramInfo = INFO) -> NvProgram:
    """A kernel on a card."""
    return device.load(assemble(source, device.card.arch_number), info)


# --- launches


def test_nothing_runs_before_somebody_waits(device: NvDevice, machine: Machine) -> None:
    program, out, source = loaded(device), filled(device), filled(device)

    program([out, source], [1])

    assert machine.launched == []
    device.synchronize()
    assert machine.launched == ["add_"]


def test_launches_in_a_row_launch_each_other(device: NvDevice, machine: Machine) -> None:
    program, buffer = loaded(device), filled(device)
    graph = device.graph([(program, [buffer, buffer], [1])] * 5)
    lane = next(iter(graph._instances[0].lanes.values()))
    schedules = methods.method(methods.COMPUTE, 0x2C0, 0)[0]
    sent = [word for word in lane.queue.words if word == schedules]

    graph()

    assert content(device, buffer)[0] == 5
    assert machine.launched == ["add_"] * 5
    assert len(sent) == 1  # the channel is told of the first alone


def test_the_size_of_a_launch_may_be_given_at_submission(device: NvDevice) -> None:
    program, buffer = loaded(device), filled(device)
    groups = Symbol("groups")
    place = device.allocator.alloc_visible(program.argument_bytes)
    arguments = program.arguments(place, [buffer, buffer], [1])
    device.synchronize()
    queue = device.compute_queue().memory_barrier()
    queue.exec(program, arguments, (Word(groups), 1, 1), INFO.block).bind()

    for count in (1, 2):
        done = device.new_signal()
        with device.lock:
            queue.submit({groups: count})
            tail = device.compute_queue().signal(done, 1)
            tail.submit()
        done.wait(1)

    assert content(device, buffer)[[0, 32]].tolist() == [2, 33]


def test_more_signals_after_a_launch_than_it_has_places_for(device: NvDevice) -> None:
    program, buffer = loaded(device), filled(device)
    place = device.allocator.alloc_visible(program.argument_bytes)
    device.synchronize()
    queue = device.compute_queue().memory_barrier()
    queue.exec(program, program.arguments(place, [buffer, buffer], [1]), INFO.grid, INFO.block)
    signals = [device.new_signal() for _ in range(2 * qmd.RELEASES)]

    for number, signal in enumerate(signals, 1):
        queue.signal(signal, number << 33)
    with device.lock:
        queue.wait(device.timeline_signal, device.timeline_value - 1)
        device.finish(queue)
    device.synchronize()

    assert [signal.value >> 33 for signal in signals] == list(range(1, len(signals) + 1))


def test_a_timeline_begins_anew(device: NvDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NvDevice, "TIMELINE_LIMIT", 40)
    program, buffer = loaded(device), filled(device)
    graph = device.graph([(program, [buffer, buffer], [1])])

    for _ in range(60):
        graph()
        program([buffer, buffer], [1])

    assert content(device, buffer)[0] == 120
    assert device.era > 1


def test_commands_too_long_for_an_entry_take_several(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LARGEST_ENTRY", 16)
    program, buffer = loaded(device), filled(device)
    before = device.group.compute.written

    program([buffer, buffer], [1], wait=True)

    assert content(device, buffer)[0] == 1
    assert device.group.compute.written - before > 1


def test_copies_larger_than_the_engine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "LARGEST_COPY", 1000)

    words = methods.copy(0x1_0000_0000, 0x2_0000_0000, 2500)

    lengths = [
        words[at + 1]
        for at, word in enumerate(words)
        if word == methods.method(methods.COPY, 0x418, 0)[0]
    ]
    assert lengths == [1000, 1000, 500]
    assert methods.method(methods.COPY, 0x400, 2, 2000, 1, 2000) == words[-9:-4]


def test_a_card_reads_pages_of_the_host(device: NvDevice) -> None:
    pages = mmap.mmap(-1, 8192)
    pages[4096 : 4096 + BYTES] = numpy.arange(5, 5 + BYTES // 4, dtype=numpy.uint32).tobytes()
    pinned = device.card.pin(address_of(memoryview(pages)), 8192)
    buffer = filled(device)

    with device.lock:
        queue = device.copy_queue().wait(device.timeline_signal, device.timeline_value - 1)
        device.finish(queue.copy(buffer.address, pinned.address + 4096, BYTES))

    assert content(device, buffer)[0] == 5
    device.card.free(pinned)
    assert pinned.mapped == []


# --- what cannot run


def test_another_number_of_parameters_is_refused(device: NvDevice) -> None:
    with pytest.raises(DeviceError, match="launched with 2 of 8 bytes"):
        loaded(device, ADD, replace(INFO, values=()))


def test_more_threads_than_registers_allow_are_refused(device: NvDevice) -> None:
    program = loaded(device)
    object.__setattr__(program.kernel, "registers", 255)

    with pytest.raises(DeviceError, match="with 255 registers, 256 fit"):
        program.verify(replace(INFO, block=(512, 1, 1)))


def test_more_shared_memory_than_there_is_is_refused(device: NvDevice) -> None:
    with pytest.raises(UnsupportedError, match="shared memory of kernel add do not fit"):
        loaded(device, ADD, replace(INFO, shared_bytes=1 << 20))


def test_what_is_no_cubin_is_refused(device: NvDevice) -> None:
    with pytest.raises(FileFormatError):
        device.load(ADD.encode(), INFO)


def test_another_size_of_blocks_than_compiled_is_refused(device: NvDevice) -> None:
    program, buffer = loaded(device), filled(device)
    place = device.allocator.alloc_visible(program.argument_bytes)
    arguments = program.arguments(place, [buffer, buffer], [1])

    with pytest.raises(UnsupportedError, match="compiled for blocks of"):
        device.compute_queue().exec(program, arguments, INFO.grid, (64, 1, 1))


def test_without_a_compiler_to_machine_code_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvrtc, "tool", lambda _: None)
    with pytest.raises(CompilerUnavailable, match=r"no ptxas.*DEV=NV:NVRTC"):
        compilers.CubinOfPtxCompiler("sm_90")


@pytest.mark.usefixtures("nvrtc")
def test_a_card_newer_than_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvrtc, "supported", lambda: (80, 89))
    with pytest.raises(CompilerUnavailable, match=r"no machine code for sm_90.*newer nvrtc"):
        compilers.CubinCompiler("sm_90")


# --- faults


def test_a_copy_to_memory_that_was_given_back_is_told_as_a_copy(
    device: NvDevice, machine: Machine
) -> None:
    machine.tells_faults = True
    target = filled(device)
    device.allocator.free(target)

    with pytest.raises(DeviceError) as caught:
        device.synchronize()

    assert f"a write at {target.address:#x}: nothing is mapped there" in str(caught.value)
    assert "What ran: a copy" in str(caught.value)


def test_a_kernel_that_a_multiprocessor_stops_is_told(device: NvDevice, machine: Machine) -> None:
    machine.tells_faults = True
    program, buffer = loaded(device), filled(device)
    device.synchronize()

    program([buffer.offset(2, BYTES - 2), buffer], [1])
    with pytest.raises(DeviceError) as caught:
        device.synchronize()

    assert "Xid 13" in str(caught.value)
    assert "an address that is not aligned" in str(caught.value)
    assert "kernel add" in str(caught.value)


def test_the_stand_in_finds_caches_that_are_not_told(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = qmd.put

    def without(view: memoryview, version: int, name: str, value: int, index: int = 0) -> None:
        put(view, version, name, 0 if "INVALIDATE" in name else value, index)

    monkeypatch.setattr(qmd, "put", without)
    monkeypatch.setattr(queues.ComputeQueue, "memory_barrier", lambda queue: queue)
    program, buffer = loaded(device), filled(device)
    program([buffer, buffer], [1])

    with pytest.raises(Mistake, match="caches forget"):
        device.synchronize()


# --- cards, and the end


def test_other_interfaces_are_refused(machine: Machine) -> None:
    with pytest.raises(DeviceUnavailable, match="'X'"):
        opened(machine, 0, "X")


def test_cards_without_a_way_to_each_other_copy_through_the_host(
    facts: CardFacts, make: Make
) -> None:
    machine = Machine((facts, facts), peers=False)
    first, second = make(machine, 0), make(machine, 1)
    source, target = filled(first), second.allocator.alloc(BYTES)

    second.allocator.copy_from(target, source, BYTES, first)

    assert content(second, target).tolist() == content(first, source).tolist()
    with pytest.raises(UnsupportedError, match="cannot address memory of"):
        first.reach(target)


def test_without_unified_memory_a_card_computes(facts: CardFacts, make: Make) -> None:
    machine = Machine((facts, facts))
    machine.missing.add("/dev/nvidia-uvm")
    first, second = make(machine, 0), make(machine, 1)
    program, buffer = loaded(first), filled(first)

    program([buffer, buffer], [5])

    assert content(first, buffer)[0] == 5
    assert first.peer_group != second.peer_group


@pytest.mark.parametrize("version", ["570.144", "575.64.05", "590.48.01", "610.43.03"])
def test_other_branches_of_the_driver_compute(version: str, make: Make) -> None:
    device = make(Machine((H200,), version=version))
    program, buffer = loaded(device), filled(device)

    program([buffer, buffer], [5])

    assert content(device, buffer)[0] == 5
