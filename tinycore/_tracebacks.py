"""Tracebacks of mistakes: a caller's error ends at the caller's line, as one of a function in C.

Floor 0. Imports `errors` and `_setting`. Frames of this package are taken out of a traceback at the
border to the program, by a bare `raise`, which adds no frame: that costs nothing without an error,
and holds wherever tracebacks are shown. DEBUG=1 keeps all frames, and so does an error that is no
mistake of the caller but a fault of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Final, TypeVar

from tinycore._setting import in_force
from tinycore.errors import (
    PACKAGE,
    CacheError,
    CompileError,
    ScheduleError,
    SettingError,
    TinycoreError,
    VerifyError,
    package,
)

Function = TypeVar("Function", bound=Callable[..., Any])

FAULTS: Final = (CacheError, CompileError, ScheduleError, VerifyError)
"""Errors of this family whose every frame belongs into a report."""
ENTRIES: Final = ("__init__", "__call__", "__setattr__", "step")
"""Methods of layers and optimizers that a program calls."""
DEPENDENCIES: Final = sys.stdlib_module_names | {"numpy"}
"""Packages whose functions this one calls."""


def shown_at_caller(function: Function) -> Function:
    """A public function, whose caller's mistakes are shown without frames of this package."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except Exception as error:
            hide_frames(error)
            raise

    return with_name_of(function, call)


def with_name_of(function: Function, call: Any) -> Function:
    """A wrapper, called like its function by Python's own errors and by profilers."""
    call.__code__ = call.__code__.replace(co_qualname=function.__qualname__)
    return call  # type: ignore[no-any-return]


def show_at_caller(owner: Any, names: Iterable[str]) -> None:
    """Likewise the functions of these names in a module, with its modules and its classes.

    A method is replaced in the class that defines it, so that a program's classes inherit as ever,
    and a function is pickled by the name of the module that shows it.
    """
    for name in names:
        found = vars(owner).get(name)
        if isinstance(found, FunctionType) and "hide_frames" not in found.__code__.co_names:
            setattr(owner, name, shown := shown_at_caller(found))
            if isinstance(owner, ModuleType):
                shown.__module__ = owner.__name__
        elif isinstance(found, type):
            for base in found.__mro__:
                show_at_caller(base, ENTRIES)
        elif isinstance(found, ModuleType):
            show_at_caller(found, found.__all__)


def hide_frames(error: BaseException) -> None:
    """Take frames of this package out of the traceback of a mistake, and of what led to it.

    Followed by `raise` in the outermost frame of this package. Frames of the program stay, as those
    of a function that it gave to a TinyJit.
    """
    if not (isinstance(error, SettingError) or (is_mistake(error) and not in_force()["DEBUG"])):
        return
    cause: BaseException | None = error
    while cause is not None:
        trace = frames_of_others(cause.__traceback__)
        if trace is cause.__traceback__:
            break  # it was caught by the program, and what led to it was, too
        cause.__traceback__ = trace
        cause = cause.__cause__ or cause.__context__


def is_mistake(error: BaseException) -> bool:
    """True if the caller has to mend something: what it passed, a file's name, or its function."""
    if isinstance(error, TinycoreError):
        return not isinstance(error, FAULTS)
    if isinstance(error, OSError) and error.filename is not None:
        return True
    name, inner = [pair for pair in links(error.__traceback__) if pair[0] not in DEPENDENCIES][-1]
    # of the program's function, or of Python, about the arguments of the one below a wrapper
    called = f"{inner.tb_frame.f_code.co_qualname}()"
    return not name.startswith("tiny") or str(error).startswith(called)


def frames_of_others(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without frames of this package and of the libraries that it called."""
    kept: list[TracebackType] = []
    is_inside = False
    for name, link in links(trace):
        is_inside = name == PACKAGE or (is_inside and name in DEPENDENCIES)
        if not is_inside:
            kept.append(link)
    if trace in kept[:1]:
        return trace  # not as far as it was caught by the program
    for outer, inner in zip(kept, [*kept[1:], None], strict=False):
        outer.tb_next = inner
    return kept[0] if kept else None


def links(trace: TracebackType | None) -> Iterator[tuple[str, TracebackType]]:
    """The packages of a traceback's frames, and these, the outermost first."""
    while trace is not None:
        yield package(trace.tb_frame), trace
        trace = trace.tb_next
