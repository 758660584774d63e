"""Guard keys: Python values as hashable parts of the key of a capture; roles of guarded values.

Floor 5. Each key has a capture of its own, see `arguments.py`; for roles see `guard.py`.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from tinycore._deferred import NumpyScalar
from tinycore.dtype import DType
from tinycore.errors import JitError
from tinycore.tensor.tensor import Tensor
from tinycore.uop.size import Size, Variable

Values = tuple[Any, ...]


class Absence(enum.Enum):
    """The value of a name that is not there, which None would be told from by nothing."""

    MISSING = "absent"

    def __repr__(self) -> str:
        return self.value


MISSING: Final = Absence.MISSING


class Role(NamedTuple):
    """The condition on a value that is another object than at the capture."""

    fits: Callable[[Any, Any], bool]
    """A function of `of` and a value: `alike`, `never`, `is_a` or `has_form`."""
    of: Any = None


def never(_: Any, value: Any) -> bool:
    """False: no other object will do."""
    return False


def is_a(kind: Any, value: Any) -> bool:
    """True for a container of a class, whichever: its values are compared in a box of its own."""
    return type(value) is kind


def has_form(form: Any, value: Any) -> bool:
    """True for any tensor of a form: the function puts it there."""
    return bool(form_of_value(value) == form)


def form_of_value(value: Any) -> Any:
    """The form of a tensor; of others what they are."""
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.dtype, value.device
    return constant_key(value)


def reference_to(value: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    """A reference to an object that does not keep it alive, if there can be one."""
    try:
        return weakref.ref(value, gone)
    except TypeError:  # some objects take no weak references
        return lambda: value


class Same:
    """An object's identity as part of a key, which does not keep it alive."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any) -> None:
        self.number, self.reference = id(value), reference_to(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self.number != other.number:
            return False
        mine = self.reference()
        return mine is not None and mine is other.reference()

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


ATOMS: Final = frozenset((types.NoneType, bool, int, str, bytes, DType, Variable, type))
"""Classes whose instances are plain, looked up where looking has to be quick."""
PLAIN_TYPES: Final = (*ATOMS, float, complex, enum.Enum, NumpyScalar, Size, types.CodeType)
"""Types whose values are equal by content; floats by their bits, complex numbers by their text."""
METHOD_TYPES: Final[set[type]] = {types.MethodType}
"""Classes of methods, which are known by their object and their function."""


def constant_key(value: Any) -> Hashable:
    """A Python value as part of a key."""
    kind = type(value)
    if kind in ATOMS:
        return kind, value
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, complex.__repr__(value)
    if isinstance(value, NumpyScalar):
        return value.dtype.str, value.tobytes()
    if isinstance(value, PLAIN_TYPES):
        return Size if isinstance(value, Size) else kind, value
    if kind in METHOD_TYPES and hasattr(value, "__self__"):  # each lookup makes another
        return constant_key(value.__self__), constant_key(value.__func__)
    return Same(value) if (found := buffer_content(value)) is None else (kind, found)


def buffer_content(value: Any) -> tuple[str, tuple[int, ...], bytes] | None:
    """Format, shape and content of an object with the buffer protocol; None for others."""
    try:
        with memoryview(value) as found:
            return found.format, found.shape or (), found.tobytes()
    except (TypeError, ValueError, BufferError):  # no buffer, or one that cannot be read
        return None


def alike(one: Any, other: Any) -> bool:
    """True if two plain values are of one class and equal, floats bit by bit."""
    is_same = type(one) is type(other) and is_plain(one)
    return is_same and bool(constant_key(one) == constant_key(other))


def is_plain(value: Any) -> bool:
    """True if a value is guarded by equality."""
    return isinstance(value, PLAIN_TYPES) and not isinstance(value, type)


Fact = tuple[Hashable, str]
"""A key that is compared with those of other calls, and its text."""


def fact_of(value: Any) -> Fact:
    """A value that is expected of a call."""
    is_told = is_plain(value) or isinstance(value, type)
    return (constant_key(value), shortened(value)) if is_told else fact_of_object(id(value))


def fact_of_object(number: int) -> Fact:
    """An object, of which the identity is expected."""
    return number, f"object {number}"


def shortened(value: Any) -> str:
    """A value on one line of some length."""
    try:
        text = repr(value)
    except Exception:  # of a class of the caller, or a number of thousands of digits
        text = object.__repr__(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
