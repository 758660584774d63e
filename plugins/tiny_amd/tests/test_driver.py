"""The driver on a machine that is a stand-in: memory, launches, queues, faults; PM4 and AQL."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy
import pytest

pytest.importorskip("llvmlite")

from code_object import compile_kernel
from driver_faults import FAULTS, SOURCES
from driver_memory import closing, content, written
from kfd_standin import Machine, Mistake, queues
from kfd_standin.cards import MI300, NAVI21, NAVI31
from kfd_standin.gpu import region_of
from kfd_standin.queues import Ring
from simulated_amd import opened

from tiny_amd.device import AmdDevice
from tiny_amd.hardware_queue import HardwareQueue
from tiny_amd.kfd import Kfd
from tiny_amd.queues import Pm4Queue
from tiny_amd.topology import count, reason
from tiny_hcq import Symbol, Word, use_system
from tinycore import Context
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory, UnsupportedError
from tinycore.plugin import ProgramInfo

ADD = """
define amdgpu_kernel void @add(ptr addrspace(1) %out, ptr addrspace(1) %in, i64 %n) #0 {
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %group, 32
  %index = add i32 %first, %lane
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %index
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %index
  %value = load i32, ptr addrspace(1) %from
  %addend = trunc i64 %n to i32
  %sum = add i32 %value, %addend
  store i32 %sum, ptr addrspace(1) %to
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="32,32" "amdgpu-no-dispatch-ptr"
  "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-implicitarg-ptr" }
"""
SPILLS = """
define amdgpu_kernel void @spills(ptr addrspace(1) %out, ptr addrspace(1) %in) #0 {
entry:
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %array = alloca [64 x i32], addrspace(5)
  br label %fill
fill:
  %i = phi i32 [ 0, %entry ], [ %next, %fill ]
  %place = getelementptr i32, ptr addrspace(5) %array, i32 %i
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %i
  %value = load i32, ptr addrspace(1) %from
  %sum = add i32 %value, %lane
  store volatile i32 %sum, ptr addrspace(5) %place
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, 64
  br i1 %more, label %fill, label %done
done:
  %back = sub i32 63, %lane
  %mine = getelementptr i32, ptr addrspace(5) %array, i32 %back
  %found = load volatile i32, ptr addrspace(5) %mine
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %lane
  store i32 %found, ptr addrspace(1) %to
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="32,32" "amdgpu-no-dispatch-ptr"
  "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-implicitarg-ptr" }
"""
INFO = ProgramInfo("add", 2, ("n",), grid=(2, 1, 1), block=(32, 1, 1), written=frozenset({0}))
BYTES = 256
Make = Callable[..., AmdDevice]


@pytest.fixture(params=["PM4", "AQL", "RDNA2", "CDNA3"])
def kind(request: pytest.FixtureRequest) -> str:
    """Compute queues of a card of RDNA3, or of another family, whose packets differ."""
    return str(request.param)


@pytest.fixture
def aql(kind: str) -> bool:
    """True if compute goes through queues of AQL packets."""
    return kind == "AQL"


@pytest.fixture
def make(aql: bool) -> Iterator[Make]:
    """Opens cards of a machine, and closes them."""
    with closing(partial(opened, aql=aql)) as device:
        yield device


@pytest.fixture
def machine(kind: str) -> Machine:
    """A machine with two cards."""
    card = {"CDNA3": MI300, "RDNA2": NAVI21}.get(kind, NAVI31)
    return Machine((card, card))


@pytest.fixture
def device(machine: Machine, make: Make) -> AmdDevice:
    """Its first card."""
    return make(machine)


def test_a_kernel_adds(device: AmdDevice) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)

    seconds = program([target, source], [5], wait=True)

    assert seconds is not None
    assert 0 < seconds < 10
    assert content(device, target).tolist() == list(range(5, 69))


def test_launches_happen_in_order(device: AmdDevice) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    a, b = written(device, range(64)), device.allocator.alloc(BYTES)
    for _ in range(50):
        program([b, a], [1])
        program([a, b], [1])

    assert content(device, a).tolist() == list(range(100, 164))


def test_nothing_runs_before_somebody_waits(device: AmdDevice, machine: Machine) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    before = machine.gpus[0].launched
    program([target, source], [1])

    assert machine.gpus[0].launched == before
    device.synchronize()
    assert machine.gpus[0].launched == before + 1


def test_a_queue_launches_the_groups_that_each_submission_gives(device: AmdDevice) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    buffer, groups = written(device, range(64)), Symbol("groups")
    place = device.allocator.alloc_visible(program.argument_bytes)
    arguments = program.arguments(place, [buffer, buffer], [1])
    device.synchronize()
    queue = device.compute_queue().memory_barrier()
    queue.exec(program, arguments, (Word(groups), 1, 1), INFO.block).bind()

    for number in (1, 2):
        done = device.new_signal()
        with device.lock:
            queue.submit({groups: number})
            device.compute_queue().signal(done, 1).submit()
        done.wait(1)

    assert device.compute_queue().GRID_WORDS
    assert content(device, buffer)[[0, 32]].tolist() == [2, 33]


def test_a_graph_is_replayed_with_other_arguments(device: AmdDevice) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    a, b, c = written(device, range(64)), *(device.allocator.alloc(BYTES) for _ in range(2))
    graph = device.graph([(program, [b, a], [1]), (program, [c, b], [2])])
    graph()
    assert content(device, c).tolist() == list(range(3, 67))

    graph.set_value(1, 0, 10)
    graph.set_buffer(0, 1, c)
    graph()
    assert content(device, c).tolist() == list(range(14, 78))


@pytest.mark.sample(4)
@pytest.mark.parametrize("command_bytes", [4096, 8192])
def test_rings_are_used_again(
    machine: Machine, make: Make, monkeypatch: Any, command_bytes: int
) -> None:
    monkeypatch.setattr("tiny_amd.device.COMPUTE_RING_BYTES", 4096)
    monkeypatch.setattr("tiny_amd.device.COPY_RING_BYTES", 4096)
    monkeypatch.setattr("tiny_amd.device.COMMAND_BYTES", command_bytes)
    machine.reports_places = True
    device = make(machine)
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    a, b = written(device, range(64)), device.allocator.alloc(BYTES)
    for _ in range(60):
        program([b, a], [1])
        device.copier(BYTES, device)([a, b], ())

    for _ in range(60):
        device.copier(BYTES, device)([b, a], ())

    assert content(device, a).tolist() == list(range(60, 124))
    assert content(device, b).tolist() == list(range(60, 124))
    read = [ring.read * ring.UNIT // ring.place.bytes for ring in machine.rings.values()]
    assert min(read) > 0, "a ring has not come to its end"


def test_memory_that_was_given_back_is_a_fault(device: AmdDevice, machine: Machine) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    other = device.load(
        compile_kernel(SPILLS, device.arch), ProgramInfo("spills", 2, block=(32, 1, 1))
    )
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    other([target, source], [])
    device.synchronize()
    address = source.address
    device.allocator.free(source)
    program([target, source], [1])

    with pytest.raises(DeviceError) as raised:
        device.synchronize()
    said = str(raised.value)
    assert f"a memory fault in the page at {address:#x}: nothing is mapped there" in said
    assert said.count("kernel add") == 1
    assert "spills" not in said
    assert "(4 of 5 submissions are done)" in said
    with pytest.raises(DeviceError, match="AMD is lost and takes no more work"):
        program([target, source], [1])


def test_a_reset_is_told(device: AmdDevice, machine: Machine) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.synchronize()
    machine.reset(machine.gpus[0])
    program([target, source], [1])

    with pytest.raises(DeviceError, match=r"queues were reset, as it hung\. .*kernel add"):
        device.synchronize()


def test_a_queue_that_hangs_ends_by_the_time_limit(device: AmdDevice, machine: Machine) -> None:
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.synchronize()
    for ring in machine.rings.values():
        ring.is_stopped = True
    program([target, source], [1])

    with (
        Context(WAIT_TIMEOUT_MS=50),
        pytest.raises(DeviceError, match=r"did not bring a signal from \d+ to \d+ within 50 ms"),
    ):
        device.synchronize()


def test_exhaustion(device: AmdDevice) -> None:
    with pytest.raises(OutOfMemory, match="the card has no memory left: ALLOC_MEMORY_OF_GPU"):
        device.allocator.alloc(1 << 33)


def test_everything_is_given_back(machine: Machine, make: Make) -> None:
    device = make(machine)
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    device.graph([(program, [target, source], [1])])()  # which dies without waiting
    device.synchronize()
    device.allocator.free(source)
    device.allocator.free(target)
    device.close()

    kept = machine.event_page
    assert [memory for memory in machine.memory.values() if memory is not kept] == []
    assert machine.rings == {}
    assert machine.events == {}


def test_devices_copy_to_each_other(machine: Machine, make: Make) -> None:
    here, there = make(machine, 0), make(machine, 1)
    source, target = written(here, range(64)), there.allocator.alloc(BYTES)
    there.copier(BYTES, here)([target, source], ())

    assert content(there, target).tolist() == list(range(64))


def test_cards_without_a_way_to_each_other_copy_through_the_host(make: Make) -> None:
    machine = Machine((NAVI31, NAVI31), peers=False)
    here, there = make(machine, 0), make(machine, 1)
    source, target = written(here, range(64)), there.allocator.alloc(BYTES)

    there.copier(BYTES, here)([target, source], ())

    assert content(there, target).tolist() == list(range(64))
    with pytest.raises(UnsupportedError, match="AMD cannot address memory of AMD:1"):
        here.reach(target)


def test_a_card_that_is_not_there(machine: Machine, make: Make) -> None:
    with pytest.raises(DeviceUnavailable, match=r"no AMD:2; there are: AMD:0 gfx\w+ \(\d+ compute"):
        make(machine, 2)


def test_a_card_is_opened_again(machine: Machine, make: Make) -> None:
    make(machine).close()
    device = make(machine)
    assert content(device, written(device, range(4))).tolist() == [0, 1, 2, 3]


def test_a_refused_queue_leaves_nothing(machine: Machine, make: Make) -> None:
    machine.failures["create_queue"] = 22
    with pytest.raises(DeviceError, match=r"CREATE_QUEUE for a queue of .* returned EINVAL"):
        make(machine)
    kept = machine.event_page
    assert [memory for memory in machine.memory.values() if memory is not kept] == []
    assert machine.events == {}


def test_the_stand_in_finds_a_missing_barrier(device: AmdDevice, monkeypatch: Any) -> None:
    if device.uses_aql:
        pytest.skip("packets of AQL acquire by themselves")
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    monkeypatch.setattr("tiny_amd.queues.Pm4Queue.memory_barrier", lambda self: self)
    program([target, source], [1])

    with pytest.raises(Mistake, match="before caches forget"):
        device.synchronize()


def test_a_kernel_that_spills_has_scratch(device: AmdDevice) -> None:
    info = ProgramInfo("spills", 2, block=(32, 1, 1), written=frozenset({0}))
    small = device.load(compile_kernel(ADD, device.arch), INFO)
    before = device.scratch
    program = device.load(compile_kernel(SPILLS, device.arch), info)
    assert before is None
    assert device.scratch is not None
    source, target = written(device, range(64)), device.allocator.alloc(128)
    program([target, source], [])
    small([source, source], [1])

    assert content(device, target).tolist() == [63 - lane + lane for lane in range(32)]
    assert content(device, source).tolist() == list(range(1, 65))


def test_a_copy_of_more_than_one_packet_takes(device: AmdDevice) -> None:
    numbers = numpy.random.default_rng(0).integers(0, 1 << 30, (5 << 20) // 4, "i")
    source, target = written(device, numbers), device.allocator.alloc(numbers.nbytes)
    device.copier(numbers.nbytes, device)([target, source], ())

    assert numpy.array_equal(content(device, target), numbers)


def test_a_card_opened_later_sees_what_cards_share(machine: Machine, make: Make) -> None:
    here = make(machine, 0)
    shared = here.allocator.alloc_visible(BYTES)
    assert shared.view is not None
    shared.view.cast("I")[:] = numpy.arange(64, dtype="I").data
    there = make(machine, 1)
    target = there.allocator.alloc(BYTES)
    there.copier(BYTES, there)([target, shared], ())

    assert content(there, target).tolist() == list(range(64))


def test_what_cards_share_is_mapped_to_all_that_are_open(machine: Machine, make: Make) -> None:
    here, _ = make(machine, 0), make(machine, 1)
    shared = here.allocator.alloc_visible(BYTES)
    (memory,) = (each for each in machine.memory.values() if each.va == shared.address)

    assert memory.mapped == {gpu.gpu_id for gpu in machine.gpus}


def test_a_card_opened_later_is_not_given_what_was_freed(machine: Machine, make: Make) -> None:
    here = make(machine, 0)
    here.allocator.free(here.allocator.alloc_visible(BYTES))
    there = make(machine, 1)

    assert content(there, written(there, range(4))).tolist() == [0, 1, 2, 3]


def test_a_kernel_that_asks_for_more_than_arguments_is_refused(device: AmdDevice) -> None:
    text = ADD.replace('"amdgpu-no-dispatch-ptr"', "").replace(
        "%group = call i32 @llvm.amdgcn.workgroup.id.x()",
        "%packet = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()\n"
        "  %group = load i32, ptr addrspace(4) %packet",
    )
    text += "declare ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()\n"

    with pytest.raises(DeviceError, match="add asks to be given the packet that launched it"):
        device.load(compile_kernel(text, device.arch), INFO)


@pytest.mark.parametrize(
    ("version", "said"), [((1, 13), "needs 1.14: run Linux 6.5 or later"), ((1, 17), "")]
)
def test_the_version_of_the_kernel(make: Make, version: tuple[int, int], said: str) -> None:
    machine = Machine(version=version)
    if said:
        with pytest.raises(DeviceUnavailable, match=said):
            make(machine)
    else:
        driver = make(machine).driver
        assert isinstance(driver, Kfd)
        assert driver.version == version


def test_what_a_probe_says(machine: Machine) -> None:
    with use_system(machine):
        assert (count(), reason()) == (2, "")
        machine.forbidden.add("/dev/dri/renderD128")
        assert count() == 0
        assert "renderD128 cannot be opened by this user" in reason()
        assert "usermod -a -G render" in reason()
    with use_system(Machine((replace(NAVI31, version=90010), replace(NAVI31, version=90500)))):
        assert count() == 0
        assert "of other architectures: gfx90a (96 compute units, 4 GiB), gfx950" in reason()
    with use_system(Machine((replace(MI300, simd_count=8 * MI300.simd_count, xccs=8),))):
        assert count() == 0
        assert "gfx942 (304 compute units, 4 GiB) joins 8 partitions (XCC)" in reason()
        assert "--compute-partition CPX" in reason()


@pytest.mark.parametrize("queue", ["compute_queue", "copy_queue"])
def test_a_wait_takes_any_later_value(device: AmdDevice, queue: str) -> None:
    signal = device.new_signal(5)
    with device.lock:
        moment = device.finish(getattr(device, queue)().wait(signal, 3))
    device.wait_for(moment)
    assert moment.passed


@pytest.mark.parametrize("queue", ["compute_queue", "copy_queue"])
def test_the_end_of_work_wakes_who_sleeps(device: AmdDevice, queue: str) -> None:
    assert isinstance(device.driver, Kfd)
    device.synchronize()
    device.faults.wait(0)
    with device.lock:
        device.finish(getattr(device, queue)().timestamp(device.new_signal()))
    began = time.monotonic()
    device.driver.wait_events([device.faults.done], 60_000)

    assert time.monotonic() - began < 30


def test_interrupts_name_their_event(device: AmdDevice, machine: Machine) -> None:
    """The kernel would otherwise look through all events of the process."""
    a, b = written(device, range(64)), device.allocator.alloc(BYTES)
    device.copier(BYTES, device)([b, a], ())
    device.synchronize()
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    before = machine.searches
    assert before == 0
    program([b, a], [1])
    device.synchronize()

    assert (machine.searches > 0) == (device.arch == "gfx942")  # whose packet has no room for it


def test_a_clock_only_grows(device: AmdDevice) -> None:
    signals = [device.new_signal() for _ in range(4)]
    with device.lock:
        for kind, signal in zip(("compute_queue", "copy_queue") * 2, signals, strict=True):
            queue = getattr(device, kind)()
            queue.wait(device.timeline_signal, device.timeline_value - 1)
            device.finish(queue.timestamp(signal))
    device.synchronize()
    times = [signal.timestamp for signal in signals]

    assert times == sorted(times)
    assert times[0] > 0


def test_each_seeded_fault_changes_one_text() -> None:
    """The table of `driver_faults.py`, which is run by hand, does not rot."""
    found = [(SOURCES / name).read_text("utf-8").count(old) for name, old, _ in FAULTS]
    assert found == [1] * len(FAULTS)


def test_the_stand_in_decodes_code_that_comes_back_where_other_code_was() -> None:
    """A kernel is freed, another lies in part of its memory, then the first is there again."""
    gpu, found = Machine().gpus[0], []
    for address, word in ((0x1000, 0xBF800000), (0x1020, 0xBFB00000), (0x1000, 0xBF800000)):
        code = numpy.full(32, word, numpy.uint32).view(numpy.uint8)
        gpu.memory.add(region_of(address, code, "code"))
        gpu.forget_code()
        gpu.check_code(address)
        found.append(gpu.emulator.ready(0x1020).instruction.name)
        gpu.memory.remove(address)

    assert found == ["s_nop", "s_endpgm", "s_nop"]


def test_the_stand_in_forgets_code_for_all_launches_after_one_barrier() -> None:
    gpu, places = Machine().gpus[0], (0x1000, 0x2000)

    def load(word: int) -> None:
        for address in places:
            gpu.memory.remove(address) if gpu.memory.region_at(address) else None
            code = numpy.full(32, word, numpy.uint32).view(numpy.uint8)
            gpu.memory.add(region_of(address, code, "code"))

    for word in (0xBF800000, 0xBFB00000):
        load(word)
        gpu.forget_code()
        for address in places:  # which overlap: both begin after the barrier
            gpu.check_code(address)
    load(0xBF800000)

    with pytest.raises(Mistake, match="instruction caches are not told"):
        gpu.check_code(places[0])


def test_nothing_is_finalized_in_the_middle_of_a_packet(
    device: AmdDevice, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer may wait for the card, which would run the packet again."""
    seen, own = [], machine.gpus[0].run

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            seen.append(machine.is_running)

    def run(*arguments: Any) -> None:
        Cycle()
        assert len([[] for _ in range(5000)]) == 5000  # the collector would come
        own(*arguments)

    monkeypatch.setattr(machine.gpus[0], "run", run)
    program = device.load(compile_kernel(ADD, device.arch), INFO)
    target = device.allocator.alloc(BYTES)
    program([target, written(device, range(64))], [5], wait=True)
    gc.collect()

    assert seen == [False]


def test_a_queue_is_looked_at_between_the_pointer_and_the_doorbell(
    device: AmdDevice, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread submits while another waits: a pointer may be ahead for a moment."""
    looked, told = threading.Event(), list[BaseException]()
    ring_doorbell = HardwareQueue.ring_doorbell

    def look() -> None:
        try:
            device.faults.poll()
        except BaseException as error:
            told.append(error)

    def rung(ring: Ring) -> int:
        assert ring.gpu.doorbells is not None
        found = ring.doorbell(int(ring.gpu.doorbells[ring.place.slot]))
        if ring.write_pointer > found:
            looked.set()
        return found

    def slowly(queue: HardwareQueue, written: int, doorbell: int) -> None:
        if looked.is_set():
            ring_doorbell(queue, written, doorbell)
            return
        with monkeypatch.context() as patch:
            patch.setattr(Ring, "rung", property(rung))
            queue._write[0] = written
            thread = threading.Thread(target=look)
            thread.start()
            assert looked.wait(10)
            queue._doorbell[0] = doorbell
            thread.join()

    program = device.load(compile_kernel(ADD, device.arch), INFO)
    target = device.allocator.alloc(BYTES)
    source = written(device, range(64))
    monkeypatch.setattr(HardwareQueue, "ring_doorbell", slowly)
    program([target, source], [5], wait=True)

    assert told == []
    assert looked.is_set()


def test_a_pointer_that_stays_ahead_of_its_doorbell_is_a_mistake(
    device: AmdDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "BETWEEN_STORES", 0.0)
    queue = device.compute_queue()
    assert isinstance(queue, Pm4Queue)
    queue.hardware._write[0] += 1
    with pytest.raises(Mistake, match=r"the doorbell says \d+, the write pointer in memory \d+"):
        device.faults.poll()
    queue.hardware._write[0] -= 1
