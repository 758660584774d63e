"""RANK in a process alone: which device it is, and what it does there."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import pytest

pytest.importorskip("mpi4py")

from plugin_imports import loaded_by_importing

import tiny_mpi
from tiny_mpi import backend, from_parts, gathered, ranks
from tiny_mpi.settings import settings
from tinycore import Device, Tensor, nn
from tinycore.config import settings as core_settings
from tinycore.errors import SettingError


def test_importing_the_declaration_loads_nothing() -> None:
    heavy = ("mpi4py", "numpy", "subprocess", "tinycore.tensor", "tiny_mpi.runtime")

    assert loaded_by_importing("tiny_mpi.backend", *heavy) == []
    assert backend.BACKEND.count() == 1
    assert dir(tiny_mpi) == tiny_mpi.__all__


@pytest.mark.parametrize(
    ("device", "wanted", "found"),
    [
        ("", "", "CPU"),
        ("CPU:LLVM", "", "CPU"),
        ("RANK", "", "CPU"),
        ("NULL:PYTHON", "", "CPU"),
        ("CPU", "PYTHON", "PYTHON"),
    ],
)
def test_the_device_behind_a_rank(
    device: str, wanted: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_settings, "DEV", device)
    monkeypatch.setattr(settings, "RANK_DEVICE", wanted)

    assert backend.underlying.__wrapped__().name == found


def test_a_named_renderer_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RANK_DEVICE", "CPU:LLVM")

    assert next(iter(backend.underlying.__wrapped__().renderers)) == "LLVM"


def test_without_a_processor_device_it_is_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_settings, "DEV", "")
    find = Device.plugins.find
    monkeypatch.setattr(Device.plugins, "find", lambda name: None if name == "CPU" else find(name))

    assert backend.underlying.__wrapped__().name == "PYTHON"


def test_a_device_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RANK_DEVICE", "TOASTER")

    with pytest.raises(SettingError, match="TOASTER, which is not installed"):
        backend.underlying.__wrapped__()


def test_a_process_alone_has_one_rank_and_its_parts_are_the_whole() -> None:
    assert ranks() == ("RANK:0",)
    part = Tensor([[1.0, 2.0]]).numpy()
    layer = nn.Linear(2, 2)

    assert from_parts(part).tolist() == [[1.0, 2.0]]
    assert gathered(layer).weight.tolist() == layer.weight.tolist()


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    value: Any


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Child:
    """A layer that knows its parent, and has what cannot be copied."""

    def __init__(self, value: Any, parent: Any) -> None:
        self.value, self.parent = value, parent
        self.lock, self.module = threading.Lock(), numpy


PARTS = ("CPU:1", "CPU:2")


def drawn(draw: numpy.random.Generator, depth: int, parent: Any) -> Any:
    """A layer of containers in each other, around a tensor in parts."""
    if depth == 0:
        return Tensor(draw.random((2, 2), "float32")).shard(PARTS, axis=0)
    child = Child(None, parent)
    inside = [drawn(draw, depth - 1, child) for _ in range(2)]
    kinds: list[Callable[[], Any]] = [
        lambda: Pair(*inside),
        lambda: {"a": inside[0], "b": inside[1]},
        lambda: OrderedDict(a=inside[0], b={3: inside[1]}),
        lambda: deque(inside, maxlen=4),
        lambda: (Frozen(inside[0]), Slotted(inside)),
        lambda: [*inside, inside[0], parent],
    ]
    child.value = kinds[draw.integers(6)]()
    return child if draw.integers(2) else child.value


@pytest.mark.parametrize("seed", range(30))
def test_any_layer_is_gathered_and_left_as_it_is(seed: int) -> None:
    draw = numpy.random.default_rng(seed)
    layer = Child(drawn(draw, 1 + seed % 2, None), None)

    found = gathered(layer)

    before, after = nn.state.get_state_dict(layer), nn.state.get_state_dict(found)
    assert before.keys() == after.keys()
    assert {tensor.sharded_axis for tensor in before.values()} == {0}
    assert {tensor.sharded_axis for tensor in after.values()} == {None}
    assert len({*map(id, before.values())}) == len({*map(id, after.values())})
    name = list(before)[draw.integers(len(before))]
    assert after[name].tolist() == before[name].tolist()
    assert (found.lock, found.module) == (layer.lock, numpy)
    assert type(found.value) is type(layer.value)


def test_gradients_go_through_what_was_gathered() -> None:
    weight = Tensor([[1.0, 2.0], [3.0, 4.0]]).shard(PARTS, axis=0)
    layer = Pair(weight, {"tied": weight})
    whole = gathered(layer)

    (whole.first * whole.second["tied"]).sum().backward()

    assert whole.first is whole.second["tied"]
    assert weight.grad is not None
    assert weight.grad.tolist() == [[2, 4], [6, 8]]
