"""Programs, launches and graphs through the stand-in, and what is said when they fail."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from standin import Card, Driver

from tiny_nv import _lib
from tiny_nv.device import CudaDevice
from tiny_nv.program import CudaProgram
from tinycore.errors import CompileError, DeviceError, UnsupportedError
from tinycore.plugin import ProgramInfo

IMAGE = b"\x7fELF add_ scale_"
INFO = ProgramInfo("add", 2, ("n",), grid=(4, 2, 1), block=(32, 1, 1))


@pytest.fixture
def program(device: CudaDevice) -> CudaProgram:
    return device.load(IMAGE, INFO)


def test_a_launch_has_its_sizes_and_its_arguments(program: CudaProgram, driver: Driver) -> None:
    program([0x7000, 0x8000], [-3])

    (launched,) = driver.launches
    assert (launched.name, launched.grid, launched.block) == ("add_", (4, 2, 1), (32, 1, 1))
    assert struct.unpack("2Qq", launched.arguments) == (0x7000, 0x8000, -3)


def test_a_launch_that_is_waited_for_says_how_long_it_took(program: CudaProgram) -> None:
    assert program([0x7000, 0x8000], [1]) is None
    assert program([0x7000, 0x8000], [1], wait=True) == 0.25e-3


def test_events_are_used_again(program: CudaProgram, driver: Driver) -> None:
    for _ in range(5):
        program([0x7000, 0x8000], [1], wait=True)

    assert driver.calls["cuEventCreate"] == 2


def test_much_shared_memory_is_asked_for(device: CudaDevice, driver: Driver) -> None:
    device.load(IMAGE, replace(INFO, shared_bytes=100_000))([1, 2], [3])

    assert driver.launches[-1].shared_bytes == 100_000


def test_more_shared_memory_than_there_is_is_refused(device: CudaDevice) -> None:
    with pytest.raises(
        UnsupportedError, match="300,000 bytes of shared memory of kernel add do no"
    ):
        device.load(IMAGE, replace(INFO, shared_bytes=300_000))


def test_more_threads_than_the_compiled_kernel_takes_are_refused() -> None:
    with _lib.use(Driver((Card(block_threads=16),))):
        device = CudaDevice(0, "")
        with pytest.raises(DeviceError, match=r"blocks of 32 threads; .* 16 fit .* NOOPT=1"):
            device.load(IMAGE, INFO)


def test_what_is_no_program_is_refused_by_name(device: CudaDevice) -> None:
    with pytest.raises(DeviceError, match=r"cuModuleLoadDataEx for kernel add .*INVALID_IMAGE"):
        device.load(b"no program", INFO)


def test_what_the_assembler_says_is_shown(device: CudaDevice, driver: Driver) -> None:
    driver.log = b"ptxas application ptx input, line 3; error: Unknown symbol"
    with pytest.raises(CompileError, match="INVALID_PTX") as caught:
        device.load(b".version 8.0 add_\0", INFO)

    assert "line 3; error: Unknown symbol" in caught.value.log
    assert caught.value.source == ".version 8.0 add_"


def test_programs_are_unloaded(device: CudaDevice, driver: Driver) -> None:
    program = device.load(IMAGE, INFO)
    assert driver.left["CUmodule"] == 1
    del program
    assert "CUmodule" not in driver.left


# What goes wrong on the card


@pytest.mark.parametrize(
    ("status", "name"), [(700, "ILLEGAL_ADDRESS"), (716, "MISALIGNED_ADDRESS")]
)
def test_a_lost_context_is_told_with_what_ran(
    program: CudaProgram, device: CudaDevice, driver: Driver, status: int, name: str
) -> None:
    program([0x7000, 0x8000], [1])
    driver.lose(status)

    told = rf"CUDA_ERROR_{name} \({status}\), of something .* last waited for: add\."
    with pytest.raises(DeviceError, match=told):
        device.synchronize()
    with pytest.raises(DeviceError, match=rf"was lost before cuMemAlloc_v2 .* CUDA_ERROR_{name}"):
        device.allocator.alloc(4)
    with pytest.raises(DeviceError, match="was lost before cuLaunchKernel was called"):
        program([0x7000, 0x8000], [1])


def test_what_ended_well_is_not_blamed(
    program: CudaProgram, device: CudaDevice, driver: Driver
) -> None:
    program([0x7000, 0x8000], [1])
    device.synchronize()
    device.load(IMAGE, replace(INFO, name="scale"))([1, 2], [3])
    driver.lose(719)

    with pytest.raises(DeviceError, match=r"last waited for: scale\."):
        device.synchronize()


def test_a_status_has_its_name_and_what_to_do(program: CudaProgram, driver: Driver) -> None:
    driver.fail("cuLaunchKernel", 701)

    with pytest.raises(
        DeviceError, match=r"kernel add returned .*OUT_OF_RESOURCES \(701\).*NOOPT=1"
    ):
        program([1, 2], [3])


def test_memory_is_freed_and_devices_closed_after_a_loss(
    device: CudaDevice, driver: Driver
) -> None:
    handle = device.allocator.alloc(4)
    driver.lose(700)

    device.allocator.free(handle)
    device.close()


# Graphs


def test_a_graph_runs_its_launches_in_order(device: CudaDevice, driver: Driver) -> None:
    add, scale = device.load(IMAGE, INFO), device.load(IMAGE, replace(INFO, name="scale"))
    graph = device.graph([(add, [1, 2], [3]), (scale, [4, 5], [6]), (add, [7, 8], [9])])

    graph()
    graph()

    assert [x.name for x in driver.launches] == ["add_", "scale_", "add_"] * 2
    assert driver.calls["cuLaunchKernel"] == 0
    assert driver.calls["cuGraphLaunch"] == 2


def test_only_what_changed_is_set_before_a_run(device: CudaDevice, driver: Driver) -> None:
    add = device.load(IMAGE, INFO)
    graph = device.graph([(add, [1, 2], [3]), (add, [4, 5], [6])])

    graph.set_buffer(1, 0, 0x9000)
    graph.set_value(1, 0, -7)
    graph()
    graph()

    unpacked = [struct.unpack("2Qq", x.arguments) for x in driver.launches]
    assert unpacked == [(1, 2, 3), (0x9000, 5, -7)] * 2
    assert driver.calls["cuGraphExecKernelNodeSetParams_v2"] == 1


def test_a_graph_says_how_long_it_took_and_is_given_back(
    device: CudaDevice, driver: Driver
) -> None:
    graph = device.graph([(device.load(IMAGE, INFO), [1, 2], [3])])
    assert graph(wait=True) == 0.25e-3
    del graph
    assert not {"CUgraph", "CUgraphExec"} & set(driver.left)


def test_a_graph_of_another_card_is_refused(device: CudaDevice) -> None:
    other = CudaDevice(0, "")
    with pytest.raises(UnsupportedError, match="programs of its own card"):
        device.graph([(other.load(IMAGE, INFO), [1, 2], [3])])
    other.close()


def test_a_graph_that_fails_names_its_kernels(device: CudaDevice, driver: Driver) -> None:
    graph = device.graph([(device.load(IMAGE, INFO), [1, 2], [3])])
    graph()
    driver.lose(700)
    with pytest.raises(DeviceError, match="last waited for: a graph of add"):
        device.synchronize()
