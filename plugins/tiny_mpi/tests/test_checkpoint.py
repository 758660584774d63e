"""Checkpoints: another number of processes goes on with the same losses, and all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import output

from tiny_mpi import checkpoint
from tiny_mpi.checkpoint import load, save
from tinycore import Tensor, dtypes
from tinycore.errors import ArgumentError, DTypeError, FileFormatError, ShapeError
from tinycore.nn.state import safe_save

pytest.importorskip("mpi4py")  # the package is installed with what it needs

PROGRAM = Path(__file__).parent / "programs" / "resume.py"


def state_of(value: float) -> dict[str, Tensor]:
    wide = Tensor.full((2, 3), value, dtype=dtypes.float32).contiguous().realize()
    half = Tensor.full((4,), value, dtype=dtypes.bfloat16).contiguous().realize()
    return {"a": wide, "b": half}


@pytest.mark.slow
def test_another_number_of_processes_goes_on(tmp_path: Path) -> None:
    whole = json.loads(output(1, PROGRAM, "copies", "0", "6", str(tmp_path / "whole")))
    begun = json.loads(output(2, PROGRAM, "parts", "0", "2", str(tmp_path / "parts")))
    more = json.loads(output(4, PROGRAM, "mesh", "2", "4", str(tmp_path / "parts")))
    end = json.loads(output(1, PROGRAM, "parts", "4", "6", str(tmp_path / "parts")))

    numpy.testing.assert_allclose([*begun, *more, *end], whole, rtol=1e-6)
    assert len(list((tmp_path / "parts").iterdir())) == 2  # one process: its file, and the index


@pytest.mark.slow
def test_every_process_writes_its_parts(tmp_path: Path) -> None:
    output(2, PROGRAM, "parts", "0", "1", str(tmp_path))

    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(sizes) == 2
    assert max(sizes) < 1.1 * min(sizes)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, state_of(2.5), {"step": 7})
    fresh = state_of(0)

    assert load(tmp_path, fresh) == {"step": 7}
    assert fresh["a"].tolist() == [[2.5] * 3] * 2
    assert fresh["b"].tolist() == [2.5] * 4


def test_a_save_that_fails_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, state_of(1))

    def fails(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replacing_file", fails)
        with pytest.raises(OSError, match="no space"):
            save(tmp_path, state_of(2))

    fresh = state_of(0)
    load(tmp_path, fresh)
    assert fresh["a"].tolist() == [[1] * 3] * 2
    save(tmp_path, state_of(3))
    assert len(list(tmp_path.iterdir())) == 2


def test_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path, state_of(1))
    fresh = state_of(0)

    with pytest.raises(ArgumentError, match="lacks c, and has b besides"):
        load(tmp_path, {"a": fresh["a"], "c": fresh["b"]})
    with pytest.raises(ShapeError, match=r"b is \(3,\) here, in the checkpoint \[4\]"):
        load(tmp_path, {"a": fresh["a"], "b": Tensor.zeros(3, dtype=dtypes.bfloat16)})
    with pytest.raises(DTypeError, match="b is float32 here, in the checkpoint bfloat16"):
        load(tmp_path, {"a": fresh["a"], "b": Tensor.zeros(4)})
    assert fresh["a"].tolist() == [[0] * 3] * 2


def test_a_checkpoint_of_before_there_were_meshes_is_loaded(tmp_path: Path) -> None:
    parts = [Tensor.full((2, 3), number).contiguous() for number in (1.0, 2.0)]
    for name, part in zip("xy", parts, strict=True):
        safe_save({"a": part}, tmp_path / name)
    safe_save({"b": parts[0]}, tmp_path / "z")
    spread = {"shape": [2, 6], "dtype": "float32", "axis": 1, "files": ["x", "y"]}
    alone = {"shape": [2, 3], "dtype": "float32", "axis": None, "files": ["z"]}
    index = {"tensors": {"a": spread, "b": alone}, "facts": {"step": 3}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    fresh = {"a": Tensor.zeros(2, 6).contiguous(), "b": Tensor.zeros(2, 3).contiguous()}

    assert load(tmp_path, fresh) == {"step": 3}
    assert fresh["a"].tolist() == [[1] * 3 + [2] * 3] * 2
    assert fresh["b"].tolist() == [[1] * 3] * 2


def test_a_checkpoint_of_a_later_format_is_refused(tmp_path: Path) -> None:
    save(tmp_path, state_of(1))
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["format"] == 2

    (tmp_path / "index.json").write_text(json.dumps(index | {"format": 3}))

    with pytest.raises(FileFormatError, match=r"of format 3, and this tiny-mpi reads .* up to 2"):
        load(tmp_path, state_of(0))


def row(**more: Any) -> str:
    """An index of one tensor in two files."""
    entry = {"files": ["x", "y"], "shape": [2], "dtype": "int8", **more}
    return json.dumps({"tensors": {"a": entry}, "facts": {}})


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"tensors": {}}',
        '{"tensors": {"a": {"files": ["../a"]}}, "facts": {}}',
        '{"tensors": {"a": {"files": [], "shape": [2], "boxes": [], "dtype": ""}}, "facts": {}}',
        '{"format": "two", "tensors": {}, "facts": {}}',
        '{"format": 1e999, "tensors": {}, "facts": {}}',
        row(),
        row(boxes=[[[0, 2]]]),
        row(boxes=[[[0, 1]], [[0, 2]]]),
        row(boxes=[[[0, 1]], [[2, 3]]]),
        row(boxes=[[[0, 2]], [[0, 2]]]),
        row(boxes=[[], []]),
        row(boxes=[[[0, 1]] * 60, [[1, 2]] * 60], shape=[2] * 60),  # a grid of 2 ** 60 cells
        *[row(axis=axis) for axis in (None, -1, 1, "0", [0])],
        row(axis=0, shape=[3]),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "index.json").write_text(index)

    with pytest.raises(FileFormatError, match="no index of a checkpoint"):
        load(tmp_path, {})
