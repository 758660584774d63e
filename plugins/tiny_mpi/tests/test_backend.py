"""RANK in a process alone: which device it is, and what it does there."""

from __future__ import annotations

import pytest

pytest.importorskip("mpi4py")

from tiny_mpi import backend, from_parts, gathered, ranks
from tiny_mpi.settings import settings
from tinycore import Device, Tensor, nn
from tinycore.config import settings as core_settings
from tinycore.errors import SettingError


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
