"""The exception family: one root, built-in relatives, and a compile error that keeps its log."""

import pickle

import pytest

from tinycore import errors
from tinycore.errors import CompileError, TinycoreError

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_is_of_the_family_and_says_when_it_is_raised(cls: type[Exception]) -> None:
    assert issubclass(cls, TinycoreError)
    assert cls is TinycoreError or (cls.__doc__ or "").startswith("Raised when ")


def test_all_lists_every_class() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}

    assert defined == set(errors.__all__)


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("ArgumentError", ValueError),
        ("DTypeError", TypeError),
        ("FileFormatError", ValueError),
        ("IndexRangeError", IndexError),
        ("OutOfMemory", MemoryError),
        ("SettingError", ValueError),
        ("ShapeError", ValueError),
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
