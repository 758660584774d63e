"""Exceptions: all that tinycore raises on purpose.

Floor 0. Imports nothing of tinycore.
One family, so `except TinycoreError` catches what a user or a device did wrong and nothing else. A
class that refines a built-in exception also inherits from it: code that expects a `ValueError`, as
from NumPy or torch, keeps working. A message says what happened, with which values, and what to do
about it; a note below it (PEP 678) shows the line of the caller's program that asked for it, so
that nobody searches a long traceback. All are RuntimeErrors, as torch's are. `assert` guards our
own invariants only.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "AliasError",
    "ArgumentError",
    "ArgumentTypeError",
    "CacheError",
    "CompileError",
    "CompilerUnavailable",
    "DTypeError",
    "DeviceError",
    "DeviceUnavailable",
    "FileFormatError",
    "GradientError",
    "GroupError",
    "IndexRangeError",
    "JitError",
    "LaunchTooLarge",
    "OutOfMemory",
    "PluginError",
    "ScheduleError",
    "SettingError",
    "ShapeError",
    "SharingError",
    "TinycoreError",
    "UnknownDevice",
    "UnknownNameError",
    "UnsupportedError",
    "VerifyError",
]


class TinycoreError(RuntimeError):
    """The root of the family, never raised itself. It notes the line that called into tinycore."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        if place := calling_line():
            self.add_note(place)


# What a caller asked for


class ArgumentError(TinycoreError, ValueError):
    """Raised when an argument has a value the function cannot take and no narrower class fits."""


class ArgumentTypeError(ArgumentError, TypeError):
    """Raised when an argument is of a type the function cannot take, as a string for a number."""


class ShapeError(TinycoreError, ValueError):
    """Raised when shapes do not fit together; the message names every operand's shape."""


class DTypeError(TinycoreError, TypeError):
    """Raised when an operation is not defined for a dtype, or dtypes cannot be combined."""


class UnknownNameError(TinycoreError, AttributeError):
    """Raised when something has no attribute of a name; the message says what to use instead."""


class IndexRangeError(TinycoreError, IndexError):
    """Raised when an index or an axis lies outside the bounds, which the message names."""


class GradientError(TinycoreError):
    """Raised when a gradient is requested of a tensor that has none, or of more than one number."""


class AliasError(TinycoreError, ValueError):
    """Raised when a write would not mean one thing: to elements shown twice, or to other bytes."""


class JitError(TinycoreError):
    """Raised when a replay would be wrong: a shape, dtype, device or aliasing changed."""


class SharingError(TinycoreError, BufferError, ValueError):
    """Raised when memory cannot be shared with another library without a copy, or not at all."""


class SettingError(TinycoreError, ValueError):
    """Raised when a setting or its environment variable is unknown, malformed or out of range."""


class FileFormatError(TinycoreError, ValueError):
    """Raised when a file does not follow its format; the message names the file and the place."""


# Devices, plugins and compilers


class DeviceError(TinycoreError):
    """Raised when a device or its driver reports a failure while it is in use."""


class UnknownDevice(DeviceError):
    """Raised when no installed backend has the name; the message lists those that are installed."""


class DeviceUnavailable(DeviceError):
    """Raised when a known device cannot be opened; the message gives the reason and the fix."""


class PluginError(TinycoreError):
    """Raised when a backend breaks the contract: declaration, API version, a name claimed twice."""


class UnsupportedError(DeviceError, NotImplementedError):
    """Raised when a device or a renderer lacks an ability the program needs, such as a dtype."""


class OutOfMemory(DeviceError, MemoryError):
    """Raised when a device cannot allocate memory, even after its cache was released."""


class LaunchTooLarge(UnsupportedError):
    """Raised when a group of a kernel, as it was compiled, has more threads than fit; by a backend.

    `most` is how many do, beside its registers for instance; the kernel is then lowered again for
    groups of that size.
    """

    def __init__(self, message: str, *, most: int) -> None:
        super().__init__(message)
        self.most = most

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(LaunchTooLarge, most=self.most), (str(self),)


class GroupError(DeviceError):
    """Raised when processes of a group do not fit together, or one is gone; names both."""


class CompilerUnavailable(DeviceError):
    """Raised when a renderer's compiler is not installed; the message says how to get it."""


class CompileError(TinycoreError):
    """Raised when a compiler rejects a kernel.

    `log` is what the compiler said and `source` what it was given, both complete; the message holds
    the first lines of the log.
    """

    MESSAGE_LINES = 20

    def __init__(self, message: str, *, log: str = "", source: str = "") -> None:
        super().__init__(message, log, source)
        self.message = message
        self.log = log
        self.source = source

    def __str__(self) -> str:
        lines = self.log.strip().splitlines()
        shown = [self.message, *lines[: self.MESSAGE_LINES]]
        if len(lines) > self.MESSAGE_LINES:
            hidden = len(lines) - self.MESSAGE_LINES
            shown.append(f"... {hidden} more lines in `.log`; the program is in `.source`")
        return "\n".join(shown)

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(CompileError, log=self.log, source=self.source), (self.message,)


# What tinycore finds wrong with its own work or its own files


class VerifyError(TinycoreError):
    """Raised when a graph is illegal for its stage: a fault in a pass, a rule or a plugin."""


class ScheduleError(TinycoreError):
    """Raised when kernels cannot be ordered, as when one would read what it overwrites."""


class CacheError(TinycoreError):
    """Raised when the on-disk cache is misused, as by a malformed key; damage is never raised."""


# Where the caller's program stands

PACKAGE = __name__.partition(".")[0]


def calling_line() -> str | None:
    """`at train.py:14: y = a @ b`, the line outside this package that called into it.

    None when no frame of this package is running (someone else raises one of our classes), and in a
    doctest, which shows that line anyway and would compare the note with what it expects.
    """
    frame = calling_frame()
    if frame is None or frame.f_code.co_filename.startswith("<doctest "):
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line, frame.f_globals).strip()
    return f"at {shortened(file)}:{line}" + (f": {source}" if source else "")


def calling_frame() -> FrameType | None:
    """The innermost frame that called this package; frames of device packages are skipped."""
    frame: FrameType | None = sys._getframe(1)
    inside = False
    while frame is not None:
        ours = package(frame) == PACKAGE
        if inside and not ours:
            return frame
        inside = inside or (ours and frame.f_globals["__name__"] != __name__)
        frame = frame.f_back
    return None


def package(frame: FrameType) -> str:
    """The name of the package that a frame's module lies in."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def shortened(file: str) -> str:
    """A path below the working directory without it; any other name as it is."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # the working directory was removed
        return file
    return file.removeprefix(here)
