"""The driver on the stand-in of KGSL: memory, submissions, waits, and what goes wrong."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from adreno import kgsl as standin
from adreno.kgsl import Kgsl
from kgsl_faults import FAULTS, SOURCES

from tiny_qcom import BACKEND, probe
from tiny_qcom.device import QcomDevice
from tiny_qcom.queue import QcomQueue
from tinycore import Context
from tinycore.errors import (
    DeviceError,
    DeviceUnavailable,
    OutOfMemory,
    SettingError,
    UnsupportedError,
)


@pytest.fixture
def driver() -> Kgsl:
    return Kgsl()


@pytest.fixture
def device(driver: Kgsl) -> Iterator[QcomDevice]:
    opened = QcomDevice(system=driver)
    yield opened
    opened.close()


def submit(device: QcomDevice) -> None:
    """An empty submission on the timeline."""
    with device.lock:
        device.ready()
        queue = device.compute_queue()
        device.finish(queue.wait(device.timeline_signal, device.timeline_value - 1))


def test_without_the_device_file_there_is_no_device() -> None:
    if probe.DEVICE_FILE.exists():
        pytest.skip("this machine has an Adreno")
    assert BACKEND.count() == 0
    assert BACKEND.probe is not None
    assert "/dev/kgsl-3d0 is not there" in BACKEND.probe()
    with pytest.raises(DeviceUnavailable, match=r"/dev/kgsl-3d0 cannot be opened: ENOENT"):
        BACKEND.open(0, "")


def test_a_device_file_that_may_not_be_opened(driver: Kgsl) -> None:
    driver.injected[0] = deque([errno.EACCES])
    with pytest.raises(DeviceUnavailable, match=r"cannot be opened: EACCES.*readable and writable"):
        QcomDevice(system=driver)


def test_another_chip_is_refused_and_the_file_closed() -> None:
    driver = Kgsl(chip_id=0x0703_0001)
    with pytest.raises(DeviceUnavailable, match=r"0x07030001.*a618, a630, a640"):
        QcomDevice(system=driver)
    assert not driver.open_files


def test_there_is_one_device(driver: Kgsl) -> None:
    with pytest.raises(DeviceUnavailable, match="no QCOM:1"):
        QcomDevice(1, system=driver)


def test_closing_gives_everything_back(driver: Kgsl) -> None:
    opened = QcomDevice(system=driver)
    submit(opened)
    memory = opened.allocator.alloc(1000)
    opened.allocator.free(memory)
    opened.close()
    opened.close()
    assert not driver.open_files
    assert not driver.objects
    assert not driver.memory.regions
    assert not driver.contexts
    assert driver.calls.count(standin.DESTROY) == 1


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 1 << 20])
def test_memory_is_at_one_address_for_both(device: QcomDevice, driver: Kgsl, size: int) -> None:
    memory = device.allocator.alloc(size)
    assert memory.address % 4096 == 0
    data = numpy.random.default_rng(size).integers(0, 256, size, numpy.uint8)
    device.allocator.write(memory, data.data)
    region = driver.memory.region_at(memory.address)
    assert region is not None
    assert (region.data[:size] == data).all()
    back = bytearray(size)
    device.allocator.read(memoryview(back), memory)
    assert back == data.tobytes()
    device.allocator.free(memory)
    assert driver.memory.region_at(memory.address) is None


def test_no_memory_left() -> None:
    driver = Kgsl(memory_bytes=32 << 20)
    device = QcomDevice(system=driver)
    with pytest.raises(OutOfMemory, match=r"KGSL has no 67,108,864 bytes \(ENOMEM\)"):
        device.allocator.alloc(64 << 20)
    with pytest.raises(OutOfMemory, match=r"EINVAL\)\. An object of KGSL has less than 4 GiB"):
        device.allocator.alloc(1 << 32)
    device.close()


def test_memory_that_cannot_be_mapped_is_given_back(
    device: QcomDevice, driver: Kgsl, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(driver.objects)

    def refuse(file: int, size: int, offset: int) -> None:
        raise standin.Status(errno.ENOMEM)

    monkeypatch.setattr(driver, "map", refuse)
    with pytest.raises(OutOfMemory, match="cannot be mapped"):
        device.allocator.alloc(4096)
    assert set(driver.objects) == before


def test_pages_of_this_process_have_another_address(device: QcomDevice, driver: Kgsl) -> None:
    array = numpy.arange(3000, dtype=numpy.int32)
    handle = device.allocator.wrap(array.ctypes.data + 40, 400)
    assert handle.address != array.ctypes.data + 40
    region = driver.memory.region_at(handle.address)
    assert region is not None
    start = handle.address - region.address
    assert (region.data[start : start + 400].view(numpy.int32) == array[10:110]).all()
    back = bytearray(400)
    device.allocator.read(memoryview(back), handle)
    assert back == array[10:110].tobytes()


def test_pages_that_may_only_be_read_are_imported_as_such(
    device: QcomDevice, driver: Kgsl, tmp_path: Path
) -> None:
    """KGSL says EFAULT to them, as it does to its own memory, unless they are asked for so."""
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 64)
    array = numpy.memmap(file, numpy.uint8, "r")
    handle = device.allocator.wrap(array.ctypes.data + 5000, 300)
    region = driver.memory.region_at(handle.address)
    assert region is not None
    assert not region.data.flags.writeable
    start = handle.address - region.address
    assert (region.data[start : start + 300] == array[5000:5300]).all()


def test_an_import_reaches_over_the_end_of_a_page(device: QcomDevice, driver: Kgsl) -> None:
    array = numpy.arange(3 * 4096, dtype=numpy.uint8)  # two whole pages wherever it begins
    start = -array.ctypes.data % 4096 + 4000
    handle = device.allocator.wrap(array.ctypes.data + start, 200)
    region = driver.memory.region_at(handle.address + 199)
    assert region is not None
    assert region.data[handle.address + 199 - region.address] == array[start + 199]
    device.close()
    assert not driver.imports


def test_memory_of_kgsl_is_used_at_its_own_address(device: QcomDevice) -> None:
    memory = device.allocator.alloc(8192)
    handle = device.allocator.wrap(memory.address + 256, 64)
    assert handle.address == memory.address + 256


@pytest.mark.parametrize(("width", "pitch"), [(64, 64), (100, 128), (1, 64)])
@pytest.mark.parametrize("channel_bytes", [2, 4])
def test_rows_of_an_image_begin_at_multiples_of_64_pixels(
    device: QcomDevice, driver: Kgsl, width: int, pitch: int, channel_bytes: int
) -> None:
    image = device.allocator.image(5, width, channel_bytes)
    row = width * 4 * channel_bytes
    data = numpy.random.default_rng(0).integers(0, 256, (5, row), numpy.uint8)
    device.allocator.write(image, memoryview(data.tobytes()))
    region = driver.memory.region_at(image.address)
    assert region is not None
    rows = region.data[: 5 * pitch * 4 * channel_bytes].reshape(5, -1)
    assert (rows[:, :row] == data).all()
    back = bytearray(data.nbytes)
    device.allocator.read(memoryview(back), image)
    assert back == data.tobytes()
    device.allocator.free(image)


def test_submissions_move_the_timeline(device: QcomDevice, driver: Kgsl) -> None:
    for _ in range(20):
        submit(device)
    device.synchronize()
    assert device.timeline_signal.value == 20
    assert not driver.faults


def test_timestamps_of_the_driver_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Kgsl(first_timestamp=0xFFFF_FFF8, seconds_of_a_submission=1e-3)
    device = QcomDevice(system=driver, ring_bytes=4096)
    for _ in range(200):
        submit(device)
    device.synchronize()
    assert device.kgsl.last == 192
    assert not driver.faults
    device.close()


def test_the_timeline_begins_anew_before_32_bits_end(
    device: QcomDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QcomDevice, "TIMELINE_LIMIT", 5)
    for _ in range(23):
        submit(device)
    device.synchronize()
    assert device.era > 3


def test_signals_pass_31_bits(device: QcomDevice) -> None:
    """Words are compared without a sign; the timeline begins anew before they have 32 bits."""
    device.timeline_signal.value = (1 << 31) - 5
    device.timeline_value = (1 << 31) - 4
    values = []
    for _ in range(8):
        submit(device)
        device.synchronize()
        values.append(device.timeline_signal.value)
    assert values[3:6] == [(1 << 31) - 1, 1 << 31, 1]
    assert device.era == 1


def test_the_ring_waits_for_commands_that_are_not_read_yet() -> None:
    driver = Kgsl(seconds_of_a_submission=2e-3)
    device = QcomDevice(system=driver, ring_bytes=1024)
    for _ in range(60):
        submit(device)
    device.synchronize()
    assert device.timeline_signal.value == 60
    assert not driver.faults
    device.close()


def test_times_are_of_the_counter_of_19_2_mhz(device: QcomDevice) -> None:
    begin, end = device.new_signal(), device.new_signal()
    with device.lock:
        device.ready()
        queue = device.compute_queue().timestamp(begin).timestamp(end)
        device.wait_for(device.finish(queue))
    assert 0 <= end.seconds - begin.seconds < 1
    assert begin.timestamp > 0


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (errno.EPROTO, "GPU faulted"),
        (errno.EDEADLK, "gave up the context"),
        (errno.ENOENT, "detached"),
        (errno.EINVAL, "EINVAL"),
    ],
)
def test_a_submission_that_fails_loses_the_device(
    device: QcomDevice, driver: Kgsl, status: int, says: str
) -> None:
    driver.injected[standin.COMMAND] = deque([status])
    with pytest.raises(DeviceError, match=says):
        submit(device)
    with pytest.raises(DeviceError, match="is lost and takes no more work"):
        submit(device)


def test_a_fault_of_the_hardware_is_found_while_waiting(device: QcomDevice, driver: Kgsl) -> None:
    with device.lock:
        device.ready()
        queue = device.compute_queue()
        queue.append(0x7012_8000)  # WAIT_MEM_WRITES with the wrong parity
        device.finish(queue)
    with pytest.raises(DeviceError, match=r"QCOM is lost.*EPROTO"):
        device.synchronize()
    assert "wrong parity" in driver.faults[0]


def test_a_device_that_was_lost_is_opened_anew(driver: Kgsl) -> None:
    """KGSL says EPROTO once; another context works, and nothing is left of the first."""
    lost = QcomDevice(system=driver)
    driver.going.clear()
    driver.injected[standin.WAIT] = deque([errno.EPROTO])
    submit(lost)
    with pytest.raises(DeviceError, match="GPU faulted"):
        lost.synchronize()
    driver.going.set()
    lost.close()
    assert not driver.objects
    assert not driver.contexts
    device = QcomDevice(system=driver)
    submit(device)
    device.synchronize()
    assert device.timeline_signal.value == 1
    device.close()


def test_a_forked_child_leaves_the_device_to_its_parent(device: QcomDevice) -> None:
    submit(device)
    child = os.fork()
    if not child:  # nothing may return from here
        try:
            submit(device)
        except DeviceError as error:
            os._exit(0 if "opened by the parent" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    submit(device)
    device.synchronize()
    assert device.timeline_signal.value == 2


def test_a_wait_that_is_interrupted_goes_on(device: QcomDevice, driver: Kgsl) -> None:
    driver.going.clear()
    asked = driver.injected[standin.WAIT] = deque([errno.EINTR, errno.EAGAIN])
    submit(device)

    def go_on_after_both() -> None:
        while asked:
            time.sleep(1e-3)
        driver.going.set()

    other = threading.Thread(target=go_on_after_both)
    other.start()
    device.synchronize()
    other.join()
    assert device.timeline_signal.value == 1


def test_each_seeded_fault_changes_one_text() -> None:
    """The table of `kgsl_faults.py`, which is run by hand, does not rot."""
    found = [(SOURCES / name).read_text("utf-8").count(old) for name, old, _ in FAULTS]
    assert found == [1] * len(FAULTS)


def test_two_contexts_wait_for_each_other_in_turn(driver: Kgsl) -> None:
    first, second = QcomDevice(system=driver), QcomDevice(system=driver)
    ping, pong = first.new_signal(), second.new_signal()
    for device, mine, other, before in ((first, ping, pong, 0), (second, pong, ping, 1)):
        with device.submitting():
            queue = device.compute_queue()
            for turn in range(1, 6):
                queue.wait(other, turn - 1 + before).signal(mine, turn)
            queue.submit()
    for device in (first, second):
        device.kgsl.wait(device.kgsl.last, 5000)
    assert (ping.value, pong.value) == (5, 5)
    assert not driver.faults
    first.close()
    second.close()


def test_a_chip_of_another_patch_is_the_same_chip() -> None:
    device = QcomDevice(system=Kgsl(chip_id=0x0603_0002))
    assert device.arch == "a630"
    device.close()


def test_commands_that_hang_end_the_wait(device: QcomDevice) -> None:
    never = device.new_signal()
    with device.lock:
        device.ready()
        device.finish(device.compute_queue().wait(never, 1))
    with Context(WAIT_TIMEOUT_MS=200), pytest.raises(DeviceError, match="0 of 1 submissions"):
        device.synchronize()
    never.value = 1


CONTEXT_FLAGS = {
    "no memory of its own for tiles": 0x2,
    "a preamble": 0x10,
    "timestamps of its own": 0x40,
    "no attempts after a hang": 0x200,
    "a constraint of power": 0x800,
    "OpenCL": 2 << 20,
    "preemption within a grid": 2 << 25,
}


def test_a_context_asks_for_preemption_priority_and_power(
    driver: Kgsl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QCOM_PRIORITY", "3")
    device = QcomDevice(system=driver)
    (context,) = driver.contexts.values()
    assert context.flags == sum(CONTEXT_FLAGS.values()) | 3 << 12
    assert context.level == 1, "the highest clock"
    device.close()


@pytest.mark.parametrize("wrong", ["0", "16", "high", "-1"])
def test_priorities_there_are_not(
    driver: Kgsl, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("QCOM_PRIORITY", wrong)
    with pytest.raises(SettingError, match=f"QCOM_PRIORITY={wrong} .* from 1 to 15"):
        QcomDevice(system=driver)
    assert not driver.contexts


def test_a_driver_without_power_levels_is_used_all_the_same(driver: Kgsl) -> None:
    driver.injected[standin.SET_PROPERTY] = deque([errno.EINVAL])
    device = QcomDevice(system=driver)
    submit(device)
    device.synchronize()
    device.close()


def test_commands_too_long_for_the_ring(device: QcomDevice) -> None:
    queue = QcomQueue(device)
    for _ in range(140_000):
        queue.operation(0x10, 0)
    with pytest.raises(UnsupportedError, match="bytes of commands"):
        queue.submit()
