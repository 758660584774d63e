"""Exported models: what is written, and that it computes the same in JavaScript as in Python.

The JavaScript runs on Dawn's Node bindings with SwiftShader; `node/install FOLDER` installs both,
and TINY_WEBGPU_NODE=FOLDER says where they are.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Context, Tensor, nn
from tinycore.cli.export import export
from tinycore.cli.main import main
from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError

HERE = Path(__file__).parent
NODE = os.environ.get("TINY_WEBGPU_NODE", "")


class Net:
    """A convolution, a normalization and a linear layer."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm(4)
        self.last = nn.Linear(4 * 16, 10)

    def __call__(self, image: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(self.first(image)).relu().max_pool2d().flatten(1)
        scores = self.last(hidden)
        return {"scores": scores.softmax(), "label": scores.argmax(1)}


@pytest.fixture(autouse=True)
def host() -> Any:
    """Models are exported from the processor, whatever else there is."""
    with Context(DEV="CPU:LLVM"):
        Tensor.manual_seed(3)
        yield


def run_in_node(folder: Path) -> dict[str, Any]:
    """The outputs of a page's model for its example, computed in JavaScript."""
    if not NODE or shutil.which("node") is None:
        pytest.skip("no Node bindings of Dawn: run plugins/tiny_webgpu/tests/node/install")
    driver = str(Path(NODE, "driver.json"))
    done = subprocess.run(
        ["node", str(HERE / "node/run_page.mjs"), str(Path(NODE, "node_modules")), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"VK_DRIVER_FILES": driver, "VK_ICD_FILENAMES": driver},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def assert_same(told: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    """JavaScript's outputs are Python's, up to rounding."""
    assert told["outputs"].keys() == expected.keys()
    for name, tensor in expected.items():
        found = numpy.array(told["outputs"][name])
        numpy.testing.assert_allclose(found, tensor.numpy().reshape(-1), 2e-6, 1e-6, err_msg=name)


def test_a_network_computes_in_javascript_what_it_computes_here(tmp_path: Path) -> None:
    net, image = Net(), Tensor.rand(2, 1, 8, 8)
    export(net, {"image": image}, "webgpu", tmp_path)

    told = run_in_node(tmp_path)
    assert_same(told, net(image))
    assert told["again"], "a second run gives the same"
    assert told["wrong"] == "image must be a Float32Array of 128 elements"


class Bottleneck:
    """An inverted bottleneck of MobileNetV2."""

    def __init__(self, inner: int, factor: int) -> None:
        wide = inner * factor
        self.expand = nn.Conv2d(inner, wide, 1, bias=False)
        self.depth = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.project = nn.Conv2d(wide, inner, 1, bias=False)
        self.norms = [nn.BatchNorm(wide), nn.BatchNorm(wide), nn.BatchNorm(inner)]

    def __call__(self, x: Tensor) -> Tensor:
        found = self.norms[0](self.expand(x)).relu6()
        found = self.norms[1](self.depth(found)).relu6()
        return x + self.norms[2](self.project(found))


def launched(folder: Path) -> list[int]:
    """The threads of each launch of a page's model."""
    model = json.loads((folder / "model.json").read_text("utf-8"))
    kernels = [model["kernels"][launch["kernel"]] for launch in model["launches"]]
    return [math.prod(kernel["grid"]) * math.prod(kernel["threads"]) for kernel in kernels]


def test_equal_text_is_launched_in_groups_of_its_own(tmp_path: Path) -> None:
    """The pads of a depthwise convolution differ in their channels alone, which no text names."""

    def pads(few: Tensor, many: Tensor) -> dict[str, Tensor]:
        around = ((0, 0), (0, 0), (1, 1), (1, 1))
        wide = {"few": few.pad(around), "many": many.pad(around)}
        return {name: x.contiguous().mean((2, 3)) for name, x in wide.items()}

    inputs = {"few": Tensor.rand(1, 32, 112, 112), "many": Tensor.rand(1, 96, 112, 112)}
    export(pads, inputs, "webgpu", tmp_path)

    texts = [file.read_text("utf-8") for file in (tmp_path / "kernels").iterdir()]
    assert len({*texts}) < len(texts)
    few, many = (32 * 114 * 114, 96 * 114 * 114)
    assert any(few <= threads < many for threads in launched(tmp_path))
    assert any(many <= threads for threads in launched(tmp_path))
    assert_same(run_in_node(tmp_path), pads(**inputs))


def test_inverted_bottlenecks_compute_in_javascript_what_they_compute_here(tmp_path: Path) -> None:
    blocks = [Bottleneck(4, 2), Bottleneck(4, 6), Bottleneck(4, 3)]
    head = Tensor.rand(4, 3)  # a weight that nothing has computed

    def net(image: Tensor) -> dict[str, Tensor]:
        found = image
        for block in blocks:
            found = block(found)
        return {"scores": found.mean((2, 3)) @ head}

    image = Tensor.rand(2, 4, 28, 28)
    model = export(net, {"image": image}, "webgpu", tmp_path)
    assert (12,) in [weight.shape for weight in model.weights]
    assert_same(run_in_node(tmp_path), net(image))


def test_every_dtype_of_javascript_travels(tmp_path: Path) -> None:
    kinds = (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.int64, dtypes.uint32)
    inputs = {d.name: Tensor(numpy.arange(5) % 2, dtype=d) for d in kinds}

    def several(*given: Tensor) -> list[Tensor]:
        return [x + x if x.dtype is not dtypes.bool else ~x for x in given]

    export(several, inputs, "webgpu", tmp_path)

    expected = several(*inputs.values())
    assert_same(run_in_node(tmp_path), {f"output{i}": x for i, x in enumerate(expected)})


def test_the_folder_holds_all_that_a_page_needs(tmp_path: Path) -> None:
    net = Net()
    model = export(net, {"image": Tensor.rand(1, 1, 8, 8)}, "webgpu", tmp_path)

    manifest = json.loads((tmp_path / "model.json").read_text())
    assert len(manifest["launches"]) == len(model.launches)
    assert [x["name"] for x in manifest["inputs"]] == ["image"]
    assert [x["dtype"] for x in manifest["outputs"]] == ["float32", "int32"]
    assert all((tmp_path / kernel["file"]).is_file() for kernel in manifest["kernels"])
    assert all(len(kernel["bindings"]) <= 8 for kernel in manifest["kernels"])
    assert "runner.js" in (tmp_path / "index.html").read_text()
    weights = nn.state.safe_load(tmp_path / "weights.safetensors")
    numpy.testing.assert_array_equal(weights["last.weight"].numpy(), net.last.weight.numpy())


def test_the_command_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "doubling.py"
    file.write_text(
        "from tinycore import Tensor\n"
        "def model():\n"
        '    return (lambda x: x * 2), {"x": Tensor([1.0, 2.0, 3.0])}\n'
    )
    assert main(["export", "webgpu", f"{file}:model", "-o", str(tmp_path / "page")]) == 0

    assert "1 launches of 1 kernels" in capsys.readouterr().out
    example = nn.state.safe_load(tmp_path / "page/example.safetensors")
    assert example["output/output"].tolist() == [2.0, 4.0, 6.0]


def test_a_model_in_float64_is_refused(tmp_path: Path) -> None:
    x = Tensor([1.0], dtype=dtypes.float64)

    with pytest.raises(UnsupportedError, match="WGSL has no float64"):
        export(lambda x: x + 1, {"x": x}, "webgpu", tmp_path)
