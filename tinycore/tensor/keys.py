"""Python values as parts of keys: of arguments, and of what a function finds around it.

Floor 5. Captures are told apart by keys, see `arguments.py`.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final

from tinycore._deferred import NumpyArray, NumpyScalar
from tinycore.dtype import DType
from tinycore.errors import JitError
from tinycore.tensor.tensor import Tensor
from tinycore.uop.size import Size, Variable

PLAIN: Final = (types.NoneType, bool, int, complex, str, bytes, DType, enum.Enum, type, Variable)
"""Values that are equal when they say the same; floats are told apart by their bits."""


class Same:
    """An object itself, as part of a key, which does not keep it alive."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        try:
            bound = isinstance(value, types.MethodType)
            self.reference: Callable[[], Any] = (weakref.WeakMethod if bound else weakref.ref)(
                value
            )
        except TypeError:  # some objects take no weak references
            self.reference = lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self.number != other.number:
            return False
        mine, theirs = self.reference(), other.reference()
        if isinstance(mine, types.MethodType):
            return bool(mine == theirs)
        return mine is not None and mine is theirs

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        found = self.reference()
        return "an object that is gone" if found is None else f"the object {shortened(found)}"

    def __reduce__(self) -> tuple[object, ...]:
        raise JitError(
            f"{self!r} is part of what was captured, and no other process has it; pass tensors and "
            "plain values to a function whose captures are pickled"
        )


ATOMS: Final = frozenset((types.NoneType, bool, int, complex, str, bytes, DType, Variable, type))
"""Classes whose instances are PLAIN, looked up where looking has to be quick."""


def constant(value: Any) -> Hashable:
    """A Python value as part of a key."""
    kind = type(value)
    if kind in ATOMS:
        return kind, value
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, NumpyScalar):
        return value.dtype.str, value.tobytes()
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, Size):
        return Size, value.free()
    return Same(value), attributes_of(value)


def attributes_of(value: Any) -> tuple[Hashable, ...]:
    """The plain values and the tensors that an object has as attributes; tensors as themselves."""
    if isinstance(value, (types.ModuleType, types.FunctionType, type, Tensor)):
        return ()
    found = getattr(value, "__dict__", None)
    if not isinstance(found, dict):
        return ()
    known = (*PLAIN, float, NumpyScalar)
    return tuple(
        [
            (name, constant(item) if isinstance(item, known) else Same(item))
            for name, item in list(found.items())
            if isinstance(item, (*known, Tensor))
        ]
    )


class Surroundings:
    """What a function finds in its closure, among the globals that it names, and in its object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        owner = getattr(function, "__self__", None)
        self.watch(getattr(function, "__func__", function), lambda: owner)

    def watch(self, function: Callable[..., Any], owner: Callable[[], Any]) -> None:
        """Look at this function, and at the object it is a method of (None for a function)."""
        code = getattr(function, "__code__", None)
        names = [] if code is None else names_in(code)
        self.scope: dict[str, Any] = getattr(function, "__globals__", {})
        self.names = [n for n in names if n in self.scope]
        cells = getattr(function, "__closure__", None) or ()
        self.cells = [] if code is None else list(zip(code.co_freevars, cells, strict=True))
        self.owner = owner
        self.met: dict[int, Same] = {}
        """Objects that were found, by place."""

    @property
    def values(self) -> list[Any]:
        """Everything found; `UNTOLD` for a variable that has no value yet."""
        found = [contents(cell) for _, cell in self.cells]
        scope = self.scope
        found += [scope.get(name) for name in self.names]
        found.append(self.owner())
        return found

    @property
    def key(self) -> tuple[Hashable, ...]:
        """All of it, in a fixed order."""
        if not self.cells and not self.names:
            owner = self.owner()
            return NOBODY if owner is None else (self.told(0, owner),)
        return tuple([self.told(place, value) for place, value in enumerate(self.values)])

    @property
    def facts(self) -> list[tuple[str, Hashable]]:
        """The key with the names of what it tells."""
        paths = [f"closure variable {name}" for name, _ in self.cells]
        paths += [*(f"global {name}" for name in self.names), "self"]
        return [(path, k) for path, k in zip(paths, self.key, strict=True) if k is not UNTOLD]

    def told(self, place: int, value: Any) -> Hashable:
        """A value as part of a key; UNTOLD where its changes cannot be seen."""
        kind = type(value)
        if kind in ATOMS and kind is not type:
            return kind, value
        if kind in CONTAINERS or not is_told(value):
            return UNTOLD
        if isinstance(value, (*PLAIN, float, NumpyScalar, Size)):
            return constant(value)
        known = self.met.get(place)
        if known is None or known.reference() is not value:
            known = self.met[place] = Same(value)
        return (known, ()) if kind is Tensor else (known, attributes_of(value))


class Untold:
    """What a key says of that whose changes cannot be seen."""


UNTOLD: Final = Untold
NOBODY: Final = ((types.NoneType, None),)
"""The key of a function that finds nothing."""
CONTAINERS: Final = frozenset((list, dict, set, tuple, types.ModuleType, types.FunctionType))


def contents(cell: types.CellType) -> Any:
    """What a variable of the closure holds; UNTOLD before it is assigned."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNTOLD


def names_in(code: types.CodeType) -> list[str]:
    """The names that a function or one inside of it looks up."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return list(dict.fromkeys([*code.co_names, *(n for c in inner for n in names_in(c))]))


def is_told(value: Any) -> bool:
    """Whether a change of a value can be seen: not inside of containers, nor of code."""
    code = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    return not isinstance(value, (*code, list, dict, set, tuple, NumpyArray))


def shortened(value: Any) -> str:
    """A value on one line of some length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
