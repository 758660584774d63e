"""One setting: its kinds, its value in layers, and the environment behind it.

Floor 0, private to `config`, which holds the table. Imports `errors`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar, overload

from tinycore.errors import SettingError

PREFIX: Final = "TINYCORE_"

OF_ANY_PROGRAM: Final = frozenset({"DEBUG", "TRACE"})
"""Variables that many programs read: a value that we do not know is reported and ignored."""

T = TypeVar("T")

rows: Final[dict[str, Setting[Any]]] = {}
"""Every setting of the core by name, in the order of the table."""
plugin_rows: Final[dict[str, Setting[Any]]] = {}
"""Settings of plugins by name, of those whose tables have been imported."""


class Process(dict[str, Any]):
    """Values for the whole process: those assigned, else the environment, read at first use.

    The first value read from the environment also calls `on_first_read`. Settings of plugins are
    read anew each time: they are asked for seldom, and often set after a message said so.
    """

    on_first_read: Callable[[], None] | None = None

    def __missing__(self, name: str) -> Any:
        if self.on_first_read is not None:
            notify, self.on_first_read = self.on_first_read, None
            notify()
        if name in plugin_rows:
            return plugin_rows[name].from_environment()
        self[name] = value = rows[name].from_environment()
        return value


class Overrides(dict[str, Any]):
    """Values inside a `Context`, its `owner`, and `outer`, those around it; others come from the
    process.
    """

    def __init__(self, values: dict[str, Any], owner: Any, outer: dict[str, Any]) -> None:
        super().__init__(values)
        self.owner, self.outer = owner, outer

    @property
    def inherited(self) -> dict[str, Any]:
        """The values of the contexts around it."""
        return self.outer if isinstance(self.outer, Overrides) else {}

    def __missing__(self, name: str) -> Any:
        return process[name]


process: Final = Process()
current: Final[ContextVar[dict[str, Any]]] = ContextVar("tinycore settings", default=process)

in_force: Final[Callable[[], dict[str, Any]]] = current.get
"""The current value of every setting, by name."""


def reader_of(names: Sequence[str]) -> Callable[[], tuple[Any, ...]]:
    """A function that returns the current values of several settings."""
    pick = itemgetter(*names)
    return lambda: pick(in_force())


class Setting(Generic[T]):
    """One row of the table: a default, the values it takes, and what it does.

    Read from an instance of the table it gives the value (`settings.DEBUG`). The row itself
    (`Settings.DEBUG`) has `.value` and compares like its value, so `if DEBUG >= 2:` works.
    """

    __slots__ = tuple("allowed convert default doc name owner".split())

    def __init__(self, default: T, doc: str, convert: Callable[[object], T], allowed: str) -> None:
        self.name = self.owner = ""
        self.default = default
        self.doc = doc
        self.convert = convert
        self.allowed = allowed

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.owner = name, f"{owner.__module__}.{owner.__qualname__}"
        if not issubclass(owner, PluginSettings):  # which enters its rows itself
            rows[name] = self

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Setting[T] | T:
        return self if instance is None else current.get()[self.name]

    def __set__(self, instance: object, value: object) -> None:
        self.value = value

    @property
    def value(self) -> T:
        """The current value."""
        found: T = current.get()[self.name]
        return found

    @value.setter
    def value(self, value: object) -> None:
        current.get()[self.name] = self.checked(value)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it, the winning one first; a plugin's has one."""
        is_one = self.name.startswith(PREFIX) or self.name in plugin_rows
        return (self.name,) if is_one else (PREFIX + self.name, self.name)

    def checked(self, value: object, variable: str = "") -> T:
        """`value` in the setting's own type. Raises SettingError when it is not allowed."""
        try:
            return self.convert(value)
        except (TypeError, ValueError) as error:
            shown = f"{variable}={value}" if variable else f"{self.name}={value!r}"
            message = f"{shown} is not understood; allowed is {self.allowed}."
            if variable and variable != self.variables[0]:
                message += f" If it belongs to another program, set {self.variables[0]} as well."
            raise SettingError(message) from error

    def from_environment(self) -> T:
        """The value the environment gives, else the default."""
        for variable in self.variables:
            found = environment(variable)
            if found is None:
                continue
            try:
                return self.checked(found, variable)
            except SettingError as error:
                if self.name not in OF_ANY_PROGRAM or variable.startswith(PREFIX):
                    raise
                warnings.warn(f"{error} It is ignored.", stacklevel=2)
        return self.default

    def __repr__(self) -> str:
        return f"{self.name}={self.value!r}"

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)  # type: ignore[call-overload,no-any-return]

    __index__ = __int__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or self.value == other

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > other)

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)


class PluginSettings:
    """The settings of a plugin: a separate table, with a row per attribute of a subclass.

        class ToySettings(PluginSettings):
            TOY_QUEUES = number(2, "Queues that kernels are spread over", 1, 8)

    `ToySettings().TOY_QUEUES` is the value in force: that of the innermost `Context`, else what the
    program assigned, else the environment's. `Backend.settings` names the class, by which
    `tinycore settings` lists the rows. Raises SettingError for a name that another table has.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        for row in cls.table():
            owner = plugin_rows.get(row.name)
            if row.name in rows or (owner is not None and owner.owner != row.owner):
                taken = "tinycore's own" if owner is None else f"that of {owner.owner}"
                raise SettingError(
                    f"{row.owner} states a setting {row.name}, which is {taken}. "
                    "Begin its name with the backend's."
                )
        plugin_rows.update({row.name: row for row in cls.table()})

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(vars(type(self)).get(name), Setting):
            known = ", ".join(row.name for row in self.table())
            raise SettingError(f"no setting of {type(self).__name__} is named {name!r}: {known}")
        object.__setattr__(self, name, value)

    @classmethod
    def table(cls) -> list[Setting[Any]]:
        """The rows, in order."""
        return [row for row in vars(cls).values() if isinstance(row, Setting)]


# The kinds of setting

_OFF: Final = frozenset({"0", "false", "no", "off"})
_ON: Final = frozenset({"1", "true", "yes", "on"})


def switch(default: bool, doc: str) -> Setting[bool]:
    """A switch: on or off."""

    def convert(value: object) -> bool:
        word = str(value).strip().lower()
        if word not in _ON and word not in _OFF:
            raise ValueError(word)
        return word in _ON

    return Setting(default, doc, convert, "0 or 1")


def number(default: int, doc: str, least: int, most: int | None = None) -> Setting[int]:
    """A whole number from `least` to `most`."""

    def convert(value: object) -> int:
        if not isinstance(value, str | int):
            raise TypeError(value)
        result = int(value)
        if result < least or (most is not None and result > most):
            raise ValueError(result)
        return result

    allowed = f"a whole number from {least} " + ("up" if most is None else f"to {most}")
    return Setting(default, doc, convert, allowed)


def text(default: str, doc: str, allowed: str) -> Setting[str]:
    """Free text, validated by its user."""

    def convert(value: object) -> str:
        if not isinstance(value, str | os.PathLike):
            raise TypeError(value)
        return os.fspath(value).strip()

    return Setting(default, doc, convert, allowed)


def choice(default: str, doc: str, choices: dict[str, str]) -> Setting[str]:
    """One of several words, in any case; `choices` maps each spelling to the word meant."""

    def convert(value: object) -> str:
        word = str(getattr(value, "name", value)).strip().lower()  # a dtype stands for its name
        if word not in choices:
            raise ValueError(word)
        return choices[word]

    return Setting(default, doc, convert, "one of " + ", ".join(choices))


def words(
    default: str, doc: str, known: Collection[str] | None = None, detailed: Collection[str] = ()
) -> Setting[tuple[str, ...]]:
    """Words separated by commas: any, or only `known` ones and ones with a dot in them.

    Those of `detailed` may have more behind a colon.
    """

    def is_known(word: str) -> bool:
        return known is None or word in known or "." in word or word.partition(":")[0] in detailed

    def convert(value: object) -> tuple[str, ...]:
        found = _split(value)
        if not all(map(is_known, found)):
            raise ValueError(value)
        return found

    allowed = "words separated by commas" + (f", out of {', '.join(known)}" if known else "")
    return Setting(_split(default), doc, convert, allowed)


def presence(doc: str) -> Setting[bool]:
    """On when the variable is there with any text at all, as https://no-color.org asks."""
    return Setting(False, doc, bool, "any text")


def _split(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(value)
    return tuple(word for word in (str(item).strip() for item in value) if word)


# Names in the environment


def environment(name: str) -> str | None:
    """The text of an environment variable; None when it is absent or blank.

    For what is no setting, such as the device spellings `CPU=1`, whose names come from plugins.
    """
    return os.environ.get(name, "").strip() or None


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name most like `name`, if one is like it at all."""
    from difflib import get_close_matches  # noqa: PLC0415  4 ms that only a mistake should cost

    found = get_close_matches(name.upper(), known, n=1, cutoff=0.75)
    return found[0] if found else None


def one_edit_apart(a: str, b: str) -> bool:
    """True if one letter added, dropped, changed or swapped with the next makes `a` into `b`."""
    if a == b:
        return False
    same = len(os.path.commonprefix((a, b)))  # noqa: RUF071  letters are meant
    a, b = a[same:], b[same:]
    swapped = a[1::-1] + a[2:] == b
    return swapped or a[1:] in (b, b[1:]) or a == b[1:]
