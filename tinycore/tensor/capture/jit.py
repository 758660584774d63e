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
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Generic, ParamSpec, TypeVar

from tinycore._locks import recursive_lock
from tinycore.config import in_force
from tinycore.device.buffer import Buffer
from tinycore.engine.captured_step import CapturedStep, capture, trace
from tinycore.engine.run import recordings
from tinycore.errors import ArgumentTypeError, JitError
from tinycore.tensor.capture.arguments import Arguments, CallPattern, differences
from tinycore.tensor.capture.capturing_run import CapturingRun, Run
from tinycore.tensor.capture.change_sets import ChangeSet, tracking_changes
from tinycore.tensor.capture.proxies import (
    ArgumentProxies,
    finish_reads,
    finish_writes,
    naming_variables,
)
from tinycore.tensor.capture.recorded_call import RecordedCall, Reference
from tinycore.tensor.guards.environment import Environment, Walk
from tinycore.tensor.guards.guard import METHOD_TYPES, Fact, Guard, attributes, reference_to
from tinycore.tensor.guards.readers import WRAPPERS
from tinycore.tensor.signatures import at_once
from tinycore.tensor.storage import held_values
from tinycore.uop.size import Conditions, noting, sealed

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

MOST_CAPTURES: Final = 64
"""Captures of one function at the same time; more are refused."""
MOST_RESTARTS: Final = 8
"""Number of times that a capture is restarted because its tensors were replaced."""
MOST_ADMITTED: Final = 4096
"""Most numbers that are remembered to satisfy the guards."""
NO_BLOCK: Final = nullcontext()

Key = tuple[Any, ...]


@dataclass
class Capture:
    """The capture for calls with one key: its guards, and the recorded call."""

    name: str
    around: Environment | None = None
    prune: bool = False
    """True if replays leave out launches that do the same in each of them."""
    atomic: bool = True
    """True if what a replay has overwritten is restored where an interrupt ends it."""
    guard: Guard | None = None
    """The guard of the environment of the function."""
    first: Run | None = None
    """Record of the first run; None before it, and where the next one is expected to differ."""
    changed: frozenset[str] = frozenset()
    """Paths in the environment that the function has changed, but for tensors left there."""
    recorded: RecordedCall | None = None
    """The recorded call; None until the capture is complete."""
    facts: dict[str, Fact] = field(default_factory=dict)
    """Values that are expected of these calls, by their places."""
    conditions: Conditions = field(default_factory=dict)
    """The guards on the numbers of Variables, from the calls that were run."""
    admitted: set[tuple[int, ...]] = field(default_factory=set)
    """Numbers that satisfied these guards."""
    pattern: CallPattern | None = None
    """The form of its calls, if they are known by that, without their key."""
    written: weakref.WeakSet[Buffer] = field(default_factory=weakref.WeakSet)
    """Memory that earlier runs wrote to."""
    retries: int = 0
    invalidations: int = 0

    @property
    def step(self) -> CapturedStep | None:
        """The launches, once something was captured."""
        return None if self.recorded is None else self.recorded.step

    def holds(self, given: Arguments) -> bool:
        """True if this capture is for the numbers, and for what the function finds around it."""
        if self.conditions and not self.admits(given.numbers):
            return False
        guard, around = self.guard, self.around
        return around is None or guard is None or guard.holds(around.roots(given.objects))

    def forget(self) -> None:
        """Drop the capture: the next two calls run the function again."""
        self.first = self.recorded = None
        self.conditions, self.admitted = {}, set()

    # --- conditions on numbers

    def admits(self, numbers: Mapping[str, int]) -> bool:
        """True if the recorded comparisons of sizes have the same answers for these numbers."""
        held = tuple(numbers.values())
        if held in self.admitted:
            return True
        if self.broken(numbers):
            return False
        if len(self.admitted) < MOST_ADMITTED:
            self.admitted.add(held)
        return True

    def broken(self, numbers: Mapping[str, int]) -> list[str]:
        """The conditions that do not hold for some numbers, as text."""
        return [c.told(numbers) for c in self.conditions if not c.holds(numbers)]

    def note(self, found: Conditions) -> None:
        """Add the conditions on numbers that were decided in a call."""
        self.conditions |= found
        self.admitted = set()

    # --- capturing

    def run(self, function: Callable[..., Any], given: Arguments) -> Any:
        """Run the function with a record of its effects, and capture it if it ran before and that
        can be done already; its result.

        What other threads have computed for them before must be done without a record.
        """
        assert self.around is not None, "there is a function to run"
        walk = self.around.walk(given.objects)
        finish_writes((*walk.values, *given.tensors))
        if self.first is not None:
            finish_reads(self.written.union(given.buffers))
            held_values.end(given.nodes)  # the function may write to them, by other names
        change_set = ChangeSet()
        with naming_variables(given, change_set):
            return self.run_recorded(function, given, walk, change_set)

    def run_recorded(
        self, function: Callable[..., Any], given: Arguments, walk: Walk, change_set: ChangeSet
    ) -> Any:
        """Run the function for a first time, or capture it; its result."""
        assert self.around is not None, "there is a function to run"
        is_first = self.first is None
        self.pattern = CallPattern.of(given)
        proxies = ArgumentProxies(given, are_used=not is_first)
        try:
            with (
                capture(not is_first, proxies.buffers if self.prune else None) as recording,
                NO_BLOCK if is_first else sealed(),
                noting() as conditions,
                tracking_changes(change_set, ends_gradients=not is_first),
            ):
                recording.written = self.written
                run = CapturingRun(self, walk, given, proxies, change_set)
                result = run.run(function)
            self.note(conditions)
            if is_first:
                self.first = run.first(recording)
            recorded = None if is_first else run.make_record(recording, result)
        except BaseException as error:
            proxies.restore(change_set)
            proxies.write_back()
            if isinstance(error, Exception):  # an interrupt ends the program without another walk
                self.guard = self.around.walk(given.objects).guard()
            raise
        proxies.restore(change_set)
        after = self.around.walk(given.objects, run.kept if recorded else ())
        self.guard = after.guard()
        self.facts = self.facts or given.facts | self.guard.facts()
        if recorded is not None:
            recorded.found_by, recorded.side_outputs = (self.guard, self.around), run.places(after)
            recorded.renew(given)
            self.recorded = recorded
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "recorded": self.recorded, "conditions": self.conditions}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(**kept)  # type: ignore[misc]


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
