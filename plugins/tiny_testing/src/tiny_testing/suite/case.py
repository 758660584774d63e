"""A conformance case: a function that proves one thing of a device, at a level, under claims.

`case` puts a function into `CASES`, from where the command line takes it, and leaves it a
plain function `test_...(subject)` or `test_...(subject, variant)`, which pytest collects from an
author's file. pytest is imported by neither.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tinycore.errors import PluginError

__all__ = [
    "CASES",
    "Case",
    "Level",
    "NoSecondDevice",
    "NotApplicable",
    "Trial",
    "Variant",
    "case",
    "second_device",
    "trials",
]


class Level(enum.IntEnum):
    """Subject of a case; a higher level takes the lower ones for granted."""

    CONTRACT = 0
    MEMORY = 1
    COMPUTE = 2
    ORDER = 3
    EXCHANGE = 4
    MODELS = 5
    PERFORMANCE = 6


LEVELS: Final = {
    Level.CONTRACT: "the declaration, what importing it does, what it says when something is wrong",
    Level.MEMORY: "allocation, copies, views, exhaustion, leaks",
    Level.COMPUTE: "every op on every dtype, reductions, movement, launches, shared memory",
    Level.ORDER: "launches, copies and graphs happen in the order in which they were asked for",
    Level.EXCHANGE: "memory shared with other libraries, copies to other devices",
    Level.MODELS: "gradients, training steps, a transformer",
    Level.PERFORMANCE: "speed; reported, not judged",
}
"""Every level, in words."""


class NotApplicable(Exception):
    """Raised by a case that cannot be tried on this device; what it claims is not proven then."""


class NoSecondDevice(NotApplicable):
    """Raised by a case that needs two devices on a machine with one: nobody's claim is at fault."""


def second_device(count: int) -> None:
    """Raise NoSecondDevice unless a backend counts two devices here."""
    if count < 2:
        raise NoSecondDevice(f"count() says that there is {count} device")


@dataclass(frozen=True)
class Variant:
    """One value that a case is run with; `needs` are the words that it takes for granted."""

    name: str
    value: Any
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Case:
    """A function that proves something, with the values it is run with."""

    name: str
    level: Level
    needs: frozenset[str]
    function: Callable[..., Any]
    variants: tuple[Variant, ...]

    @property
    def meaning(self) -> str:
        """The claim that it proves: the first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True)
class Trial:
    """A case with one of its variants, None where it has none."""

    case: Case
    variant: Variant | None

    @property
    def name(self) -> str:
        """The name as pytest writes it: `test_operation[ADD-int32]`."""
        return self.case.name + (f"[{self.variant.name}]" if self.variant else "")

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities and promises that it proves, where they are claimed."""
        return self.case.needs | (self.variant.needs if self.variant else frozenset())

    def run(self, subject: object) -> Any:
        """Run the case; raises if the device breaks a promise."""
        arguments = (subject,) if self.variant is None else (subject, self.variant.value)
        return self.case.function(*arguments)


CASES: Final[dict[str, Case]] = {}
"""Every case by name, in the order in which they are run."""

Function = Callable[..., Any]


def case(level: Level, *needs: str, over: Iterable[Variant] = ()) -> Callable[[Function], Function]:
    """Make a function a case of the suite; `over` are the values it is run with, one by one.

    Raises PluginError when there is a case of that name.
    """

    def enter(function: Function) -> Function:
        name = function.__name__
        if name in CASES:
            raise PluginError(f"there are two conformance cases named {name}")
        found = Case(name, level, frozenset(needs), function, tuple(over))
        CASES[name] = found
        vars(function)["conformance"] = found
        return function

    return enter


def trials(
    highest: int = Level.MODELS, named: str = "", only: Iterable[Case] | None = None
) -> list[Trial]:
    """The trials of the levels up to `highest`, in order; `named`: those whose name contains it."""
    chosen = CASES.values() if only is None else only
    found = [
        Trial(item, variant)
        for item in sorted(chosen, key=lambda item: item.level)
        if item.level <= highest
        for variant in item.variants or (None,)
    ]
    return [trial for trial in found if named in trial.name]
