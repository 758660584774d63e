"""Names that programs import from tinycore.helpers."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tempfile
from http.client import HTTPResponse
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinycore import helpers
from tinycore.config import Context
from tinycore.errors import ArgumentError, SettingError
from tinycore.helpers import (
    Timing,
    argsort,
    ceildiv,
    dedup,
    fetch,
    flatten,
    getenv,
    prod,
    round_up,
)


def test_every_public_name_is_there() -> None:
    assert all(getattr(helpers, name) is not None for name in helpers.__all__)


def test_progress_bars_and_networks_are_imported_only_when_asked_for() -> None:
    program = (
        "import sys, tinycore.helpers as h; print(not {'tqdm', 'ssl'}.isdisjoint(sys.modules));"
        "from tinycore.helpers import trange, tqdm; print(list(trange(2, disable=True)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout == "False\n[0, 1]\n", done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'tinycore\.helpers' has no attribute 'trnge'"):
        helpers.trnge  # noqa: B018


def test_a_profile_says_where_time_went(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with helpers.Profiling(sort="time", frac=1.0, fn=tmp_path / "profile"):
        sorted([3, 1])
    with helpers.Profiling(enabled=False):
        list(range(3))

    assert "built-in method builtins.sorted" in (said := capsys.readouterr().out)
    assert said.count("function calls") == 1
    assert (tmp_path / "profile").stat().st_size > 0


def test_a_profile_is_begun_again(capsys: pytest.CaptureFixture[str]) -> None:
    profiling = helpers.Profiling()

    @profiling
    def square(x: int) -> int:
        return x * x

    for _ in range(2):
        with profiling:
            pass

    assert square(square(3)) == 81
    assert capsys.readouterr().out.count("function calls") == 4


def test_a_marker_is_a_line_between_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    helpers.profile_marker("quiet")
    with Context(DEBUG=2):
        helpers.profile_marker("decode")

    assert capsys.readouterr().err == "run      -- decode\n"


def test_a_program_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELPERS_STEPS", "7")
    rows: dict[str, object] = {}
    monkeypatch.setattr("tinycore._setting.plugin_rows", rows)
    monkeypatch.setattr("tinycore.config.plugin_rows", rows)
    steps = helpers.ContextVar("HELPERS_STEPS", 1)

    with Context(HELPERS_STEPS=-2):
        assert steps.value == -2
    assert (steps.value, steps >= 7, bool(steps)) == (7, True, True)
    assert helpers.ContextVar("HELPERS_STEPS", 1) is steps
    assert helpers.ContextVar("DEBUG", 0) is helpers.DEBUG
    assert helpers.ContextVar("HELPERS_NAME", "none").value == "none"
    with pytest.raises(SettingError, match=r"HELPERS_RATE is an int or a string, not 0\.5"):
        helpers.ContextVar("HELPERS_RATE", 0.5)


def test_argfix_unpacks_a_shape_given_as_one() -> None:
    assert helpers.argfix(2, 3) == helpers.argfix((2, 3)) == helpers.argfix([2, 3]) == (2, 3)
    assert helpers.argfix(2) == (2,)
    assert helpers.argfix() == ()


def test_getenv_has_the_type_of_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "70")
    monkeypatch.setenv("RATE", "1e-3")
    monkeypatch.setenv("FAST", "0")
    monkeypatch.setenv("MODEL", "small")
    monkeypatch.setenv("BLANK", "")

    assert getenv("STEPS", 10) == 70
    assert getenv("RATE", 0.1) == 0.001
    assert getenv("FAST", True) is False
    assert getenv("MODEL", "large") == "small"
    assert getenv("BLANK", 3) == 3
    assert getenv("STEPS_ABSENT") == 0


def test_getenv_names_a_malformed_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "many")

    with pytest.raises(SettingError, match="STEPS=many is not understood; allowed is any int"):
        getenv("STEPS", 10)


def test_timing_prints_a_line_and_keeps_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Timing("load: ", on_exit=lambda nanoseconds: f", {nanoseconds > 0}") as timing:
        pass
    with Timing(enabled=False):
        pass

    printed = capsys.readouterr().out
    assert printed.startswith("load: ")
    assert printed.endswith(" ms, True\n")
    assert timing.seconds > 0


def test_small_functions() -> None:
    assert dedup([3, 1, 3, 2, 1]) == [3, 1, 2]
    assert flatten([[1], [], [2, 3]]) == [1, 2, 3]
    assert argsort((2, 0, 1)) == [1, 2, 0]
    assert (ceildiv(7, 2), ceildiv(-7, 2), round_up(7, 4), prod(())) == (4, -3, 8, 1)


def test_fetch_downloads_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.gz"
    source.write_bytes(gzip.compress(b"content", mtime=0))
    asked = []

    def answer(request: object, timeout: float) -> object:
        asked.append(request)
        return source.open("rb")

    monkeypatch.setattr("urllib.request.urlopen", answer)
    with Context(CACHE_DIR=tmp_path / "cache"):
        first = fetch("https://example.org/data.gz", gunzip=True)
        second = fetch("https://example.org/data.gz", gunzip=True)
        packed = fetch("https://example.org/data.gz", name="data.gz", subdir="set")

    assert first == second
    assert first.read_bytes() == b"content"
    assert packed == tmp_path / "cache/downloads/set/data.gz"
    assert len(asked) == 2


def test_fetch_leaves_nothing_of_a_failed_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: object, timeout: float) -> object:
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    with Context(CACHE_DIR=tmp_path), pytest.raises(OSError, match="no route"):
        fetch("https://example.org/data.gz")

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def served(monkeypatch: pytest.MonkeyPatch, head: bytes, body: bytes) -> None:
    """Let a server answer so, whatever is asked."""

    class Wire(io.BytesIO):
        def makefile(self, *arguments: object) -> io.BytesIO:
            return self

    def answer(request: object, timeout: float) -> HTTPResponse:
        found = HTTPResponse(Wire(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body))  # type: ignore[arg-type]
        found.begin()
        return found

    monkeypatch.setattr("urllib.request.urlopen", answer)


@pytest.mark.parametrize(
    ("head", "body", "gunzip"),
    [
        (b"Content-Length: 1000000", b"x" * 100, False),
        (b"Transfer-Encoding: chunked", b"64\r\nxxxx", False),
        (b"Content-Length: 20", gzip.compress(b"content" * 100, mtime=0)[:20], True),
        (b"Content-Length: 4", b"text", True),
    ],
)
def test_fetch_keeps_no_truncated_download(
    head: bytes, body: bytes, gunzip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(monkeypatch, head, body)

    with Context(CACHE_DIR=tmp_path), pytest.raises(OSError, match=r"fetch|gzip"):
        fetch("https://example.org/data", gunzip=gunzip)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_fetch_unpacks_a_gzip_file_to_its_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(monkeypatch, b"Connection: close", gzip.compress(bytes(80 << 20)))

    with Context(CACHE_DIR=tmp_path), pytest.raises(OSError, match="unpack to more than"):
        fetch("https://example.org/data", gunzip=True)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_fetch_compares_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, b"Content-Length: 4", b"text")
    digest = hashlib.sha256(b"text").hexdigest()

    with Context(CACHE_DIR=tmp_path):
        path = fetch("https://example.org/data", sha256=digest)
        path.write_bytes(b"more")  # damaged on disk: fetched again
        assert fetch("https://example.org/data", sha256=digest).read_bytes() == b"text"
        with pytest.raises(OSError, match="has the SHA-256 digest"):
            fetch("https://example.org/other", sha256="0" * 64)


@pytest.mark.parametrize("head", [b"Content-Length: 200", b"Connection: close"])
@pytest.mark.parametrize("gunzip", [False, True])
def test_fetch_downloads_no_more_than_it_may(
    head: bytes, gunzip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = gzip.compress(bytes(range(150)), mtime=0).ljust(200, b"\0")
    served(monkeypatch, head, content)

    with Context(CACHE_DIR=tmp_path):
        with pytest.raises(OSError, match="has more than 199 bytes; make room, or give max_bytes"):
            fetch("https://example.org/data", gunzip=gunzip, max_bytes=199)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        fetch("https://example.org/data", gunzip=gunzip, max_bytes=200)


def test_fetch_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, b"Content-Length: 91", bytes(91))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))

    with Context(CACHE_DIR=tmp_path), pytest.raises(OSError, match="more than 90 bytes"):
        fetch("https://example.org/data")


@pytest.mark.parametrize("url", ["example.org/data", "data.npz", "", "http://[::1/data"])
def test_fetch_says_what_is_no_url(url: str, tmp_path: Path) -> None:
    lowest = os.dup(0)  # no file may stay open
    os.close(lowest)
    with Context(CACHE_DIR=tmp_path), pytest.raises(ArgumentError, match=r"fetch: '.*' is no URL"):
        fetch(url)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    now = os.dup(0)
    os.close(now)
    assert now == lowest


@pytest.mark.parametrize(
    ("name", "subdir"), [("../../x", None), ("/etc/x", None), ("x", "../.."), ("..", None)]
)
def test_fetch_stays_in_its_folder(name: str, subdir: str | None, tmp_path: Path) -> None:
    with Context(CACHE_DIR=tmp_path / "cache"), pytest.raises(ArgumentError, match="leads out of"):
        fetch("https://example.org/data", name=name, subdir=subdir)


def test_fetch_writes_where_an_absolute_path_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(monkeypatch, b"Content-Length: 4", b"text")

    assert fetch("https://example.org/data", name=tmp_path / "x").read_text() == "text"


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
def test_fetch_uses_no_folder_that_others_write_to(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads").chmod(0o777)
    (tmp_path / "downloads/data").write_text("planted")

    with Context(CACHE_DIR=tmp_path), pytest.raises(PermissionError, match="every user may write"):
        fetch("https://example.org/data", name="data")


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
def test_fetch_uses_no_folder_inside_that_others_write_to(tmp_path: Path) -> None:
    (tmp_path / "downloads/set").mkdir(parents=True)
    (tmp_path / "downloads/set").chmod(0o777)
    (tmp_path / "downloads/set/data").write_text("planted")

    with Context(CACHE_DIR=tmp_path), pytest.raises(PermissionError, match="every user may write"):
        fetch("https://example.org/data", name="data", subdir="set")


def test_fetch_uses_a_local_file_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "a file%20"
    path.write_text("here")
    digest = hashlib.sha256(b"here").hexdigest()

    for url in (str(path), path.as_uri()):
        assert fetch(url) == fetch(url, sha256=digest.upper()) == path
        with pytest.raises(OSError, match="has the SHA-256 digest"):
            fetch(url, sha256="0" * 64)


def test_small_helpers_of_the_peer() -> None:
    assert [helpers.all_same(x) for x in ([2, 2.0], [], [1, 2])] == [True, True, False]
    assert helpers.partition(range(5), lambda n: n % 2) == ([1, 3], [0, 2, 4])
    assert helpers.get_child({"a": [SimpleNamespace(b={"0": 7})]}, "a.0.b.0") == 7
    assert helpers.flat_mv(memoryview(bytearray(6)).cast("B", (2, 3))).shape == (6,)
    assert helpers.temp("x") == str(Path(tempfile.gettempdir()) / "x")
    assert helpers.temp("x", append_user=True).startswith(helpers.temp("x."))
