"""Files of torch.save are read as they are, and nothing in them is run."""

from __future__ import annotations

import argparse
import collections
import datetime
import gzip
import io
import json
import os
import pathlib
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tinycore import Tensor
from tinycore.errors import ArgumentError, DTypeError, FileFormatError, UnknownNameError
from tinycore.nn.files import Opaque
from tinycore.nn.state import (
    TensorIO,
    safe_load,
    safe_save,
    tar_extract,
    torch_load,
    zip_extract,
)

FORMATS = [True, False]
"""True for an archive, False for a file from before torch 1.6."""

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()


def saved(path: Path, found: Any, archive: bool = True) -> Path:
    torch.save(found, path, _use_new_zipfile_serialization=archive)
    return path


@pytest.mark.parametrize("archive", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype(tmp_path: Path, dtype: str, archive: bool) -> None:
    theirs = torch.arange(-3, 9).reshape(3, 4).to(getattr(torch, dtype))

    ours = torch_load(saved(tmp_path / "x.pt", {"x": theirs}, archive))["x"]

    assert (ours.dtype.name, ours.shape) == (dtype, (3, 4))
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("archive", [True, False])
def test_the_bytes_of_a_file_as_a_tensor(tmp_path: Path, archive: bool) -> None:
    path = saved(tmp_path / "x.pt", {"x": torch.arange(6.0).reshape(2, 3), "n": 3}, archive)

    found = torch_load(Tensor(path.read_bytes()))

    assert (found["x"].tolist(), found["n"]) == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 3)
    with pytest.raises(FileFormatError, match="a tensor of bytes: no file of"):
        torch_load(Tensor(b"no model"))


def test_narrow_and_unsigned_dtypes(tmp_path: Path) -> None:
    for dtype, ours in (("float8_e4m3fn", "fp8e4m3"), ("uint16", "uint16"), ("uint64", "uint64")):
        theirs = torch.tensor([1, 2, 3]).to(getattr(torch, dtype))
        found = torch_load(saved(tmp_path / "x.pt", theirs))
        assert found.dtype.name == ours
        assert found.float().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("archive", FORMATS)
def test_views_of_all_kinds(tmp_path: Path, archive: bool) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    views = [x, x.permute(2, 0, 1), x[1:, ::2, 1:3], x[0, 0, :1].expand(5, 3, 1), x[:0], x[1, 2, 3]]

    ours = torch_load(saved(tmp_path / "x.pt", views, archive))

    assert [v.tolist() for v in ours] == [v.tolist() for v in views]


@pytest.mark.parametrize("archive", FORMATS)
def test_a_checkpoint(tmp_path: Path, archive: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": 0.5,
        "name": "run",
        "shape": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "weight": torch.nn.Parameter(torch.ones(2)),
    }

    ours = torch_load(saved(tmp_path / "x.pt", state, archive))

    for name, value in model.state_dict().items():
        assert ours["model"][name].tolist() == value.tolist(), name
    moments = ours["optimizer"]["state"][0]["exp_avg"]
    assert moments.shape == (4, 3)
    assert (ours["epoch"], ours["best"], ours["name"]) == (3, 0.5, "run")
    assert (ours["shape"], ours["dtype"].name) == ((2, 3), "bfloat16")
    assert ours["weight"].tolist() == [1.0, 1.0]


class Harm:
    """Code that a hostile file would have run."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("archive", FORMATS)
def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "x.pt", {"x": torch.ones(2), "harm": Harm()}, archive)

    found = torch_load(path)

    assert found["x"].tolist() == [1.0, 1.0]
    assert repr(found["harm"]) == f"<{os.mkdir.__module__}.mkdir, not loaded>"
    assert found["harm"].arguments == ("harm",)
    assert not (tmp_path / "harm").exists()


def test_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    for found in (Harm(), {"a": 1}, 5):
        (tmp_path / "x.pt").write_bytes(pickle.dumps(found))
        with pytest.raises(FileFormatError):
            torch_load(tmp_path / "x.pt")


def rewritten(path: Path, **records: bytes) -> Path:
    """The archive with the content of some records replaced."""
    with zipfile.ZipFile(path) as archive:
        found = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in found.items():
            archive.writestr(name, records.get(name.rpartition("/")[2], content))
    return path


def test_lengths_are_compared(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt", torch.arange(4.0))

    with pytest.raises(FileFormatError, match="storage '0' has 12 bytes instead of 16"):
        torch_load(rewritten(path, **{"0": b"x" * 12}))


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((9,), (1,), 0),
        ((2,), (1,), 3),
        ((2, 2), (4, 1), 0),
        ((-1,), (1,), 0),
        ((1 << 62,), (0,), 9),
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_views_beyond_their_storage(tmp_path: Path, size: Any, stride: Any, offset: int) -> None:
    class Forged:
        def __reduce__(self) -> Any:
            make: Any = torch.storage.TypedStorage
            storage = make(wrap_storage=torch.arange(4.0).untyped_storage(), dtype=torch.float32)
            given: Any = (storage, offset, size, stride, False, {})
            return torch._utils._rebuild_tensor_v2, given

    path = tmp_path / "x.pt"
    saved(path, [Forged()])

    with pytest.raises(FileFormatError, match="a tensor"):
        torch_load(path)


# --- beside tensors


class Settings:
    """An object of the program that saved."""

    def __init__(self) -> None:
        self.width, self.scale = 3, torch.ones(2)


HARMLESS: dict[str, Any] = {
    "bytes": b"\0\xff",
    "no bytes": b"",
    "bytearray": bytearray(b"ab"),
    "set": {1, "a", (2, 3.0)},
    "frozenset": frozenset({4}),
    "counter": collections.Counter("aab"),
    "complex": 1 - 2j,
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "deque": collections.deque([1, 2], 2),
    "float64": numpy.float64(0.5),
    "int32": numpy.int32(-3),
    "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3).T,
    "big-endian": numpy.arange(3, dtype=">i4"),
    "slice": slice(1, None, 2),
    "range": range(3),
    "date": datetime.datetime(2026, 1, 2, 3),
    "path": pathlib.PurePosixPath("a/b"),
    "big": 10**30,
    "keys": {1: 2, None: 3, (1, "a"): 4, 2.5: 5, b"b": 6},
}


@pytest.mark.parametrize("archive", FORMATS)
def test_objects_that_are_data_alone(tmp_path: Path, archive: bool) -> None:
    found = torch_load(saved(tmp_path / "x.pt", HARMLESS, archive))

    for name, value in HARMLESS.items():
        assert type(found[name]) is type(value), name
        numpy.testing.assert_equal(found[name], value)
    assert found["defaultdict"]["b"] == []
    assert found["deque"].maxlen == 2


@pytest.mark.parametrize("archive", FORMATS)
def test_other_objects_say_what_they_were(tmp_path: Path, archive: bool) -> None:
    theirs = {
        "args": argparse.Namespace(rate=0.5, layers=[1, 2]),
        "settings": Settings(),
        "function": torch.nn.functional.relu,
        "complex": torch.ones(2, dtype=torch.complex64),
        "w": torch.arange(3.0),
    }

    found = torch_load(saved(tmp_path / "x.pt", theirs, archive))

    assert (found["args"].rate, found["args"].layers) == (0.5, [1, 2])
    assert repr(found["settings"]).endswith("test_torch_load.Settings, not loaded>")
    assert found["settings"].state["width"] == 3
    assert found["settings"].state["scale"].tolist() == [1.0, 1.0]
    with pytest.raises(UnknownNameError, match=r"no 'width'\. What the file says of it is in"):
        found["settings"].width  # noqa: B018  the access is what is tested
    assert repr(found["function"]) == "<torch.nn.functional.relu, not loaded>"
    assert "ComplexFloatStorage" in repr(found["complex"])
    assert found["w"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("archive", FORMATS)
def test_a_whole_model_is_its_parameters(tmp_path: Path, archive: bool) -> None:
    linear = torch.nn.Linear(2, 1)
    model = torch.nn.Sequential(linear)

    found = torch_load(saved(tmp_path / "x.pt", model, archive))

    (layer,) = found.state["_modules"].values()
    assert layer.name == "torch.nn.modules.linear.Linear"
    assert layer.state["_parameters"]["weight"].tolist() == linear.weight.tolist()


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_the_negative_bit_is_honored(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs = torch.tensor([1 + 2j, -3j, 0.5]).to(dtype).conj().imag
    assert theirs.is_neg()

    ours = torch_load(saved(tmp_path / "x.pt", theirs))

    assert ours.tolist() == theirs.tolist() == [-2.0, 3.0, 0.0]


def with_metadata(metadata: Any) -> Any:
    """A tensor whose file has metadata that torch of today does not write."""

    class Forged:
        def __reduce__(self) -> Any:
            x: Any = torch.ones(2)
            return torch._utils._rebuild_tensor_v2, (
                x.storage(), 0, (2,), (1,), False, {}, metadata,
            )  # fmt: skip

    return Forged()


@pytest.mark.parametrize("metadata", [{"conj": True}, {"neg": True, "new": 1}, {"twice": 2}, 3])
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_unknown_metadata_are_not_ignored(tmp_path: Path, metadata: Any) -> None:
    found = torch_load(saved(tmp_path / "x.pt", [with_metadata(metadata), torch.ones(1)]))

    assert isinstance(found[0], Opaque)
    assert found[1].tolist() == [1.0]


@pytest.mark.parametrize("archive", FORMATS)
def test_tensors_with_attributes(tmp_path: Path, archive: bool) -> None:
    marked = torch.arange(3.0)
    marked.note = "a note"  # type: ignore[attr-defined]
    theirs = [torch.nn.Buffer(torch.ones(2)), marked, torch.nn.Parameter(torch.ones(1))]

    ours = torch_load(saved(tmp_path / "x.pt", theirs, archive))

    assert [x.tolist() for x in ours] == [[1.0, 1.0], [0.0, 1.0, 2.0], [1.0]]


@pytest.mark.parametrize("archive", FORMATS)
def test_equal_views_are_one_tensor(tmp_path: Path, archive: bool) -> None:
    x = torch.arange(4.0)
    ours = torch_load(saved(tmp_path / "x.pt", {"a": x, "b": x, "c": x[1:]}, archive))

    assert ours["a"] is ours["b"]
    assert ours["c"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("archive", FORMATS)
def test_windows_that_overlap_and_columns(tmp_path: Path, archive: bool) -> None:
    x = torch.arange(600 * 600.0).reshape(600, 600)
    theirs = [x[0].unfold(0, 3, 1), *x.unbind(1)]

    ours = torch_load(saved(tmp_path / "x.pt", theirs, archive))

    assert ours[0].tolist() == theirs[0].tolist()
    assert ours[600].tolist() == theirs[600].tolist()


@pytest.mark.parametrize("archive", FORMATS)
def test_an_object_that_contains_itself(tmp_path: Path, archive: bool) -> None:
    found: dict[str, Any] = {"x": torch.ones(1)}
    found["self"] = found

    ours = torch_load(saved(tmp_path / "x.pt", found, archive))

    assert ours["self"] is ours


# --- other archives, and tensors as files


def test_files_in_archives(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content of a")
    for mode in ("w", "w:gz"):
        with tarfile.open(tmp_path / "x.tar", mode) as archive:
            archive.add(tmp_path / "a", "folder/a")
        found = tar_extract(tmp_path / "x.tar")
        assert {n: bytes(t.data()) for n, t in found.items()} == {"folder/a": b"content of a"}
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(tmp_path / "a", "b")
    content = Tensor((tmp_path / "x.zip").read_bytes())
    assert bytes(zip_extract(content)["b"].data()) == b"content of a"
    for extract in (tar_extract, zip_extract):
        with pytest.raises(FileFormatError, match="archive"):
            extract(tmp_path / "a")


def test_a_changed_byte_in_a_packed_tar_is_told(tmp_path: Path) -> None:
    """The checksum of a gzip file comes after the end of the archive in it."""
    (tmp_path / "a").write_bytes(b"content of a")
    with tarfile.open(tmp_path / "x", "w") as archive:
        archive.add(tmp_path / "a", "a")
    packed = gzip.compress((tmp_path / "x").read_bytes(), 0)  # not compressed
    assert packed.count(b"content of a") == 1

    with pytest.raises(FileFormatError, match="CRC check fa"):
        tar_extract(Tensor(packed.replace(b"content of a", b"content of b")))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_some_members_are_read(tmp_path: Path, kind: str) -> None:
    """A model in an archive is loaded without coming to the disk."""
    safe_save({"w": Tensor([1.0, 2.0])}, tmp_path / "w")
    if kind == "tar":
        with tarfile.open(tmp_path / "x", "w:xz") as archive:
            archive.add(tmp_path / "w", "model/w")
            archive.add(tmp_path / "w", "b")
    else:
        with zipfile.ZipFile(tmp_path / "x", "w", zipfile.ZIP_DEFLATED) as packed:
            packed.write(tmp_path / "w", "model/w")
            packed.writestr("b", b"abc", zipfile.ZIP_LZMA)  # which is not unpacked
    extract = tar_extract if kind == "tar" else zip_extract

    found = extract(tmp_path / "x", names=["model/w"])

    assert list(found) == ["model/w"]
    assert safe_load(found["model/w"])["w"].tolist() == [1.0, 2.0]
    with pytest.raises(ArgumentError, match="has no file 'a'"):
        extract(tmp_path / "x", names=["model/w", "a"])


def sharded(folder: Path, places: dict[str, str]) -> Path:
    """A model of torch in two files, and an index of it."""
    saved(folder / "a.bin", {"x": torch.arange(3.0), "z": torch.ones(1)})
    saved(folder / "b.bin", collections.OrderedDict(y=torch.arange(2)))
    saved(folder / "c.bin", [1])
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": places}))
    return index


def test_an_index_reads_the_files_beside_it(tmp_path: Path) -> None:
    places = {"y": "b.bin", "x": "a.bin", "z": "a.bin"}

    tensors = torch_load(sharded(tmp_path, places))

    found = {name: tensor.tolist() for name, tensor in tensors.items()}
    assert found == {"y": [0, 1], "x": [0.0, 1.0, 2.0], "z": [1.0]}
    assert list(tensors) == list(places)
    with pytest.raises(FileFormatError, match=r"'x' is not in 'b\.bin'"):
        torch_load(sharded(tmp_path, {"x": "b.bin"}))
    with pytest.raises(FileFormatError, match=r"c\.bin: holds a list, no state dict"):
        torch_load(sharded(tmp_path, {"x": "c.bin"}))


@pytest.mark.parametrize("archive", FORMATS)
def test_bytes_beside_0_and_1_are_true(tmp_path: Path, archive: bool) -> None:
    theirs = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)

    ours = torch_load(saved(tmp_path / "x.pt", theirs, archive))

    assert ours.int().tolist() == [0, 1, 1, 1]


def test_a_tensor_is_read_as_a_file() -> None:
    file = io.BufferedReader(TensorIO(Tensor(b"one\ntwo\nthree")))

    assert file.readline() == b"one\n"
    assert file.seek(-5, 2) == 8
    assert file.read() == b"three"
    with pytest.raises(DTypeError, match="uint8"):
        TensorIO(Tensor(numpy.ones(2)))


@pytest.mark.parametrize("archive", FORMATS)
def test_a_small_file_cannot_take_much_time(tmp_path: Path, archive: bool) -> None:
    """A list of a list twice, and so on, has more leaves than anyone can visit."""
    found: Any = [torch.ones(2), 7]
    for _ in range(50):
        found = [found, found]

    ours = torch_load(saved(tmp_path / "x.pt", found, archive))

    for _ in range(50):
        assert ours[0] is ours[1]
        ours = ours[0]
    assert ours[0].tolist() == [1.0, 1.0]
