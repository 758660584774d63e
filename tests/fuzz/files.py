"""Damaged model files: `python -m tests.fuzz.files`.

A program is a good file with a few edits: bytes that change, integers at their limits, parts that
are cut, doubled, moved, or taken from a file of another format. A reader must end with the content
or with an error of tinycore, in little time and memory. Seeds take the readers in turn.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy
import torch

from tests.fuzz.runner import Fuzzer, Verdict, run
from tinycore import Tensor
from tinycore.errors import TinycoreError
from tinycore.nn import datasets, state
from tinycore.nn.files import read_idx
from tinycore.tensor.aliases import is_realized

MOST_SECONDS: Final = 5.0
MOST_BYTES: Final = 96 << 20
"""Memory of the host that a load may take: the least allowance of all, and a half."""
MOST_EDITS: Final = 6
NUMBERS: Final = (0, 1, 2, 31, 32, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1,
                  2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip

EDITS: Final = ("byte", "byte", "byte", "number", "number", "cut", "double", "move", "other")


FORMATS: Final = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


class Damaged(NamedTuple):
    """The content of a file, for the reader of a format, and the number of edits in it."""

    seed: int
    reader: str
    content: bytes
    edits: tuple[tuple[int, int, bytes], ...]
    """Each replaces the bytes from a position to another one."""


def loaded_idx(path: Path) -> Any:
    """The array in an IDX file, and a tensor of it."""
    return Tensor(read_idx(path))


def loaded_mnist(path: Path) -> Any:
    """A data set whose training images are the file."""
    names = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images", "labels")]
    for name, content in zip(names, mnist_files(), strict=True):
        whole = path.read_bytes() if name == names[0] else content
        dimensions = 3 if name.endswith("images") else 1
        path.with_name(f"{name}-idx{dimensions}-ubyte").write_bytes(whole)
    return datasets.mnist(path=path.parent)


def loaded_cifar(path: Path) -> Any:
    """A data set whose archive is the file."""
    return datasets.cifar(path=path.rename(path.with_name("cifar-10-binary.tar.gz")).parent)


def loaded_folder(path: Path) -> Any:
    """A model of a configuration, an index and a part, which are parts of the file."""
    for name, content in zip(path_names(path), path.read_bytes().split(BORDER), strict=False):
        path.with_name(name).write_bytes(content)
    try:
        return state.folder_load(path.parent)
    except OSError as error:  # of a part that the index names otherwise
        if error.filename is None:
            raise


def path_names(path: Path) -> tuple[str, str, str]:
    """Names of the files in a folder: the weights are those that the file itself begins with."""
    is_torch = b".bin" in path.read_bytes()
    index = "pytorch_model.bin" if is_torch else "model.safetensors"
    return "config.json", f"{index}.index.json", "a.bin" if is_torch else "a.safetensors"


READERS: Final[dict[str, Callable[[Path], Any]]] = {
    "safetensors": state.safe_load,
    "torch": state.torch_load,
    "gguf": state.gguf_load,
    "idx": loaded_idx,
    "tar": state.tar_extract,
    "zip": state.zip_extract,
    "npy": state.numpy_load,
    "folder": loaded_folder,
    "mnist": loaded_mnist,
    "cifar": loaded_cifar,
}
BORDER: Final = b"\n--\n"
"""Between the files of a folder."""


def safetensors_files() -> Iterator[bytes]:
    """Files of the formats as they should be."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "x")
        state.safe_save({"a": Tensor([1.0, 2.0]), "b": Tensor([[1, 2]])}, path, {"key": "value"})
        yield path.read_bytes()
        state.safe_save({"a": Tensor([1.0]).cast("bfloat16"), "": Tensor([True])}, path)
        yield path.read_bytes()


def torch_files() -> Iterator[bytes]:
    """Files of torch, as archives and from before."""
    x = torch.arange(12.0).reshape(3, 4)
    found = {
        "x": x, "row": x[1], "t": x.T, "n": 3, "s": {1, 2}, "b": b"ab",
        "e": torch.ones(1).expand(3),
        "p": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)), "a": numpy.arange(3),
        "f": numpy.float64(2), "size": torch.Size([2, 3]), "device": torch.device("cpu", 0),
    }  # fmt: skip
    for value, archive in product((found, [x, (x, {"k": None})]), (True, False)):
        file = io.BytesIO()
        torch.save(value, file, _use_new_zipfile_serialization=archive)
        yield file.getvalue()
    for protocol in range(6):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("a/data.pkl", pickle.dumps(({1: 2.5}, {3}, "text", b"x", [[]]), protocol))
        yield file.getvalue()


def gguf_files() -> Iterator[bytes]:
    """Metadata of several types, and tensors plain and quantized."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    entries = [
        text(b"name") + struct.pack("<I", 8) + text(b"llama"),
        text(b"words") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc"),
        text(b"small") + struct.pack("<IIQ4b", 9, 1, 4, -1, 0, 1, 2),
        text(b"nested") + struct.pack("<IIQIQI", 9, 9, 1, 4, 1, 5),
        text(b"general.alignment") + struct.pack("<II", 4, 32),
    ]
    tensors = [
        text(b"w") + struct.pack("<IQQIQ", 2, 32, 2, 8, 0),
        text(b"x") + struct.pack("<IQIQ", 1, 4, 0, 96),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    head += b"".join(entries) + b"".join(tensors)
    yield head + bytes(-len(head) % 32) + bytes(112)


def idx_files() -> Iterator[bytes]:
    """Arrays of several types, packed and not."""
    for code, size in ((8, 1), (0x0C, 4), (0x0E, 8)):
        content = struct.pack(">BBBBII", 0, 0, code, 2, 3, 4) + bytes(12 * size)
        yield content
        yield gzip.compress(content)


def tar_files() -> Iterator[bytes]:
    """Archives of three formats, packed and not."""
    packers: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, bz2.compress, lzma.compress]
    for form, pack in product(FORMATS, packers):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as made:
            for name in ("a", "folder/" + "n" * 80, "\u00e9" * 50):
                info = tarfile.TarInfo(name)
                info.size = 700
                made.addfile(info, io.BytesIO(b"x" * 700))
        yield pack(file.getvalue())


def zip_files() -> Iterator[bytes]:
    """Archives by three methods."""
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as made:
            made.writestr("a", b"abc" * 100)
            made.writestr("folder/b", b"")
        yield file.getvalue()


def npy_files() -> Iterator[bytes]:
    """Arrays of several types and orders, and archives of them."""
    arrays = [
        numpy.arange(6.0).reshape(2, 3), numpy.arange(6, dtype=">i2").reshape(2, 3).T,
        numpy.array(True), numpy.zeros((0, 2)), numpy.array([1 + 2j]),
    ]  # fmt: skip
    for array in arrays:
        file = io.BytesIO()
        numpy.save(file, array)
        yield file.getvalue()
    for save in (numpy.savez, numpy.savez_compressed):
        file = io.BytesIO()
        save(file, a=arrays[0], b=arrays[2])
        yield file.getvalue()


def folder_files() -> Iterator[bytes]:
    """Folders of Hugging Face with weights of two kinds."""
    for part, content in (
        ("a.bin", next(torch_files())),
        ("a.safetensors", next(safetensors_files())),
    ):
        names = ("x", "row") if part == "a.bin" else ("a", "b")
        index = {"metadata": {"total_size": 48}, "weight_map": dict.fromkeys(names, part)}
        config = {"model_type": "llama", "hidden_size": 4, "rope_scaling": None, "sizes": [1, 2.5]}
        yield BORDER.join((json.dumps(config).encode(), json.dumps(index).encode(), content))


def mnist_files() -> Iterator[bytes]:
    """Images and labels, for training and for the test."""
    for count in (4, 2):
        yield struct.pack(">BBBBIII", 0, 0, 8, 3, count, 2, 3) + bytes(6 * count)
        yield struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(range(count))


def cifar_files() -> Iterator[bytes]:
    """The archive, of two images in each member."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.USTAR_FORMAT) as made:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = 2 * 3073
            made.addfile(info, io.BytesIO(bytes((7, *[9] * 3072)) * 2))
    yield gzip.decompress(file.getvalue())
    yield file.getvalue()


@cache
def good_files(reader: str) -> tuple[bytes, ...]:
    """Good files for a reader."""
    made: Iterator[bytes] = globals()[f"{reader}_files"]()
    return tuple(made)


def program_of(seed: int) -> Damaged:
    """The damaged file of a seed."""
    drawn = random.Random(seed)
    reader = list(READERS)[seed % len(READERS)]
    content = drawn.choice(good_files(reader))
    count = drawn.randint(0 if drawn.random() < 0.02 else 1, MOST_EDITS)
    return Damaged(seed, reader, content, tuple(edit(drawn, content) for _ in range(count)))


def edit(drawn: random.Random, content: bytes) -> tuple[int, int, bytes]:
    """A change of a file."""
    start = drawn.randrange(len(content))
    stop = min(len(content), start + drawn.choice((1, 1, 2, 4, 8, 50, 500)))
    kind = drawn.choice(EDITS)
    if kind == "byte":
        return start, start + 1, bytes([drawn.randrange(256)])
    if kind == "number":
        width = drawn.choice((1, 2, 4, 8))
        number = drawn.choice(NUMBERS) % (1 << 8 * width)
        return start, start + width, number.to_bytes(width, drawn.choice(("little", "big")))
    if kind == "cut":
        return start, drawn.choice((stop, len(content))), b""
    if kind == "double":
        return start, start, content[start:stop] * drawn.randint(1, 20)
    if kind == "move":
        other = drawn.randrange(len(content))
        return start, stop, content[other : other + stop - start]
    taken = drawn.choice(good_files(drawn.choice(list(READERS))))
    other = drawn.randrange(len(taken))
    return start, stop, taken[other : other + stop - start]


def damaged(program: Damaged) -> bytes:
    """The content with the edits."""
    content = program.content
    for start, stop, new in program.edits:
        content = content[:start] + new + content[stop:]
    return content


def read(found: Any) -> None:
    """Read the numbers of what was loaded, but for those that kernels compute."""
    for each in found.values() if isinstance(found, dict) else ():
        read(each)
    for each in found if isinstance(found, list | tuple) else ():
        read(each)
    if isinstance(found, Tensor) and is_realized(found.uop):
        found.numpy()


def check(program: Damaged) -> Verdict:
    """Load the file, and see what comes of it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "x")
        path.write_bytes(damaged(program))
        tracemalloc.start()
        began = time.process_time()
        try:
            read(READERS[program.reader](path))
        except TinycoreError:
            pass
        except Exception as error:
            return Verdict(type(error).__name__, f"{program.reader}: {error}")
        finally:
            seconds = time.process_time() - began
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    if seconds > MOST_SECONDS:
        return Verdict("time", f"{program.reader}: {seconds:.1f} s")
    return (
        Verdict("memory", f"{program.reader}: {most} bytes") if most > MOST_BYTES else Verdict("")
    )


def smaller(program: Damaged) -> Iterator[Damaged]:
    """The file without one of its edits."""
    for place in range(len(program.edits)):
        yield program._replace(edits=program.edits[:place] + program.edits[place + 1 :])


def shown(program: Damaged, verdict: Verdict) -> str:
    """The edits, with the seed and the error."""
    return f"# seed {program.seed}: {verdict.kind}: {verdict.message}\nedits = {program.edits!r}"


FUZZER: Final = Fuzzer("tests.fuzz.files", __doc__, program_of, check, shown, smaller)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
