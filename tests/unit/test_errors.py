"""The exception family: one root, built-in relatives, the caller's line, and a log that is kept."""

import pickle
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinycore import Tensor, errors
from tinycore.errors import CompileError, TinycoreError

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_is_of_the_family_and_says_when_it_is_raised(cls: type[Exception]) -> None:
    assert issubclass(cls, TinycoreError)
    assert cls is TinycoreError or (cls.__doc__ or "").startswith("Raised when ")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_is_a_runtime_error_as_those_of_torch(cls: type[Exception]) -> None:
    assert issubclass(cls, RuntimeError)


def test_all_lists_every_class() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}

    assert defined == set(errors.__all__)


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("ArgumentError", ValueError),
        ("ArgumentTypeError", TypeError),
        ("ArgumentTypeError", ValueError),
        ("DTypeError", TypeError),
        ("FileFormatError", ValueError),
        ("IndexRangeError", IndexError),
        ("OutOfMemory", MemoryError),
        ("SettingError", ValueError),
        ("ShapeError", ValueError),
        ("UnknownNameError", AttributeError),
        ("UnsupportedError", NotImplementedError),
    ],
)
def test_code_that_expects_the_builtin_still_catches_it(
    name: str, relative: type[Exception]
) -> None:
    assert issubclass(getattr(errors, name), relative)


@pytest.mark.parametrize(
    "name", ["UnknownDevice", "DeviceUnavailable", "CompilerUnavailable", "OutOfMemory"]
)
def test_one_clause_catches_whatever_is_wrong_with_a_device(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.DeviceError)


def test_compile_error_shows_the_first_lines_and_keeps_everything() -> None:
    log = "\n".join(f"line {number}" for number in range(50))

    error = CompileError("clang rejected kernel r_16", log=log, source="int main;")

    shown = str(error).splitlines()
    assert shown[:2] == ["clang rejected kernel r_16", "line 0"]
    assert shown[-1] == "... 30 more lines in `.log`; the program is in `.source`"
    assert (error.log, error.source) == (log, "int main;")


def test_compile_error_without_a_log_is_its_message() -> None:
    assert str(CompileError("no output")) == "no output"


def test_compile_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(CompileError("no", log="why", source="what")))

    assert (error.message, error.log, error.source) == ("no", "why", "what")


# The note that shows the caller's line


def raised(source: str, file: str = "train.py", **names: object) -> errors.TinycoreError:
    """The error of a program, given as text that stands in no file."""
    try:
        exec(compile(source, file, "exec"), {"__name__": "train", "Tensor": Tensor, **names})
    except TinycoreError as error:
        return error
    raise AssertionError("nothing was raised")


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def test_a_note_names_the_line_that_called_and_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "a = Tensor.ones(2, 3)\nb = Tensor.ones(2, 3)\n\ny = a @ b\n"
    (tmp_path / "train.py").write_text(program, "utf-8")
    monkeypatch.chdir(tmp_path)

    error = raised(program, str(tmp_path / "train.py"))

    assert notes(error) == ["at train.py:4: y = a @ b"]
    assert "(2, 3) and (2, 3)" in str(error)
    assert "\nat train.py:4: y = a @ b" in "".join(traceback.format_exception_only(error))


def test_a_note_survives_missing_sources() -> None:
    assert notes(raised("Tensor.ones(2).sum(5)", "<stdin>")) == ["at <stdin>:1"]


def test_a_source_in_an_archive_is_shown_by_its_loader() -> None:
    program = "Tensor.ones(2).sum(5)\n"
    loader = SimpleNamespace(get_source=lambda name: program)

    error = raised(program, "archive.zip/train.py", __loader__=loader)

    assert notes(error) == ["at archive.zip/train.py:1: Tensor.ones(2).sum(5)"]


def test_a_note_survives_a_missing_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert notes(raised("Tensor.ones(2).sum(5)")) == ["at train.py:1"]


def test_the_innermost_line_outside_counts() -> None:
    source = "def layer(x):\n    return x.sum(5)\n\nTensor.ones(2).sequential([layer])"

    assert notes(raised(source)) == ["at train.py:2"]


def test_the_package_of_a_device_is_not_the_caller() -> None:
    device = {"__name__": "tiny_device.compiler", "CompileError": CompileError}
    exec(compile("def fail():\n    raise CompileError('no')", "compiler.py", "exec"), device)
    core = {"__name__": "tinycore.engine.compile", "fail": device["fail"]}
    exec(compile("def run():\n    fail()", "compile.py", "exec"), core)

    assert notes(raised("\n\nrun()", run=core["run"])) == ["at train.py:3"]


def test_somebody_else_raising_our_class_gets_no_note() -> None:
    assert notes(errors.ShapeError("mine")) == []


def test_a_doctest_shows_its_line_itself() -> None:
    assert notes(raised("Tensor.ones(2).sum(5)", "<doctest page.md[0]>")) == []


def test_a_note_crosses_processes() -> None:
    error = raised("Tensor.ones(2).sum(5)")

    assert notes(pickle.loads(pickle.dumps(error))) == notes(error) == ["at train.py:1"]
