"""Exported pages in Chromium, on the WebGPU driver in software that it brings along."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Context, Tensor, nn
from tinycore.cli.export import export

from .browser import NO_ADAPTER, SOFTWARE, visit

HERE = Path(__file__).parent


class Net:
    """A convolution, a pool and a linear layer."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Linear(4 * 16, 10)

    def __call__(self, image: Tensor) -> dict[str, Tensor]:
        scores = self.last(self.first(image).relu().max_pool2d().flatten(1))
        return {"scores": scores.softmax(), "label": scores.argmax(1)}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """An exported model, and what it gives for its example here."""
    with Context(DEV="CPU:LLVM"):
        Tensor.manual_seed(3)
        net, image = Net(), Tensor.rand(1, 3, 8, 8)
        export(net, {"image": image}, "webgpu", tmp_path)
        shutil.copy(HERE / "drive.html", tmp_path)
        yield tmp_path, net(image)


@pytest.mark.slow
def test_a_model_runs_in_its_page(page: tuple[Path, dict[str, Tensor]]) -> None:
    folder, expected = page

    told: dict[str, Any] = visit(folder, "drive.html", *SOFTWARE)

    assert told["errors"] == []
    first, ran, compared = told["statuses"]
    assert first == "ready"
    assert re.fullmatch(r"[\d.]+ ms", ran)
    found = re.fullmatch(r"the greatest difference from Python is ([\d.e-]+)", compared)
    assert found is not None, compared
    assert float(found[1]) < 1e-6
    channels = numpy.array([float(text) for text in told["pixels"]]).reshape(3, 64)
    numpy.testing.assert_allclose(channels.T, [[0.2, 0.4, 1.0]] * 64)  # of a picture in one color
    assert told["tables"].keys() == expected.keys()
    for name, tensor in expected.items():
        shown = numpy.array([float(text) for text in told["tables"][name]])
        numpy.testing.assert_allclose(shown, tensor.numpy().reshape(-1), 2e-6, 1e-6, err_msg=name)


def test_a_page_without_an_adapter_says_what_is_missing(
    page: tuple[Path, dict[str, Tensor]],
) -> None:
    told = visit(page[0], "drive.html", *NO_ADAPTER)

    assert told["errors"] == []
    assert told["statuses"] in (["WebGPU finds no adapter"], ["this browser has no WebGPU"])
