"""`tinycore export`: what a backend is given to write, and what is said when it cannot be."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinycore import Context, Device, Tensor, TinyJit, Variable, nn
from tinycore.cli.export import export, made
from tinycore.cli.main import main
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, UnsupportedError
from tinycore.plugin import (
    API_VERSION,
    Backend,
    ExportedModel,
    ExportedSpan,
    ExportedTensor,
    register,
    unregister,
)
from tinycore.schedule.row_fusion import FusionGroup

WRITTEN = "model.bin"


def write(model: ExportedModel, folder: Path) -> None:
    """All kernels, one after another."""
    (folder / WRITTEN).write_bytes(b"".join(kernel.binary for kernel in model.kernels))


def no_device(index: int, interface: str) -> None:
    raise AssertionError("exporting needs no device")


@pytest.fixture(autouse=True)
def paper() -> Iterator[None]:
    """A backend that only exports."""
    name, renderer = next(iter(Device.backend("PYTHON").renderers.items()))
    backend = Backend(
        name="PAPER",
        api=API_VERSION,
        open=no_device,  # type: ignore[arg-type]
        renderers={name: renderer},
        export=write,
        priority=-1,
    )
    register(backend)
    with Context(DEV="PYTHON"):
        yield
    unregister("PAPER")


def test_weights_have_the_names_of_the_state(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    model = export(net, {"x": Tensor([[1.0, 2.0, 3.0]])}, "paper", tmp_path)

    assert [x.name for x in model.weights] == ["weight", "bias"]
    kept = nn.state.safe_load(tmp_path / "weights.safetensors")
    assert kept["weight"].tolist() == net.weight.tolist()
    assert (tmp_path / WRITTEN).read_bytes() == b"".join(k.binary for k in model.kernels)


def test_inputs_and_outputs_have_names_shapes_and_places(tmp_path: Path) -> None:
    def both(a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"total": a + b, "least": a.minimum(b).min()}

    inputs = {"a": Tensor([1.0, 5.0]), "b": Tensor([4.0, 2.0])}
    model = export(both, inputs, "paper", tmp_path)

    assert [(x.name, x.shape) for x in model.inputs] == [("a", (2,)), ("b", (2,))]
    assert [(x.name, x.shape) for x in model.outputs] == [("total", (2,)), ("least", ())]
    places = [x.span.buffer for x in (*model.inputs, *model.outputs)]
    assert len(set(places)) == 4
    assert all(model.buffers[x.span.buffer] == x.span.size for x in model.outputs)
    example = nn.state.safe_load(tmp_path / "example.safetensors")
    assert example["output/total"].tolist() == [5.0, 7.0]
    assert example["output/least"].item() == 1.0


class Views:
    """A model whose weights are views of memory that has no name."""

    def __init__(self) -> None:
        memory = Tensor.arange(24).float().realize()
        self.turned = memory[:12].reshape(4, 3).T
        self.last, self.same = memory[20:], memory[20:]
        self.rest = memory[12:20]

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.turned[:, 1:].pad(((0, 0), (1, 0))) + self.last * 2 + self.same


def test_weights_that_are_views_have_their_names_and_shapes(tmp_path: Path) -> None:
    runner = computed(views := Views(), {"x": Tensor.rand(2, 3)}, tmp_path)

    assert [(x.name, x.shape) for x in runner.model.weights] == [
        ("turned", (3, 4)),
        ("last", (4,)),
        ("same", (4,)),
    ]
    kept = nn.state.safe_load(tmp_path / "weights.safetensors")
    assert {name: x.tolist() for name, x in kept.items()} == {
        name: x.tolist() for name, x in nn.state.get_state_dict(views).items() if name in kept
    }


def test_a_view_of_what_is_read_otherwise_too_stays_one(tmp_path: Path) -> None:
    """Another weight in its place would count in a part of the model alone."""
    memory = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()

    class Net:
        def __init__(self) -> None:
            self.weight = memory.flip(0)

        def __call__(self, x: Tensor) -> Tensor:
            return x @ self.weight + memory

    runner = computed(Net(), {"x": Tensor([[1.0, 2.0]])}, tmp_path)

    assert [x.name for x in runner.model.weights] == ["constant0"]


def test_what_is_no_state_is_a_constant(tmp_path: Path) -> None:
    table = Tensor([3, 1, 2]).realize()
    model = export(lambda x: x + table, {"x": Tensor([1, 1, 1])}, "paper", tmp_path)

    assert [x.name for x in model.weights] == ["constant0"]
    kept = nn.state.safe_load(tmp_path / "weights.safetensors")
    assert kept["constant0"].tolist() == [3, 1, 2]


def test_equal_launches_share_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight) @ weight

    monkeypatch.setattr(FusionGroup, "most", 1)  # or both would be one launch
    square = Tensor([[1.0, 2.0], [3.0, 4.0]])
    model = export(twice, {"x": square, "weight": square + 1}, "paper", tmp_path)

    assert [launch.kernel for launch in model.launches][:2] == [0, 0]
    assert len(model.kernels) < len(model.launches)


class Runner:
    """Runs an exported model in Python, kernel by kernel, on the interpreter."""

    def __init__(self, model: ExportedModel, folder: Path) -> None:
        self.model = model
        self.device = Device["PYTHON"]
        self.programs = [self.device.load(k.binary, k.info) for k in model.kernels]
        self.memory = [Buffer("PYTHON", size, dtypes.uint8) for size in model.buffers]
        self.give("", nn.state.safe_load(folder / "weights.safetensors"), model.weights)

    def give(
        self, prefix: str, content: Mapping[str, Tensor], places: Sequence[ExportedTensor]
    ) -> None:
        for place in places:
            data = content[prefix + place.name].numpy().tobytes()
            self.part(place.span).copyin(memoryview(data))

    def part(self, span: ExportedSpan) -> Buffer:
        return self.memory[span.buffer].view(span.size, dtypes.uint8, span.start)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, bytes]:
        self.give("input/", inputs, self.model.inputs)
        for launch in self.model.launches:
            self.programs[launch.kernel]([self.part(s).handle for s in launch.spans], ())
        return {x.name: self.part(x.span).tobytes() for x in self.model.outputs}


def computed(function: Callable[..., Any], inputs: Mapping[str, Tensor], folder: Path) -> Runner:
    """An exported model, which has computed its example as Python has."""
    runner = Runner(export(function, inputs, "paper", folder), folder)
    example = nn.state.safe_load(folder / "example.safetensors")
    found = runner.run(example)
    expected = {n: example[f"output/{n}"].numpy().tobytes() for n in found}
    assert found == expected
    return runner


class Block:
    """The inverted bottleneck of MobileNetV2."""

    def __init__(self, inner: int, outer: int, factor: int, stride: int) -> None:
        wide = inner * factor
        self.expand = nn.Conv2d(inner, wide, 1, bias=False)
        self.depth = nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False)
        self.project = nn.Conv2d(wide, outer, 1, bias=False)
        self.norms = [nn.BatchNorm(wide), nn.BatchNorm(wide), nn.BatchNorm(outer)]
        self.is_residual = stride == 1 and inner == outer

    def __call__(self, x: Tensor) -> Tensor:
        found = self.norms[0](self.expand(x)).relu6()
        found = self.norms[1](self.depth(found)).relu6()
        found = self.norms[2](self.project(found))
        return x + found if self.is_residual else found


class Mobile:
    """MobileNetV2 for small images."""

    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
        self.blocks = [Block(4, 4, 1, 1), Block(4, 6, 3, 2), Block(6, 6, 3, 1), Block(6, 8, 3, 2)]
        self.head = nn.Linear(8, 5)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu6()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


@pytest.mark.slow
def test_a_network_of_inverted_bottlenecks_computes_what_python_does(tmp_path: Path) -> None:
    computed(Mobile(), {"image": Tensor.rand(1, 3, 16, 16)}, tmp_path)


class Blind:
    """A compiler whose code says nothing of the groups that it is launched in."""

    name = key = "BLIND"

    def compile(self, source: str) -> bytes:
        return b"the same"


def test_equal_code_in_other_groups_is_another_kernel(tmp_path: Path) -> None:
    """Pads of 32 and of 96 channels are one text in WGSL, over grids of other sizes."""
    unregister("PAPER")
    made = Device["PYTHON"].backend.renderers["PYTHON"]("groups=4")
    written: list[ExportedModel] = []
    register(
        Backend(
            name="PAPER",
            api=API_VERSION,
            open=no_device,  # type: ignore[arg-type]
            renderers={"PYTHON": lambda arch: replace(made, compiler=Blind())},
            export=lambda model, folder: written.append(model),
            priority=-1,
        )
    )

    def pads(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.pad(((0, 0), (1, 1), (1, 1))), y.pad(((0, 0), (1, 1), (1, 1)))

    few, many = Tensor.zeros(32, 112, 112), Tensor.zeros(96, 112, 112)
    model = export(pads, {"x": few, "y": many}, "paper", tmp_path)

    sizes = [model.kernels[launch.kernel].info for launch in model.launches]
    elements = [math.prod(info.grid) * math.prod(info.block) for info in sizes]
    assert len(model.kernels) == 2
    assert elements[1] == 3 * elements[0]


def test_weights_that_nothing_has_computed_are_weights(tmp_path: Path) -> None:
    weight, scale = Tensor.rand(3, 2), Tensor([2.0, 3.0]) * 4
    runner = computed(lambda x: (x @ weight) * scale, {"x": Tensor.rand(4, 3)}, tmp_path)

    assert [x.shape for x in runner.model.weights] == [(6,), (2,)]


def test_weights_of_a_first_call_are_weights(tmp_path: Path) -> None:
    made: dict[str, Tensor] = {}

    def lazy(x: Tensor) -> Tensor:
        if "weight" not in made:
            made["weight"] = Tensor.randn(x.shape[1], 2)
        return x @ made["weight"]

    runner = computed(lazy, {"x": Tensor.rand(4, 3)}, tmp_path)

    assert [x.dtype for x in runner.model.weights] == [dtypes.float32]  # and no generator's state


def test_random_numbers_of_each_call_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="draws random numbers in each call"):
        export(lambda x: x + Tensor.rand(3), {"x": Tensor.rand(3)}, "paper", tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: (x + 1).realize(),
        lambda x: (x + 1).realize() * 2,
        lambda x: (x[1:] * x.sum().realize()).flip(0),
        TinyJit(lambda x: (x + 1).realize()),
        lambda x: x * x.sum().item(),
        lambda x: x * x.numpy()[0],
        lambda x: x * x[1].item(),
        lambda x: x + 1 if x.max().item() > 0 else x - 1,
    ],
    ids=["result", "step", "number", "captured", "item", "input", "part", "branch"],
)
def test_what_a_model_computes_while_it_is_called_is_no_constant(
    tmp_path: Path, model: Callable[[Tensor], Tensor]
) -> None:
    with pytest.raises(UnsupportedError, match=r"from its inputs .* as a constant"):
        export(model, {"x": Tensor([1.0, 2.0])}, "paper", tmp_path)


def test_a_constant_that_a_model_reads_while_it_is_called_is_one(tmp_path: Path) -> None:
    scale = Tensor([3.0]).realize()
    computed(lambda x: x * scale.item(), {"x": Tensor([1.0, 2.0])}, tmp_path)


def test_a_table_that_a_model_computes_while_it_is_called_is_a_constant(tmp_path: Path) -> None:
    computed(lambda x: x + (Tensor.arange(3) * 2).realize(), {"x": Tensor([1, 2, 3])}, tmp_path)


def test_a_state_that_a_model_writes_is_exported_as_it_was(tmp_path: Path) -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = Tensor([1.0, 2.0]).realize()

        def __call__(self, x: Tensor) -> Tensor:
            self.total.assign(self.total + x)
            return self.total * 2

    computed(Counter(), {"x": Tensor([10.0, 20.0])}, tmp_path)


def test_a_state_that_is_written_after_it_was_read_is_written(tmp_path: Path) -> None:
    total = Tensor([1.0, 2.0]).realize()

    def model(x: Tensor) -> Tensor:
        before = total + x
        total.assign(before)
        return before * 2

    runner = computed(model, {"x": Tensor([10.0, 20.0])}, tmp_path)
    example = nn.state.safe_load(tmp_path / "example.safetensors")
    again = runner.run(example)["output"]
    assert again == (example["output/output"] + example["input/x"] * 2).numpy().tobytes()


def test_a_state_that_is_written_through_a_view_is_written(tmp_path: Path) -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = Tensor.arange(6).float().realize()[2:4]
            self.weight = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize().T

        def __call__(self, x: Tensor) -> Tensor:
            before = self.total + x
            self.total.assign(before)
            return before @ self.weight

    runner = computed(Counter(), {"x": Tensor([10.0, 20.0])}, tmp_path)
    example = nn.state.safe_load(tmp_path / "example.safetensors")
    again = runner.run(example)["output"]

    x, weight = example["input/x"], Tensor([[1.0, 2.0], [3.0, 4.0]]).T
    assert again == (example["output/output"] + x @ weight).numpy().tobytes()
    assert [x.name for x in runner.model.weights] == ["weight", "constant0"]


@pytest.mark.parametrize("given", [[1.0, 2.0], 3, None])
def test_an_example_input_that_is_no_tensor_is_told(tmp_path: Path, given: Any) -> None:
    kind = type(given).__name__
    with pytest.raises(ArgumentError, match=f"input 'x' must be a Tensor, not {kind}"):
        export(lambda x: x, {"x": given}, "paper", tmp_path)


def test_the_example_has_inputs_as_they_were_given(tmp_path: Path) -> None:
    def model(x: Tensor) -> Tensor:
        x += 1
        return x

    computed(model, {"x": Tensor([1.0, 2.0])}, tmp_path)


def test_a_model_without_inputs(tmp_path: Path) -> None:
    table = Tensor([1.0, 2.0]).realize()
    computed(lambda: table + 1, {}, tmp_path)


def test_tensors_of_no_or_symbolic_sizes_are_refused(tmp_path: Path) -> None:
    x = Tensor([1.0, 2.0])
    computed(lambda x: x[:0].sum() + x, {"x": x}, tmp_path)
    size = Variable("size", 1, 2).bind(1)
    for model, given in (
        (lambda x: x[:0], x),
        (lambda x: x + 1, x[:0]),
        (lambda x: x[:size] * 2, x),
    ):
        with pytest.raises(UnsupportedError, match="shapes are of numbers above 0, not "):
            export(model, {"x": given}, "paper", tmp_path)


def test_a_backend_that_exports_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"PYTHON exports no models\. .* do: .*PAPER"):
        export(lambda x: x, {"x": Tensor([1.0])}, "python", tmp_path)


def test_a_model_that_returns_no_tensors_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the model must return tensors, not int"):
        export(lambda x: 3, {"x": Tensor([1.0])}, "paper", tmp_path)


def test_a_file_that_ends_the_program_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")

    assert main(["export", "PAPER", f"{tmp_path / 'ends.py'}:model", "-o", str(tmp_path)]) == 1
    assert "ends.py ended by exit(3) before model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("absent.py:model", "there is no file absent.py"),
        ("absent.models:model", "there is no module absent. For a file, write FILE.py:NAME"),
        ("json.absent:model", "there is no module json.absent"),
        ("json:absent", "json:absent is missing; give FILE.py:NAME of a function without"),
        ("tinycore.nn:Absent", "tinycore.nn:Absent is missing"),
        ("model", "model names no function; give FILE.py:NAME or MODULE:NAME"),
        ("model.py:", "model.py: names no function"),
    ],
)
def test_a_reference_to_nothing_is_told(reference: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        made(reference)


def test_a_reference_into_a_class_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "classed_models.py").write_text(
        "class Net:\n    @staticmethod\n    def make():\n        return abs, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert made("classed_models:Net.make") == (abs, {})
    with pytest.raises(ArgumentError, match=r"Net\.absent\.make is missing"):
        made("classed_models:Net.absent.make")


def test_a_module_that_lacks_what_it_imports_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_models.py").write_text("import absent_of_all\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="absent_of_all"):
        made("lacking_models:model")


NO_MAKERS = """
from tinycore import nn

number = 3
net = nn.Linear(2, 2)

def needs(net): ...

class Needs:
    def __init__(self, net): ...

def four():
    return 4

def swapped():
    return {}, net

def uncalled():
    return 3, {}

def broken():
    return needs()
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", r"is of type int; give FILE\.py:NAME of a function without arguments that"),
        ("net", r"is of type Linear; give .* that returns \(model, \{name: example tensor\}\)"),
        ("needs", "is of type function; give"),
        ("Needs", "is of type type; give"),
        ("four", r"\(\) must return \(model, \{name: example tensor\}\)"),
        ("swapped", r"\(\) must return"),
        ("uncalled", r"\(\) must return"),
        ("absent", r"is missing; give"),
    ],
)
def test_a_reference_that_is_no_maker_is_told(name: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(NO_MAKERS)

    with pytest.raises(ArgumentError, match=rf"model\.py:{name} ?{message}"):
        made(f"{file}:{name}")


def test_an_error_of_a_maker_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(NO_MAKERS)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'net'"):
        made(f"{file}:broken")


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "half.py"
    file.write_text(
        "from tinycore import Tensor\n"
        "def model():\n"
        '    return (lambda x: x / 2), {"x": Tensor([1.0, 2.0])}\n'
    )
    assert main(["export", "paper", f"{file}:model", "-o", str(tmp_path / "out")]) == 0

    assert "1 launches of 1 kernels, 0 bytes of weights" in capsys.readouterr().out
    assert (tmp_path / "out" / WRITTEN).is_file()


def exported(folder: Path) -> None:
    export(lambda x: x * 2, {"x": Tensor([1.0])}, "paper", folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Each file below a folder, and what links there lead to."""
    return {
        place.relative_to(folder).as_posix(): place.read_bytes()
        for place in folder.rglob("*")
        if place.is_file()
    }


def test_an_export_replaces_the_files_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "WRITTEN", "old.bin")
    exported(tmp_path / "out")
    assert "old.bin" in contents(tmp_path / "out")
    (tmp_path / "out/notes.txt").write_text("mine")
    monkeypatch.undo()

    exported(tmp_path / "out")

    assert sorted(contents(tmp_path / "out")) == [
        ".tinycore-export.json", "example.safetensors", "model.bin", "notes.txt",
        "weights.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["model.bin", "weights.safetensors", ".tinycore-export.json"])
def test_files_of_others_are_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")

    with pytest.raises(ArgumentError, match=r"is there already, and no export wrote it"):
        exported(tmp_path)

    assert contents(tmp_path) == {name: b"mine"}


def test_a_file_that_was_changed_is_not_replaced(tmp_path: Path) -> None:
    exported(tmp_path)
    (tmp_path / "model.bin").write_text("mine")
    before = contents(tmp_path)

    with pytest.raises(ArgumentError, match=r"was changed since it was exported"):
        exported(tmp_path)

    assert contents(tmp_path) == before


def test_a_list_of_files_elsewhere_removes_none(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    digest = hashlib.sha256(b"mine").hexdigest()
    names = ["../other", str(other), "folder/../../other"]
    (folder / ".tinycore-export.json").write_text(json.dumps(dict.fromkeys(names, digest)))

    with pytest.raises(ArgumentError, match="no export wrote it"):
        exported(folder)

    assert other.read_text() == "mine"


@pytest.mark.parametrize("name", ["model.bin", "weights.safetensors"])
def test_an_export_goes_through_no_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "other")

    with pytest.raises(ArgumentError, match="goes through a link"):
        exported(tmp_path / "out")

    assert (tmp_path / "other").read_text() == "mine"
