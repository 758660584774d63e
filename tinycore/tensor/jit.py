"""`TinyJit`: run a function twice, then only replay what it launched.

Floor 5. The first call runs the function as it is, the second notes every launch, later ones replay
them on their own inputs. Calls that differ in more than the content of tensors and the numbers of
Variables have captures of their own. What a replay could not do right is refused.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from tinycore.config import settings
from tinycore.engine.jit import CapturedStep, capture, is_capturing, trace
from tinycore.errors import JitError
from tinycore.tensor.arguments import Arguments, differences
from tinycore.tensor.captured import Capture, Run, realized
from tinycore.tensor.held import holdings
from tinycore.tensor.keys import Surroundings
from tinycore.tensor.standins import finish_writes

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

MOST_CAPTURES: Final = 64
"""Ways to call one function that are kept apart; more are refused."""
MOST_RESTARTS: Final = 8
"""How often a capture may be given up as its tensors were replaced."""

Key = tuple[Any, Any]


class TinyJit(Generic[Parameters, Result]):
    """A function that is captured at its second call and replayed from the third on.

    Use it as a decorator on functions and methods (each object then has captures of its own). The
    function must return tensors, or containers of them, or None, and do all its work in tensors.
    Calls with other shapes, dtypes, devices or Python values have captures of their own; the
    numbers of Variables are given to each replay. `JIT=0` turns it off. With `prune`, replays leave
    out launches that no argument has to do with: memory that the function only reads is then taken
    never to change. Raises JitError where a replay would not do what the function does.

    >>> from tinycore import TinyJit
    >>> double = TinyJit(lambda x: (x * 2).realize())
    >>> [double(Tensor([number])).item() for number in (1, 2, 3, 4)]
    [2, 4, 6, 8]
    """

    def __init__(self, fxn: Callable[Parameters, Result] | None, prune: bool = False) -> None:
        self.fxn = fxn
        self.prune = prune
        self.captures: dict[Key, Capture] = {}
        self.last: Capture | None = None
        self.bound: dict[int, tuple[weakref.ref[Any], TinyJit[..., Result]]] = {}
        self.around = None if fxn is None else Surroundings(fxn)
        self.name = "a function" if fxn is None else getattr(fxn, "__qualname__", repr(fxn))
        self.lock = threading.RLock()
        if fxn is not None:
            functools.update_wrapper(self, fxn)

    def __get__(self, instance: Any, owner: type | None = None) -> TinyJit[..., Result]:
        if instance is None:
            return self
        found = self.bound.get(id(instance))
        if found is None or found[0]() is not instance:
            key = id(instance)
            reference = weakref.ref(instance, lambda _: self.bound.pop(key, None))
            jitted: TinyJit[..., Result] = TinyJit(
                weak_method(cast(Any, self.fxn), reference), self.prune
            )
            cast(Surroundings, jitted.around).watch(cast(Any, self.fxn), reference)
            found = self.bound[key] = reference, jitted
        return found[1]

    def reset(self) -> None:
        """Forget what was captured; the next two calls run the function again."""
        self.captures, self.last = {}, None

    @property
    def captured(self) -> CapturedStep | None:
        """What the last call captured or replayed, once something was."""
        return None if self.last is None else self.last.step

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Run the function, capture it, or replay it, whichever is due."""
        if not settings.JIT or is_capturing():  # inside another capture it is a part of that
            return self.function(*args, **kwargs)
        given = Arguments(args, kwargs)
        with self.lock:
            found = self.last = self.capture_for(given)
            if found.step is not None and not found.is_current():
                found.forgotten += 1
                found.forget()
                if found.forgotten > MOST_RESTARTS:
                    raise JitError(
                        f"{self.name} was captured {found.forgotten} times: each time a tensor "
                        "that it works on was replaced by another. Write to it with assign"
                    )
            if found.step is not None:
                replayed: Result = found.replay(given)
                return replayed
            if found.first is None:
                return self.run(found, args, kwargs)
            result = found.take(self.function, given, args, kwargs)
            self.tell(found)
            return cast(Result, result)

    @property
    def function(self) -> Callable[..., Result]:
        """The function. Raises JitError where it is not here."""
        if self.fxn is None:
            raise JitError(
                f"{self.name} came from another process with its captures only, and this call fits "
                "none of them. Call it as it was captured, or pickle it after such a call"
            )
        return self.fxn

    def capture_for(self, given: Arguments) -> Capture:
        """The capture of calls like this one. Raises JitError for too many kinds of calls."""
        key = given.key, () if self.around is None else self.around.key
        found = self.captures.get(key)
        if found is None:
            if len(self.captures) >= MOST_CAPTURES:
                before = self.captures[next(reversed(self.captures))]
                what = "; ".join(differences(before.facts, self.facts_of(given)))
                raise JitError(
                    f"{self.name} was called in {MOST_CAPTURES} ways, each of which needs a "
                    f"capture; what differed from the last one: {what}. Pass what changes from "
                    "call to call as a Tensor, and sizes and offsets as Variables"
                )
            found = Capture(self.name, self.facts_of(given), self.prune)
            if self.fxn is not None:
                self.captures[key] = found
        return found

    def facts_of(self, given: Arguments) -> list[tuple[str, Hashable]]:
        """What the key of a call says, with names."""
        return [*given.facts, *(() if self.around is None else self.around.facts)]

    def run(self, found: Capture, args: Any, kwargs: Any) -> Result:
        """The first run, noting what it did."""
        finish_writes()
        with capture(refuses=False) as recording, holdings.apart():
            result = self.function(*args, **kwargs)
            realized(self.name, result)
        found.first = Run.of(recording)
        return result

    def tell(self, found: Capture) -> None:
        """A line of DEBUG on what was captured."""
        if trace.on and (step := found.step) is not None:
            between = sum(b.nbytes for b in step.made - set(step.fresh_outputs))
            trace(
                f"captured {self.name}: {len(step.items)} launches, {len(step.inputs)} inputs, "
                f"{len(step.fresh_outputs)} outputs, {between} bytes between launches"
            )

    def __reduce__(self) -> tuple[object, ...]:
        kept = {key[0]: found for key, found in self.captures.items() if found.step is not None}
        if not kept:
            raise JitError(f"{self.name} has captured nothing yet; call it twice, then pickle it")
        return loaded, (self.name, list(kept.items()))


def loaded(name: str, kept: list[tuple[Any, Capture]]) -> TinyJit[..., Any]:
    """A function from its captures alone."""
    result: TinyJit[..., Any] = TinyJit(None)
    result.name = name
    result.captures = {(key, ()): found for key, found in kept}
    return result


def weak_method(
    function: Callable[..., Result], reference: weakref.ref[Any]
) -> Callable[..., Result]:
    """A function bound to an object that it does not keep alive."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        return function(reference(), *args, **kwargs)

    return call
