"""`TinyJit`: capture the launches of a function, and replay them.

Floor 5. The first call runs the function as it is, the second one records every launch, and later
ones replay them on their own inputs. Calls that differ in more than the content of tensors and the
numbers of Variables are captured separately. A function that a replay would get wrong is refused.

A call is replayed if, in this order: its arguments, settings and device have the key of a capture
(`arguments.py`); the conditions on its Variables hold (`Capture.admits`); the function finds around
it what it found (`Guard.holds`); the tensors that the launches work on are as
they were (`Expected` of `recorded_call.py`), if need be after waiting writes are done
(`Capture.is_current`); and no argument lies in memory of the launches (`Capture.refuse_shared`).
"""

from __future__ import annotations

import copy
import functools
import pickle
import types
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeVar

from tinycore._locks import recursive_lock
from tinycore.config import in_force
from tinycore.engine.captured_step import CapturedStep, trace
from tinycore.engine.run import recordings
from tinycore.errors import ArgumentTypeError, JitError
from tinycore.tensor.capture.arguments import Arguments, differences
from tinycore.tensor.capture.captured import Capture
from tinycore.tensor.capture.recorded_call import Reference
from tinycore.tensor.guards.environment import Environment
from tinycore.tensor.guards.guard import attributes
from tinycore.tensor.guards.keys import METHOD_TYPES, reference_to
from tinycore.tensor.guards.readers import WRAPPERS
from tinycore.tensor.signatures import at_once

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

MOST_CAPTURES: Final = 64
"""Captures of one function at the same time; more are refused."""
MOST_RESTARTS: Final = 8
"""Number of times that a capture is restarted because its tensors were replaced."""

Key = tuple[Any, ...]


class TinyJit(Generic[Parameters, Result]):
    """A function that is captured at its second call and replayed from the third on.

    Use it as a decorator on functions and methods (each object then has captures of its own). The
    function must return tensors, or containers of them, or None, and do all its work in tensors.
    Calls with other shapes, dtypes, devices or Python values have captures of their own; the
    numbers of Variables are given to each replay. `JIT=0` turns it off. With `prune`, replays leave
    out launches that no argument has to do with: memory that the function only reads is then taken
    never to change. Without `guards`, each replay compares the arguments alone: what the function
    finds around it (closure, globals, attributes) is taken never to change, by the function either
    but for memory that it writes to, which saves the time of comparing it where that is much, as in
    the runner of a model file. A replay of more than a quarter of a second copies what it
    overwrites, as Ctrl-C or an error restores it. Unless it is `atomic` it does not, and leaves
    what it wrote until then: for caches, of which nobody reads what was not written in whole.
    Raises JitError where a replay would not do what the function does.

    >>> from tinycore import TinyJit
    >>> double = TinyJit(lambda x: (x * 2).realize())
    >>> [double(Tensor([number])).item() for number in (1, 2, 3, 4)]
    [2, 4, 6, 8]
    """

    __slots__ = "__dict__", "__self__", "__weakref__"

    __self__: Any
    """The object that a method was looked up in. As in Python, each lookup gives a method that
    keeps the object alive; those of one object have all else in common, which does not."""
    __func__: TinyJit[..., Result]
    """The method in the class."""

    def __init__(
        self,
        fxn: Callable[Parameters, Result] | None,
        prune: bool = False,
        guards: bool = True,
        atomic: bool = True,
    ) -> None:
        self.fxn = fxn
        self.prune, self.guards, self.atomic = prune, guards, atomic
        self.kinds: dict[Key, list[Capture]] = {}
        """Captures by the key of the arguments; those in a list differ in their environment."""
        self.last: Capture | None = None
        self.bound: dict[int, tuple[Reference, TinyJit[..., Result]]] = {}
        self.around: Environment | None = None
        self.lock = recursive_lock()
        if fxn is not None:
            if not callable(fxn):
                raise ArgumentTypeError(
                    f"TinyJit: {fxn!r} is no function; pass one, or an object "
                    "that can be called. A decorator such as @classmethod belongs above @TinyJit"
                )
            self.around = Environment(fxn, is_watched=guards)
            self.name = getattr(fxn, "__qualname__", repr(fxn))
            functools.update_wrapper(self, fxn)

    def __get__(self, instance: Any, owner: type | None = None) -> TinyJit[..., Result]:
        if instance is None:
            return self
        key = id(instance)
        found = self.bound.get(key)
        if found is None or found[0]() is not instance:
            function = self.function
            reference = reference_to(instance, lambda _: self.bound.pop(key, None))

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Result:
                return function(reference(), *args, **kwargs)

            jitted = self.like(call)
            jitted.around = Environment(function, reference, self.guards)
            jitted.__func__ = self
            found = self.bound[key] = reference, jitted
        bound = object.__new__(TinyJit)
        bound.__dict__, bound.__self__ = vars(found[1]), instance
        return bound

    def like(self, function: Callable[..., Any]) -> TinyJit[..., Result]:
        """Another function that is captured in the same way."""
        return TinyJit(function, self.prune, self.guards, self.atomic)

    def __repr__(self) -> str:
        steps = [len(c.step.items) for c in self.captures if c.step is not None]
        return f"<TinyJit {self.name}: {f'steps of {steps} launches' if steps else 'no steps yet'}>"

    def reset(self) -> None:
        """Drop all captures; the next two calls run the function again."""
        self.kinds, self.last = {}, None

    @property
    def captures(self) -> list[Capture]:
        """All captures, those for one key of the arguments together."""
        return [capture for captures in self.kinds.values() for capture in captures]

    @property
    def captured(self) -> CapturedStep | None:
        """The step that the last call captured or replayed; None before one was."""
        return None if self.last is None else self.last.step

    @at_once
    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Run the function, capture it, or replay it, whichever is due."""
        values = in_force()
        if not values["JIT"] or recordings.open:  # inside another capture it is a part of that
            return self.function(*args, **kwargs)
        capture, matched = self.last, None
        if capture is not None and not kwargs and (pattern := capture.pattern) is not None:
            matched = pattern.match(args, values)
        given = matched or Arguments(args, kwargs)
        with self.lock:
            if capture is None or matched is None or not capture.holds(given):
                for capture in self.kinds.get(given.key, ()):
                    if capture.holds(given):
                        break
                else:
                    return self.begin(given)
                self.last = capture
            if (recorded := capture.recorded) is not None:
                expected = recorded.expected
                if expected is None or expected.holds() or recorded.is_current():
                    if (arrived := recorded.arrived) and recorded.goes_on(given.nodes, arrived):
                        return self.function(*args, **kwargs)
                    result: Result = recorded.replay(given)
                    return result
                self.give_up(capture)
            result = capture.run(self.function, given)
            self.tell(capture)
            return result

    @property
    def function(self) -> Callable[..., Result]:
        """The function. Raises JitError where it is not here."""
        if self.fxn is None:
            raise JitError(
                f"{self.name} came from another process with its captures only, and this call fits "
                "none of them. Call it as it was captured, or pickle it after such a call"
            )
        return self.fxn

    def broken(self, given: Arguments) -> list[str]:
        """Comparisons of sizes in such captures which this call answers otherwise, as text."""
        return [t for c in self.kinds.get(given.key, ()) for t in c.broken(given.numbers)]

    def give_up(self, capture: Capture) -> None:
        """Drop the captures. Raises JitError if that happens again and again."""
        capture.invalidations += 1
        capture.forget()
        if capture.invalidations > MOST_RESTARTS:
            raise JitError(
                f"{self.name} was captured {capture.invalidations} times: each time a tensor that "
                "it works on was replaced by another. Write to it with assign"
            )

    def begin(self, given: Arguments) -> Result:
        """The first call of its kind. Raises JitError for too many kinds of calls."""
        if self.fxn is None and (broken := self.broken(given)):
            raise JitError(
                f"{self.name} was captured where {'; '.join(broken)}. It came from another process "
                "with its captures only; pickle it after a call with such numbers"
            )
        function = self.function
        for key, captures in list(self.kinds.items()):
            self.kinds[key] = [c for c in captures if c.guard is None or not c.guard.gone]
        known = self.captures
        if len(known) >= MOST_CAPTURES:
            assert self.around is not None, "there is a function to run"
            now = given.facts | self.around.walk(given.objects).guard().facts()
            what = "; ".join([*differences(known[-1].facts, now), *self.broken(given)[-1:]])
            raise JitError(
                f"{self.name} was called in {MOST_CAPTURES} ways, each of which needs a "
                f"capture; what differed from the last one: {what}. Pass what changes from "
                "call to call as a Tensor, and sizes and offsets as Variables"
            )
        capture = self.last = Capture(self.name, self.around, self.prune, self.atomic)
        result: Result = capture.run(function, given)
        self.kinds.setdefault(given.key, []).append(capture)
        return result

    def tell(self, found: Capture) -> None:
        """Print a line of DEBUG on a capture."""
        if trace.on and (step := found.step) is not None:
            between = sum(b.nbytes for b in step.made - set(step.fresh_outputs))
            trace(
                f"captured {self.name}: {len(step.items)} launches, {len(step.inputs)} inputs, "
                f"{len(step.fresh_outputs)} outputs, {between} bytes between launches"
            )

    def __copy__(self) -> TinyJit[..., Result]:
        return self.__deepcopy__({id(self.fxn): self.fxn})

    def __deepcopy__(self, memo: dict[int, Any]) -> TinyJit[..., Result]:
        """The same function, or the method of the copy of its object; it has captured nothing."""
        if hasattr(self, "__self__"):
            return self.__func__.__get__(copy.deepcopy(self.__self__, memo))
        if self.fxn is None:
            found: TinyJit[..., Result] = pickle.loads(pickle.dumps(self))
            return found
        return self.like(copy.deepcopy(self.fxn, memo))

    def __reduce__(self) -> tuple[object, ...]:
        if hasattr(self, "__self__"):
            return getattr, (self.__self__, self.name.rpartition(".")[2])
        if not isinstance(self.fxn, (types.FunctionType, types.NoneType)):
            # with the object that it is a method of
            return TinyJit, (self.fxn, self.prune, self.guards, self.atomic)
        kept = {}
        for key, captures in self.kinds.items():
            if recorded := [c for c in captures if c.recorded is not None]:
                whole = [c for c in recorded if not c.conditions]  # the guards are left out
                kept[key] = [*[c for c in recorded if c.conditions], *whole[-1:]]
        if not kept:
            raise JitError(f"{self.name} has captured nothing yet; call it twice, then pickle it")
        return loaded, (self.name, kept)


def loaded(name: str, kinds: dict[Key, list[Capture]]) -> TinyJit[..., Any]:
    """A function from its captures alone."""
    result: TinyJit[..., Any] = TinyJit(None)
    result.name, result.kinds = name, kinds
    return result


WRAPPERS[TinyJit] = attributes("fxn", "")
METHOD_TYPES.add(TinyJit)
