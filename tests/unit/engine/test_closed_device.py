"""Tensors and captured functions of a device after Device.close."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy
import pytest

from tiny_testing.accelerator import CORRECT
from tiny_testing.grading import accelerator
from tinycore import Device, Tensor, TinyJit
from tinycore.device import Buffer
from tinycore.errors import DeviceError

NAME = "CLOSING"
USES: dict[str, Callable[[Tensor], object]] = {
    "numpy": Tensor.numpy,
    "data": Tensor.data,
    "item": lambda x: x[2].item(),
    "kernel": lambda x: (x + 1).tolist(),
    "view": lambda x: x[1:3].contiguous().tolist(),
    "copy": lambda x: x.to("PYTHON").tolist(),
    "assign": lambda x: x.assign(x * 2).realize(),
    "write": lambda x: x.assign([1.0, 2.0, 3.0, 4.0]).tolist(),
    "pickle": pickle.dumps,
}


@pytest.fixture
def card() -> Iterator[None]:
    with accelerator(replace(CORRECT, name=NAME)):
        yield


def numbers() -> Tensor:
    return Tensor([0.0, 1.0, 2.0, 3.0], device=NAME).realize()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "reopened"])
def test_a_tensor_of_a_closed_device_is_an_error(card: None, use: str, is_open: bool) -> None:
    x = numbers()
    Device.close(NAME)
    y = numbers() if is_open else None

    with pytest.raises(DeviceError, match=r"was lost when CLOSING was closed\. Compute it again"):
        USES[use](x)

    assert (numbers() + 1).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert y is None or y.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_view_is_lost_with_its_base(card: None) -> None:
    base = Buffer.from_cpu(NAME, numpy.arange(4, dtype=numpy.int32))
    view = base.view(2, offset_bytes=8)
    assert view.numpy().tolist() == [2, 3]
    Device.close(NAME)

    for buffer in (base, view):
        with pytest.raises(DeviceError, match="was lost"):
            buffer.numpy()
        assert buffer.is_lost


def test_a_lost_tensor_is_dropped_and_made_anew(card: None) -> None:
    x = numbers()
    Device.close(NAME)
    device = Device[NAME]
    del x
    gc.collect()

    assert device.allocator.used == 0
    x = numbers()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_another_device_keeps_its_memory(card: None) -> None:
    x, other = numbers(), Tensor([1.0, 2.0], device="PYTHON").realize()
    Device.close(NAME)

    assert other.tolist() == [1.0, 2.0]
    assert x.shape == (4,)


@pytest.mark.parametrize("launches", [1, 3])
def test_a_captured_function_of_a_closed_device_says_reset(card: None, launches: int) -> None:
    def add(x: Tensor) -> Tensor:
        for _ in range(launches):
            x = (x + 1).contiguous()
        return x.realize()

    step = TinyJit(add)
    for _ in range(3):
        step(numbers())
    Device.close(NAME)

    with pytest.raises(DeviceError, match=r"was captured on CLOSING, .* reset\(\)"):
        step(numbers())
    step.reset()
    for _ in range(4):
        assert step(numbers()).tolist() == [launches + n for n in range(4)]


LENT = """
import numpy
from tinycore import Device, Tensor

x = Tensor(numpy.arange(1000, dtype=numpy.float32)).realize()
shown = numpy.frombuffer(x.data(), numpy.float32)
wrapped = Tensor.from_dlpack(numpy.ones(1000, numpy.float32)).realize()
Device.close("CPU")
for lost in (x, wrapped):
    try:
        (lost + 1).numpy()
    except RuntimeError as error:
        assert "lost when CPU was closed" in str(error), error
    else:
        raise SystemExit("memory of a closed device was read")
del x, lost
assert shown[999] == 999  # the host's array keeps what the host allocated
assert (Tensor([1.0]) + 1).tolist() == [2.0]
"""


@pytest.mark.parametrize("interface", ["DIRECT", "HCQ"])
def test_arrays_of_the_host_outlive_a_processor(interface: str) -> None:
    environment = {**os.environ, "DEV": f"{interface}+CPU"}
    command = [sys.executable, "-c", LENT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
