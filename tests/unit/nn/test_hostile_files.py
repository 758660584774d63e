"""Files that were made to do harm: they run nothing, change nothing, and take what is their due."""

from __future__ import annotations

import bz2
import contextlib
import copy
import gzip
import io
import lzma
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fuzz.files import FUZZER, READERS
from tests.unit.nn.test_gguf import entry, file_of, text
from tinycore import Tensor
from tinycore.errors import FileFormatError, UnknownNameError
from tinycore.nn.files import Opaque
from tinycore.nn.files.source import ALLOWANCES, MIB
from tinycore.nn.state import gguf_load, torch_load, zip_extract

MOST_SECONDS = 20
MOST_GROWTH = 300 * MIB
"""Memory that the load of a file of a megabyte may take here, beside that of the process."""


def archive(pickled: bytes, **records: bytes) -> bytes:
    """A file of torch.save with a pickle written by hand."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a/data.pkl", pickled)
        for name, content in records.items():
            made.writestr(f"a/data/{name}", content)
    return file.getvalue()


def loaded(pickled: bytes) -> Any:
    return torch_load(Tensor(archive(pickled)))


POISON = {
    "names": b"\x80\x02ctorch\nfloat32\n}X\x05\0\0\0dtypeK\1sb0K\1.",
    "classes": b"\x80\x02ctorch\nFloatStorage\n}X\x05\0\0\0dtypectorch\nint32\nsb0K\1.",
    "functions": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x08\0\0\0__code__K\1sb0K\1.",
    "slots": b"\x80\x02ccollections\nOrderedDict\nN}X\x06\0\0\0__new__K\1s\x86b0K\1.",
}
"""Pickles that set the state of what every load shares, and then are 1."""


@pytest.mark.parametrize("name", POISON)
def test_a_file_changes_nothing_for_the_next(tmp_path: Path, name: str) -> None:
    good = {"x": torch.arange(3.0), "n": torch.arange(2), "s": torch.Size([2])}
    torch.save(good, tmp_path / "good.pt")
    before = torch_load(tmp_path / "good.pt")

    with contextlib.suppress(FileFormatError):
        loaded(POISON[name])
    after = torch_load(tmp_path / "good.pt")

    assert after["x"].tolist() == before["x"].tolist() == [0.0, 1.0, 2.0]
    assert after["x"].dtype is before["x"].dtype
    assert (after["n"].tolist(), after["s"]) == ([0, 1], (2,))


def test_what_a_pickle_is_given_has_no_dict() -> None:
    found = loaded(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R}X\x01\0\0\0aK\1sb.")

    assert isinstance(found, Opaque)
    assert (repr(found), found.arguments) == ("<os.system, not loaded>", ("ls",))
    assert found.state == {"a": 1}
    assert not hasattr(found, "__dict__")
    with pytest.raises(UnknownNameError, match=r"os\.system is not loaded, as that could run any"):
        found.a  # noqa: B018  the access is what is tested
    assert copy.copy(found).name == pickle.loads(pickle.dumps(found)).name == "os.system"


def doubled(times: int, unit: bytes, step: bytes) -> bytes:
    """A pickle that applies a step to a unit again and again."""
    return b"\x80\x02" + unit + step * times + b"."


def device_of_devices(size: int) -> bytes:
    return doubled(size // 30, b"X\1\0\0\0aq\0", b"ctorch\ndevice\nh\0h\0\x86Rq\x000")


def sizes_again(size: int) -> bytes:
    items = b"(" + b"K\1" * (size // 4) + b"tq\0"
    return b"\x80\x02" + items + b"ctorch\nSize\nq\1]q\2(" + b"h\1h\0\x85R" * (size // 14) + b"e."


def sets_again(size: int) -> bytes:
    items = b"](" + b"".join(b"J" + struct.pack("<i", n) for n in range(size // 10)) + b"eq\0"
    return b"\x80\x02" + items + b"c__builtin__\nset\nq\1](" + b"h\1h\0\x85R" * (size // 14) + b"e."


def colliding_keys(size: int) -> bytes:
    modulus = 2**61 - 1
    keys = [pickle.encode_long(n * modulus) for n in range(1, size // 13)]
    return b"\x80\x02}(" + b"".join(b"\x8a%c%sN" % (len(k), k) for k in keys) + b"u."


def colliding_tuples(size: int) -> bytes:
    """Tuples of complex numbers: hash(complex) is a sum, so that many have one."""
    parts = [(-1000003 * n % (2**61 - 1), n) for n in range(1, size // 60)]
    made = [
        b"h\0G" + struct.pack(">d", float(a >> 20)) + b"G" + struct.pack(">d", float(b)) + b"\x86RN"
        for a, b in parts
    ]
    return b"\x80\x02c__builtin__\ncomplex\nq\0}(" + b"".join(made) + b"u."


def nested_key(size: int) -> bytes:
    """A tuple of a tuple twice, and so on: hashing it visits more than anyone can."""
    return b"\x80\x02}(K\1q\0" + b"h\0h\0\x86q\x00" * 60 + b"Nu."


def many_sets(size: int) -> bytes:
    return b"\x80\x04(" + b"\x8f" * size + b"t."


def many_numbers(size: int) -> bytes:
    """The memo of an unpickler is a table as long as the greatest number."""
    return b"\x80\x02N" + b"r\xff\xff\xff\x7f" * 2 + b"p99999999999999999999\n."


def text_paths(size: int) -> bytes:
    parts = b"(" + b"X\xa0\x0f\0\0" + b"a" * 4000 + b"2" * 1000 + b"tq\0"
    return b"\x80\x02" + parts + b"](" + b"cpathlib\nPosixPath\nh\0R" * (size // 25) + b"e."


def views_again(size: int) -> bytes:
    """A view of a storage, with another offset each time."""
    storage = b"(X\x07\0\0\0storagectorch\nByteStorage\nX\1\0\0\x000X\3\0\0\0cpuJ"
    head = (
        b"\x80\x02"
        + storage
        + struct.pack("<i", size)
        + b"tQq\0"
        + b"ctorch._utils\n_rebuild_tensor_v2\nq\1]("
    )
    length = b"J" + struct.pack("<i", size - 70_000) + b"\x85"
    views = [
        b"h\1(h\0J" + struct.pack("<i", n) + length + b"K\1\x85\x89Nt" + b"R" for n in range(6000)
    ]
    return head + b"".join(views) + b"e."


PICKLES: list[Callable[[int], bytes]] = [
    device_of_devices, sizes_again, sets_again, colliding_keys, colliding_tuples, nested_key,
    many_sets, many_numbers, text_paths,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("make", PICKLES, ids=lambda make: make.__name__)
def test_a_small_pickle_takes_little(tmp_path: Path, make: Callable[[int], bytes]) -> None:
    (tmp_path / "x.pt").write_bytes(archive(make(MIB)))
    assert bounded(f"nn.state.torch_load({str(tmp_path / 'x.pt')!r})") in ("FileFormatError", "ok")


@pytest.mark.slow
def test_views_of_one_storage_take_little(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(archive(views_again(MIB), **{"0": bytes(MIB)}))
    assert bounded(f"nn.state.torch_load({str(tmp_path / 'x.pt')!r})") == "FileFormatError"


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda content: gzip.compress(content, 9),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKED)
def test_a_packed_tar_takes_little(tmp_path: Path, kind: str) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        info = tarfile.TarInfo("zeros")
        info.size = 120 * MIB
        made.addfile(info, io.BytesIO(bytes(120 * MIB)))
    (tmp_path / "x.tar").write_bytes(PACKED[kind](file.getvalue()))
    assert bounded(f"nn.state.tar_extract({str(tmp_path / 'x.tar')!r})") == "FileFormatError"


@pytest.mark.slow
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_packed_zip_takes_little(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as made:
        made.writestr("zeros", bytes(120 * MIB))
    assert bounded(f"nn.state.zip_extract({str(tmp_path / 'x.zip')!r})") == "FileFormatError"


def test_a_zip_that_understates_its_sizes_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("zeros", bytes(1000))
    content = file.getvalue().replace(struct.pack("<I", 1000), struct.pack("<I", 10))

    with pytest.raises(FileFormatError, match="is not the 10 bytes the directory says"):
        zip_extract(Tensor(content))


@pytest.mark.slow
def test_a_packed_idx_takes_little(tmp_path: Path) -> None:
    size = 120 * MIB
    content = struct.pack(">BBBBI", 0, 0, 8, 1, size) + bytes(size)
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    assert bounded(f"nn.files.read_idx({str(tmp_path / 'x.gz')!r})") == "FileFormatError"


@pytest.mark.slow
def test_small_numbers_of_metadata_take_little(tmp_path: Path) -> None:
    count = MIB
    numbers = entry("k", 9, struct.pack("<IQ", 1, count) + bytes(range(256)) * (count // 256))
    (tmp_path / "x.gguf").write_bytes(file_of({}, numbers, 1))
    assert bounded(f"nn.state.gguf_load({str(tmp_path / 'x.gguf')!r})") == "ok"


def test_many_tensors_of_nothing_are_refused() -> None:
    count = 20_000
    names = [text(f"{n:x}") + struct.pack("<IQIQ", 1, 0, 2, 0) for n in range(count)]
    head = b"GGUF" + struct.pack("<IQQ", 3, count, 0) + b"".join(names)

    with pytest.raises(FileFormatError, match=r"more than the \d+ tensors"):
        gguf_load(Tensor(head + b"\0" * 32))


@pytest.mark.sample(4)
@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_raise_clean_errors(reader: str) -> None:
    first = list(READERS).index(reader)
    for seed in range(first, first + 150 * len(READERS), len(READERS)):
        assert FUZZER.outcome(seed, shrink=False).text == ""


def test_the_budget_is_the_one_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs/security.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w ]+) \| ([\d,]+) \| ([\d/]+) \|$", page, re.MULTILINE)

    told = {name: (int(free.replace(",", "")), float(Fraction(each))) for name, free, each in rows}
    assert told == ALLOWANCES


CODE = """
import resource, sys, time
from tinycore import nn
from tinycore.errors import TinycoreError
import tinycore.nn.state
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
try:
    {call}
    told = "ok"
except TinycoreError as error:
    told = type(error).__name__
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(told, time.process_time() - start, after - before)
"""


def bounded(call: str) -> str:
    """The outcome of a call in a process of its own, which may take so much memory and time."""
    run = subprocess.run(
        [sys.executable, "-c", CODE.format(call=call)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    told, seconds, kilobytes = run.stdout.split()
    assert float(seconds) < MOST_SECONDS
    assert int(kilobytes) * 1024 < MOST_GROWTH
    return told
