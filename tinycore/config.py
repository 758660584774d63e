"""Settings: one table, read from environment variables once, changed for a while by `Context`.

Floor 0. Imports `errors`, and `_setting`, which says what one row is.
`Settings` is the table; nothing else in tinycore reads a setting from the environment. Every
setting is also understood with the prefix TINYCORE_ (TINYCORE_DEBUG=2), which wins, so that
another program's DEBUG need not disturb us. A value is looked up in three layers: the innermost
`Context` of this thread or task, what the program assigned (`settings.DEBUG = 2`), the environment.
A plugin states its own by `PluginSettings`. See docs/floors/foundation.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ContextDecorator
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from tinycore._processors import usable_processors
from tinycore._setting import (
    PREFIX,
    Overrides,
    PluginSettings,
    Setting,
    choice,
    current,
    environment,
    in_force,
    nearest,
    number,
    one_edit_apart,
    plugin_rows,
    presence,
    process,
    reader_of,
    rows,
    switch,
    text,
    words,
)
from tinycore._tracebacks import shown_at_caller
from tinycore.errors import SettingError

watchers: Final[dict[str, Callable[[Any, bool], None]]] = {}
"""By a setting, what is told when a Context gives it a value, and when such a Context ends."""
NONE_ASSIGNED: Final[Mapping[str, Any]] = MappingProxyType({})
Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "CHANNELS",
    "Context",
    "PluginSettings",
    "Setting",
    "Settings",
    "choice",
    "cpu_count",
    "environment",
    "in_force",
    "misspelt_variables",
    "number",
    "presence",
    "process",
    "reader_of",
    "row",
    "settings",
    "settings_table",
    "switch",
    "text",
    "words",
]

CHANNELS: Final[dict[str, tuple[int, str]]] = {
    "device": (1, "which device was chosen, and why not the others"),
    "layout": (1, "the memory that a new schedule's intermediate results take, and the least"),
    "run": (2, "one line per kernel run: device, name, time, GFLOP/s, GB/s"),
    "schedule": (3, "why values are stored and kernels not fused; kernels in order, with buffers"),
    "plan": (3, "the tiling chosen for each kernel"),
    "beam": (3, "what BEAM searched, found and lost for each kernel"),
    "source": (4, "each kernel's source"),
    "kernel": (5, "each kernel's UOps before lowering"),
    "passes": (
        0,
        "the graph after each pass of scheduling and lowering; passes:NAME those so called",
    ),
    "linear": (6, "each kernel's UOps in the order in which they are rendered"),
    "binary": (7, "each kernel's machine code as text, where the compiler can show it"),
    "rewrite": (0, "every rewrite rule that fires, by name"),
    "memory": (0, "what is allocated on a device and given back to it"),
    "cache": (0, "hits, misses and damage in the on-disk cache"),
    "jit": (0, "what a TinyJit captured, and what it replays"),
}
"""Trace channels: the DEBUG level that turns each on (0: only TRACE=name does), what it prints."""

_FLOATS: Final = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16"} | {
    "float32": "float32", "float": "float32", "float64": "float64", "double": "float64",
}  # fmt: skip
_INTS: Final = {"int8": "int8", "char": "int8", "int16": "int16", "short": "int16"} | {
    "int32": "int32", "int": "int32", "int64": "int64", "long": "int64",
}  # fmt: skip


class Settings:
    """The table of settings. `settings` is its one instance."""

    __slots__ = ()

    # what is shown
    DEBUG = number(
        0, "How much to print: 1 devices, 2 runs, 3 plans, 4 source, 5 and 6 UOps, 7 binary", 0, 7
    )
    TRACE = words(
        "", "Trace channels to print by name, whatever DEBUG is", CHANNELS, detailed=("passes",)
    )
    VIZ = number(0, "Record a profile of the program (tinycore[viz]): 2 shows it at its end", 0, 2)
    NO_COLOR = presence("Print no colors, even in a terminal")

    # which device, and which plugins are considered
    DEV = text(
        "", "The device to use; empty chooses the best that is ready",
        "[INTERFACE+]DEVICE[:RENDERER[:ARCH]]",
    )  # fmt: skip
    CPU_COUNT = number(
        0, "Threads a kernel may use on a CPU; 0 takes all this process may", 0, 4096
    )
    WAIT_TIMEOUT_MS = number(
        30000, "Milliseconds without progress after which a wait for a device with queues fails", 1
    )
    LRU = switch(True, "Keep freed device memory for the next allocation of the same size")
    NULL_ALLOW_COPYOUT = switch(False, "Let memory of the device NULL be read, as zeros")
    TINYCORE_PLUGINS = words("auto", "Backends to consider: auto, none, or their names")
    TINYCORE_PLUGINS_DENY = words("", "Backends to leave out")
    TINYCORE_STRICT = switch(False, "Raise for any broken plugin instead of going on without it")

    # what is computed, and how
    DEFAULT_FLOAT = choice("float32", "The dtype of Python floats and of random tensors", _FLOATS)
    DEFAULT_INT = choice("int32", "The dtype of Python integers", _INTS)
    TRAINING = switch(False, "Layers and optimizers work as in training: dropout, batch statistics")
    JIT = number(1, "TinyJit: 0 runs as written, 1 replays, 2 replays kernel by kernel", 0, 2)
    IMAGE = number(
        0, "Keep operands of products and convolutions in images where their elements are used "
        "often enough: 1 as they are, 2 in halves; devices without images do as with 0", 0, 2,
    )  # fmt: skip
    RING = number(
        1, "How partial results on several devices are added: 0 each sends all, 1 in shards that "
        "are gathered then where that pays, 2 always", 0, 2,
    )  # fmt: skip
    ALLOW_TF32 = switch(
        False, "Let matrix units round the float32 operands of products to 10 bits of mantissa"
    )
    FLUSH_SUBNORMALS = switch(
        True, "Let kernels of a CPU take subnormal numbers for 0 and make none: some compute with "
        "them a hundred times slower",
    )  # fmt: skip
    NOOPT = switch(False, "Lower kernels to plain loops, without tiling, vectors or threads")
    BEAM = number(
        0, "Measure plans and keep the best n at each step of the search; 0 takes the "
        "cheapest proposal", 0, 64,
    )  # fmt: skip
    BEAM_SECONDS = number(30, "Seconds that BEAM may search for one kernel's plan; 0: no limit", 0)
    TUNED = switch(False, "Where BEAM=0, use plans that earlier searches kept, and search nothing")
    PARALLEL = number(0, "Kernels compiled at the same time; 0 takes as many as processors", 0, 256)
    VERIFY = switch(False, "Check every graph against its stage's rules at every stage boundary")

    # files
    DATA_DIR = text("", "Folder of data sets; empty takes the user's cache folder", "a folder")

    # the on-disk cache
    CCACHE = switch(True, "Use the on-disk cache, which keeps compiled kernels between runs")
    CACHE_DIR = text("", "Folder of the on-disk cache; empty takes the user's own", "a folder")
    CACHE_SIZE = number(1024, "MiB the on-disk cache may take; what is unused longest goes", 1)

    @shown_at_caller
    def __setattr__(self, name: str, value: object) -> None:
        row(name)  # an unknown name is told with the nearest known one
        object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Setting[Any]]:
        return iter(rows.values())


settings: Final = Settings()
"""Settings as attributes: `settings.DEBUG`. Assigning changes the innermost Context, or, outside
one, the whole process."""


def decorated(
    context: AbstractContextManager[None], func: Function, plain: Callable[[Function], Function]
) -> Function:
    """A function that runs in a context, `plain` where it is no coroutine.

    Raises SettingError for a generator: between its steps its caller would run in the context.
    """
    if isgeneratorfunction(func) or isasyncgenfunction(func):
        raise SettingError(
            f"{getattr(func, '__qualname__', func)} is a generator, whose caller would have these "
            "settings between two of its values. Put `with Context(...)` around what it computes"
        )
    if not iscoroutinefunction(func):
        return plain(func)

    @wraps(func)
    async def run(*args: Any, **kwargs: Any) -> Any:
        with context:
            return await func(*args, **kwargs)

    return cast(Function, run)


class Context(ContextDecorator):
    """Settings that hold for a `with` block or a decorated function, in this thread or task only.

        with Context(DEBUG=2, NOOPT=1): ...

        @Context(JIT=0)
        def step(): ...

    Raises SettingError when it is made, for an unknown name or a value that is not allowed.
    """

    @shown_at_caller
    def __init__(self, **overrides: object) -> None:
        self._overrides = {name: row(name).checked(value) for name, value in overrides.items()}

    def __enter__(self) -> None:
        self._tell(True)  # first: if that fails, nothing of this holds
        current.set(self._inside(current.get()))

    def __exit__(self, *exception: object) -> None:
        layer, inner = current.get(), list[Overrides]()
        while isinstance(layer, Overrides) and layer.owner is not self:
            inner.append(layer)
            layer = layer.outer
        if isinstance(layer, Overrides):  # else left elsewhere, as an asynchronous generator is
            left = layer.outer
            for above in reversed(inner):  # entered later and not left yet, as in a generator
                assigned = [n for n, v in above.items() if above.inherited.get(n, above) is not v]
                left = above.owner._inside(left, {name: above[name] for name in assigned})
            current.set(left)
        self._tell(False)

    def _tell(self, is_entered: bool) -> None:
        for name in watchers.keys() & self._overrides.keys():
            watchers[name](self._overrides[name], is_entered)

    def _inside(
        self, outer: dict[str, Any], assigned: Mapping[str, Any] = NONE_ASSIGNED
    ) -> Overrides:
        """The values inside, and those that were assigned there."""
        inherited = outer if isinstance(outer, Overrides) else {}
        return Overrides({**inherited, **self._overrides, **assigned}, self, outer)

    def __call__(self, func: Function) -> Function:
        """The function with these settings. Raises SettingError for a generator."""
        return decorated(self, func, super().__call__)


def row(name: str) -> Setting[Any]:
    """The setting with this name. Raises SettingError naming the nearest one."""
    known = {**plugin_rows, **rows}
    if name in known:
        return known[name]
    near = nearest(name, known)
    hint = f"Did you mean {near}?" if near else "`tinycore settings` lists them."
    if name in OF_TINYGRAD:
        hint = f"Here it is {OF_TINYGRAD[name]}."
    raise SettingError(f"no setting is named {name!r}. {hint}")


def settings_table(table: Iterable[Setting[Any]] = settings) -> str:
    """Settings with their values, where these came from, and what each does."""
    lines = []
    for entry in table:
        try:
            value = entry.value
            shown = ",".join(value) if isinstance(value, tuple) else str(value)
            lines.append(f"{entry.name}={shown}  [{_origin(entry)}]")
        except SettingError as error:
            lines.append(str(error))
        lines.append(f"    {entry.doc}. Allowed: {entry.allowed}.")
    return "\n".join(lines)


def _origin(entry: Setting[Any]) -> str:
    for variable in entry.variables:
        if environment(variable) is not None:
            if entry.value == entry.from_environment():
                return f"from {variable}"
            break
    return "default" if entry.value == entry.default else "set by the program"


def cpu_count() -> int:
    """Number of threads worth starting: CPU_COUNT, else the processors this process may use."""
    return settings.CPU_COUNT or usable_processors()


_SHORT: Final = 5
"""Names with fewer letters are one edit from anything, so no guess is made: DEV, LRU, JIT."""
_OF_OTHERS: Final = frozenset({"CCACHE_DIR"})
"""Variables of other programs that happen to be one edit from ours."""


OF_TINYGRAD: Final = {
    "CACHEDB": "CACHE_DIR",
    "CACHELEVEL": "CCACHE=0 for no cache",
    "FUSE_OPTIM": "the argument fused=True of an optimizer",
    "IGNORE_BEAM_CACHE": "another CACHE_DIR",
    "JITBEAM": "BEAM",
    "PROFILE": "VIZ",
    "SPEC": "VERIFY=1",
    **dict.fromkeys(
        "ALL2ALL DISABLE_FAST_IDIV JIT_BATCH_SIZE NOLOCALS NO_MEMORY_PLANNER PCONTIG "
        "SPLIT_REDUCEOP TUPLE_ORDER USE_ATOMICS WINO".split(),
        "nothing: plans are chosen by what they cost",
    ),
    **dict.fromkeys(
        "TC TC_OPT TC_SELECT".split(),
        "nothing: matrix units are used where they pay; ALLOW_TF32=1 lets float32 use them",
    ),
}
"""Settings of tinygrad, and what has their effect here."""
_OF_MANY_PROGRAMS: Final = frozenset({"PROFILE", "SPEC", "TC"})
"""Variables of tinygrad that other programs read, too: NAME=1 alone is told."""


def misspelt_variables() -> dict[str, str]:
    """Environment variables that look like a setting but are none: name -> the nearest or ""."""
    entries = (*rows.values(), *plugin_rows.values())
    known = {variable for entry in entries for variable in entry.variables}
    found = {}
    for name in sorted(set(os.environ) - known - _OF_OTHERS):
        if name.startswith(PREFIX):
            found[name] = nearest(name, known) or ""
        elif len(name) >= _SHORT:
            near = [real for real in known if one_edit_apart(name, real)]
            found |= {name: near[0]} if near else {}
    return found


def misspellings() -> list[str]:
    """A line for each environment variable that looks like a setting but is none."""
    return [
        f"tinycore knows no environment variable {name}; "
        + (f"did you mean {near}?" if near else "`tinycore settings` lists the known ones")
        for name, near in misspelt_variables().items()
    ]


def _warn_about_misspelt_variables() -> None:
    for message in misspellings():
        warnings.warn(message, stacklevel=2)
    for name in sorted(OF_TINYGRAD):
        value = environment(name) or "0"
        if value == "1" if name in _OF_MANY_PROGRAMS else value != "0":
            message = f"tinycore knows no environment variable {name}; here it is"
            warnings.warn(f"{message} {OF_TINYGRAD[name]}", stacklevel=2)


process.on_first_read = _warn_about_misspelt_variables
