"""`tinycore export`: what a backend is given to write, and what is said when it cannot be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinycore import Context, Tensor, nn
from tinycore.cli.export import export, made
from tinycore.cli.main import main
from tinycore.errors import ArgumentError, UnsupportedError
from tinycore.plugin import (
    API_VERSION,
    Backend,
    ExportedModel,
    installed_renderers,
    register,
    unregister,
)
from tinycore.schedule import row_fusion

WRITTEN = "model.bin"


def write(model: ExportedModel, folder: Path) -> None:
    """All kernels, one after another."""
    (folder / WRITTEN).write_bytes(b"".join(kernel.binary for kernel in model.kernels))


def no_device(index: int, interface: str) -> None:
    raise AssertionError("exporting needs no device")


@pytest.fixture(autouse=True)
def paper() -> Iterator[None]:
    """A backend that only exports."""
    name, renderer = next(iter(installed_renderers("NULL").items()))
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


def test_what_is_no_state_is_a_constant(tmp_path: Path) -> None:
    table = Tensor([3, 1, 2]).realize()
    model = export(lambda x: x + table, {"x": Tensor([1, 1, 1])}, "paper", tmp_path)

    assert [x.name for x in model.weights] == ["constant0"]
    kept = nn.state.safe_load(tmp_path / "weights.safetensors")
    assert kept["constant0"].tolist() == [3, 1, 2]


def test_equal_launches_share_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight) @ weight

    monkeypatch.setattr(row_fusion, "MOST_MEMBERS", 1)  # or both would be one launch
    square = Tensor([[1.0, 2.0], [3.0, 4.0]])
    model = export(twice, {"x": square, "weight": square + 1}, "paper", tmp_path)

    assert [launch.kernel for launch in model.launches][:2] == [0, 0]
    assert len(model.kernels) < len(model.launches)


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
        ("json:absent", "json:absent is no function"),
        ("tinycore.nn:Absent", "tinycore.nn:Absent is no function"),
        ("model", "model names no function; give FILE.py:NAME or MODULE:NAME"),
        ("model.py:", "model.py: names no function"),
    ],
)
def test_a_reference_to_nothing_is_told(reference: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        made(reference)


def test_a_module_that_lacks_what_it_imports_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_models.py").write_text("import absent_of_all\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="absent_of_all"):
        made("lacking_models:model")


def test_a_reference_that_is_no_maker_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("number = 3\ndef model():\n    return 4\n")

    with pytest.raises(ArgumentError, match=r"model.py:number is no function; give FILE.py:NAME"):
        made(f"{file}:number")
    with pytest.raises(ArgumentError, match=r"model\(\) must return \(model, \{name: example"):
        made(f"{file}:model")


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
