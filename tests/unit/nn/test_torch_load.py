"""Files of torch.save are read as they are, and nothing in them is run."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tinycore import Tensor
from tinycore.errors import DTypeError, FileFormatError
from tinycore.nn.state import TensorIO, tar_extract, torch_load, zip_extract

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

    with pytest.raises(FileFormatError, match=r"an object of \w+\.mkdir, which is not loaded"):
        torch_load(path)

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


def test_damaged_files_raise_one_exception(tmp_path: Path) -> None:
    drawn = random.Random(0)
    for archive in FORMATS:
        content = saved(tmp_path / "x.pt", {"x": torch.ones(3, 4), "n": 1}, archive).read_bytes()
        for _ in range(150):
            damaged = bytearray(
                content[: drawn.randrange(len(content)) if drawn.random() < 0.3 else None]
            )
            for _ in range(drawn.randint(0, 4) if damaged else 0):
                damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
            (tmp_path / "x.pt").write_bytes(damaged)
            with contextlib.suppress(FileFormatError):
                torch_load(tmp_path / "x.pt")


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


def test_a_tensor_is_read_as_a_file() -> None:
    file = io.BufferedReader(TensorIO(Tensor(b"one\ntwo\nthree")))

    assert file.readline() == b"one\n"
    assert file.seek(-5, 2) == 8
    assert file.read() == b"three"
    with pytest.raises(DTypeError, match="uint8"):
        TensorIO(Tensor(numpy.ones(2)))


def test_a_small_file_cannot_take_much_memory(tmp_path: Path) -> None:
    """An unpickler takes memory for all numbers below one that an object gets: here 16 GB."""
    path = tmp_path / "x.pt"
    path.write_bytes(b"\x80\x02Nr\x00\x00\x00\x7f.")

    with pytest.raises(FileFormatError, match="numbers an object 2130706432"):
        torch_load(path)


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
