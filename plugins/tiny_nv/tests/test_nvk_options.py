"""Ways of the driver that are chosen by the environment, on each form of launch descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from driver_memory import content, written
from rm_standin import Machine, Mistake
from rm_standin.cards import GA102, GB202, H200, CardFacts
from simulated_nv import OPTIONS, backend_of, opened
from test_nvk_driver import BYTES, INFO, load, machine_of

from tiny_nv.nvk import methods
from tiny_nv.nvk.device import NvDevice
from tiny_nv.nvk.options import chosen_options
from tiny_nv.nvk.queues import ComputeQueue
from tinycore import Context, Tensor
from tinycore.errors import DeviceError, SettingError
from tinycore.plugin import register, unregister

CARDS = {"ampere": GA102, "hopper": H200, "blackwell": GB202}
COPY2 = 0xB
"""NV2080_ENGINE_TYPE_COPY2."""


@pytest.fixture(params=CARDS)
def facts(request: pytest.FixtureRequest) -> CardFacts:
    return CARDS[request.param]


@pytest.fixture(params=[*OPTIONS, "all"])
def option(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One option, or all of them."""
    chosen: str = request.param
    for name, value in OPTIONS.items():
        if chosen in (name, "all"):
            monkeypatch.setenv(name, value)
    return chosen


@pytest.fixture
def device(facts: CardFacts, option: str) -> Iterator[NvDevice]:
    found = opened(Machine((facts,)))
    yield found
    with Context(WAIT_TIMEOUT_MS=200):
        found.close()


def test_launches_copies_and_graphs(device: NvDevice, option: str) -> None:
    program, machine = load(device), machine_of(device)
    a, b, c = written(device, range(64)), *(device.allocator.alloc(BYTES) for _ in range(2))
    program([b, a], [1])
    program([a, b], [1])
    device.copier(BYTES, device)([c, a], ())
    graph = device.graph([(program, [b, c], [1]), (program, [c, b], [2])])
    graph()
    graph.set_value(1, 0, 10)
    graph()

    assert content(device, c).tolist() == list(range(16, 80))
    engines = [channel.engine for channel in machine.resources.channels]
    assert engines == ([1, COPY2] if option in ("NV_COPY_ENGINE", "all") else [1, 1])
    assert (machine.inline_launches > 0) == (option in ("NV_INLINE_DESCRIPTORS", "all"))
    assert (machine.woken > 0) == (option in ("NV_SLEEP", "all"))


def test_a_grid_of_each_replay_is_in_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NV_INLINE_DESCRIPTORS", "1")
    machine = Machine((H200,))
    register(backend_of(machine))
    with Context(DEV="NV:PTX"):
        found = [(Tensor(numpy.ones(size, "f")) + 1).sum().item() for size in (64, 300, 5000)]
    unregister("NV")

    assert found == [128, 600, 10000]
    assert machine.inline_launches


def test_a_copy_that_fails_on_its_own_engine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NV_COPY_ENGINE", "0")
    device = opened(Machine((H200,)))
    with device.lock:
        device.ready()
        queue = device.copy_queue().wait(device.timeline_signal, device.timeline_value - 1)
        device.finish(queue.copy(1 << 39, 1 << 38, 64))
    with pytest.raises(DeviceError, match="Xid 31"):
        device.synchronize()


def test_an_interrupt_before_the_kernel_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened(Machine((H200,)))
    program = load(device)
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    early = methods.method(0, 0x20, 0)
    monkeypatch.setattr("tiny_nv.nvk.methods.interrupt", lambda: early)
    with device.lock:
        device.ready()
        memory = device.kernel_arguments.take(program.argument_bytes)
        arguments = program.arguments(memory, [target, source], [1])
        queue = device.compute_queue()
        assert isinstance(queue, ComputeQueue)
        queue.wait(device.timeline_signal, device.timeline_value - 1)
        queue.memory_barrier().exec(program, arguments, INFO.grid, INFO.block)
        device.finish(queue.interrupt())
    with pytest.raises(Mistake, match="before the kernels before it have ended"):
        device.synchronize()


@pytest.mark.parametrize("refused", ["escape 0xce", "alloc 0x79", "control 0x20800301"])
def test_a_card_without_events_is_refused_whole(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setenv("NV_SLEEP", "1")
    machine = Machine((H200,))
    machine.failures[refused] = 22
    with pytest.raises(DeviceError):
        opened(machine)

    assert not machine.event_files
    assert not machine.resources.channels


@pytest.mark.parametrize("value", ["10", "-1", "x"])
def test_engines_there_are_not(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NV_COPY_ENGINE", value)
    with pytest.raises(SettingError, match="a number from 0 to 9"):
        chosen_options()


def test_no_option_is_chosen_by_itself() -> None:
    assert chosen_options() == type(chosen_options())()
