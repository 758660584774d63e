"""Argument checks by a method's annotations, at every public call.

Floor 5. A public method of `Tensor` whose parameters are annotated refuses any other type before it
does anything else, so that the mistake is told with the name of the operation, the parameter and
the value, and no method repeats `isinstance`. Annotations are read at a method's first call. The
methods trust each other: a call from this folder is not checked, which keeps building graphs cheap.

More than an annotation literally says is let through: NumPy's numbers as numbers, any real number
or a tensor where a float is asked for, an array where a sequence is. What depends on values (sizes,
ranges, words) is checked by the method itself. An argument that a method does not know by its name
is taken by the name that PyTorch, NumPy or tinygrad has for it, or told with the method's names.
"""

from __future__ import annotations

import difflib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, wraps
from inspect import Parameter, signature, unwrap
from itertools import chain, cycle
from numbers import Integral, Real
from reprlib import Repr
from typing import Any, Final, Literal, NamedTuple, NoReturn

from tinycore._deferred import NumpyArray, NumpyBool, NumpyComplex
from tinycore._signals import deferred, has_no_handler
from tinycore._tracebacks import Function, hide_frames, with_name_of
from tinycore.dtype import DType, dtypes, to_dtype
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
)
from tinycore.uop.node import UOp
from tinycore.uop.size import Variable

Named = dict[str, Any]
"""Arguments by name."""

Given = tuple[Any, ...]
"""Positional arguments."""
Arguments = tuple[Given, Named]

SPELLINGS: Final = tuple(
    line.split()
    for line in (
        "axis dim axes dims order",
        "keepdim keepdims keep_dim keep_dims",
        "shape size sizes",
        "min_ min a_min amin",
        "max_ max a_max amax",
        "correction ddof",
        "Y target labels",
        "fill_value value",
        "x other y",
        "dim0 axis1",
        "dim1 axis2",
        "stop end",
        "repeats reps",
        "neg_slope negative_slope",
        "eps epsilon",
        "padding pad",
    )
)
"""Names of one meaning."""

NEUTRAL_ARGUMENTS: Final = {
    "out": None,
    "dtype": None,
    "where": True,
    "initial": None,
    "copy": None,
}
"""Arguments that NumPy's functions pass to methods, and the value of each that has no effect."""


def spelled(
    name: str,
    parameters: Iterable[str],
    repeated: Sequence[str],
    given: Given,
    named: Named,
) -> Arguments:
    """The arguments of a call by the names that a method has.

    Raises ArgumentTypeError for a name that it has not.
    """
    known = list(parameters)
    found: Named = {}
    for word, value in named.items():
        if word in known and word not in repeated:
            found[word] = value
            continue
        other = word if word in known else synonym(word, known)
        if (other in named and other != word) or other in found:
            raise ArgumentTypeError(f"{name}: {word!r} is {other!r}, which was given twice")
        if other is None:
            if word in NEUTRAL_ARGUMENTS and value is NEUTRAL_ARGUMENTS[word]:
                continue
            raise ArgumentTypeError(unknown(name, word, known))
        if other in repeated:
            given = (*given, value)
        else:
            found[other] = value
    return given, found


def synonym(word: str, known: Sequence[str]) -> str | None:
    """The parameter that is called like a word, or by another name of the same meaning."""
    words = next((group for group in SPELLINGS if word in group), (word,))
    return next((p for p in known if p in words), None)


def unknown(name: str, word: str, known: Sequence[str]) -> str:
    """Message about an argument of an unknown name."""
    shown = [p for p in known if p not in ("self", "cls")]
    near = difflib.get_close_matches(word, shown, 1)
    takes = f"it takes {', '.join(shown)}" if shown else "it takes none by name"
    return f"{name}: no argument is called {word!r}" + (
        f"; did you mean {near[0]!r}? {takes[0].upper()}{takes[1:]}" if near else f"; {takes}"
    )


Fits = Callable[[Any], bool]


def is_dtype_name(value: Any) -> bool:
    """True if a string names a dtype, or a value is a dtype of NumPy, torch or Python."""
    try:
        return to_dtype(value) is not None
    except (DTypeError, TypeError):
        return False


class Accepted(NamedTuple):
    """The values that an annotation accepts."""

    words: tuple[str, ...]
    classes: tuple[type, ...] = ()
    others: tuple[Fits, ...] = ()

    @property
    def described(self) -> str:
        """Description of all of them."""
        contained = ("a bool", "an int") if "a number" in self.words else ()
        return " or ".join(dict.fromkeys(word for word in self.words if word not in contained))

    def admits(self, value: Any) -> bool:
        """True if a value is one of them."""
        return isinstance(value, self.classes) or any(fits(value) for fits in self.others)


MOST_SEEN: Final = 256
"""Most combinations of classes that are remembered for a method."""
ANYTHING = Accepted(("anything",), (object,))
NUMBERS = (int, float, Real, NumpyBool)
ACCEPTED_TYPES = {
    None: Accepted(("None",), (types.NoneType,)),
    bool: Accepted(("a bool",), (int, NumpyBool)),
    int: Accepted(("an int",), (int, Integral)),
    str: Accepted(("a string",), (str,)),
    DType: Accepted(("a dtype",), (DType,), (is_dtype_name,)),
}
"""Annotations that accept other values than the instances of a class."""


class Contract:
    """The annotations of one method."""

    def __init__(self, name: str, function: Callable[..., Any], tensor: type) -> None:
        self.name, self.function, self.tensor = name, function, tensor

    def hint(self, parameter: str) -> Any:
        """The annotation of a parameter as an object; Any if only type checkers understand it."""
        function: Any = unwrap(self.function)
        text = function.__annotations__.get(parameter, self.tensor if parameter == "self" else Any)
        alone = types.SimpleNamespace(__annotations__={parameter: text})
        try:
            found = typing.get_type_hints(alone, function.__globals__, {"Self": self.tensor})
        except (NameError, TypeError):
            return Any
        return found[parameter]

    @cached_property
    def parameters(self) -> dict[str, Accepted]:
        """Accepted types of every parameter; anything for one without annotation, such as `cls`."""
        return {
            name: self.accepted(self.hint(name)) for name in signature(self.function).parameters
        }

    @cached_property
    def positional(self) -> list[str]:
        """Parameters by place."""
        return self.of_kind(Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def repeated(self) -> list[str]:
        """The parameter that takes all further arguments, if there is one."""
        return self.of_kind(Parameter.VAR_POSITIONAL)

    @cached_property
    def named(self) -> list[str]:
        """The parameter that takes all arguments of other names, if there is one."""
        return self.of_kind(Parameter.VAR_KEYWORD)

    def of_kind(self, *kinds: Any) -> list[str]:
        """Names of the parameters that are passed in some ways."""
        found = signature(self.function).parameters
        return [name for name in self.parameters if found[name].kind in kinds]

    @cached_property
    def seen(self) -> set[tuple[type, ...]]:
        """Classes of arguments by place, of which every instance is accepted, as far as met."""
        return set()

    def check(self, given: Sequence[Any], named: Named) -> bool:
        """Check arguments. True if some need conversion: NumPy arrays for tensors, rows of devices.

        Raises ArgumentTypeError or DTypeError for the first value that is not accepted.
        """
        found = self.look(given, named)
        if not (named or found or self.name in OF_LISTS) and len(given) <= len(self.positional):
            accepted = [self.parameters[name].classes for name in self.positional]
            if all(map(isinstance, given, accepted)) and len(self.seen) < MOST_SEEN:
                self.seen.add(tuple(map(type, given)))
        return found

    def spelled(self, given: Given, named: Named) -> Arguments:
        """Arguments by our names. Raises ArgumentTypeError for a name that nothing is called by."""
        if not named or self.named or named.keys() <= self.parameters.keys() - {*self.repeated}:
            return given, named
        return spelled(self.name, self.parameters, self.repeated, given, named)

    def with_tensors(self, given: Given, named: Named) -> Arguments:
        """Arguments with arrays made tensors where these are expected, and a tuple of devices."""
        every = (*given, *named.values())
        beside: Any = next((v for v in every if isinstance(v, self.tensor)), None)

        def converted(name: str, value: Any) -> Any:
            accepted = self.parameters.get(name, ANYTHING)
            if names_devices(name, value) and not accepted.admits(value):
                return tuple(value)
            wrong = not accepted.admits(value) and takes_array(accepted, value)
            return type(beside)(value, device=beside.device) if wrong else value

        names = chain(self.positional, cycle(self.repeated or [""]))
        return (
            tuple([converted(name, value) for name, value in zip(names, given, strict=False)]),
            {name: converted(name, value) for name, value in named.items()},
        )

    def look(self, given: Sequence[Any], named: Named) -> bool:
        """`check` without the shortcut."""
        parameters, arrays = self.parameters, False
        names = chain(self.positional, cycle(self.repeated))
        for name, value in chain(zip(names, given, strict=False), named.items()):
            rule = name if name in parameters or not self.named else self.named[0]
            accepted = parameters.get(rule, ANYTHING)
            if not accepted.admits(value):
                beside = any(isinstance(v, self.tensor) for v in (*given, *named.values()))
                taken = names_devices(name, value) or (beside and takes_array(accepted, value))
                if not taken:
                    self.refuse(name, accepted, value)
                arrays = True
        return arrays

    def refuse(self, parameter: str, accepted: Accepted, value: Any) -> NoReturn:
        """Raises with the operation, the parameter, the accepted types and the value."""
        what = f"{self.name}: {parameter} is {SHORT.repr(value)} of type {type(value).__name__}"
        wanted = f"{what}; it must be {accepted.described}"
        if "a dtype" in accepted.words:
            raise DTypeError(f"{wanted}: {', '.join(d.name for d in dtypes.all)}")
        if is_complex(value):
            raise DTypeError(
                f"{wanted}. Complex numbers are not supported: keep the real and the imaginary "
                "part in two tensors"
            )
        if isinstance(value, Variable):
            raise ArgumentTypeError(f"{what}, which holds no number; give it one with .bind(n)")
        if parameter == "device":
            raise ArgumentTypeError(wanted + self.instead_of_device(value))
        makes_tensor = "a Tensor" in accepted.words and isinstance(value, (list, tuple, Array))
        raise ArgumentTypeError(wanted + (". Tensor(...) makes one of it" if makes_tensor else ""))

    def instead_of_device(self, value: Any) -> str:
        """Message about a value that is no device: its likely meaning, and the call for that."""
        if isinstance(value, self.tensor):
            return ". Give x.device; x.cast(dtype) changes the dtype"
        if is_dtype_name(value):
            return ". x.cast(dtype) changes the dtype"
        return ". Give its name, str(device)" if type(value).__name__ == "device" else ""

    def accepted(self, annotation: Any) -> Accepted:
        """The types that an annotation accepts; anything if that is unknown."""
        if annotation in (Any, object):
            return ANYTHING
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (types.UnionType, typing.Union):
            return self.either(inner)
        if origin is Literal:
            return self.either([type(value) for value in inner])
        if origin in (list, tuple, Sequence):
            return self.row(origin, inner)
        if origin is Callable:
            return Accepted(("a function",), (), (callable,))
        return self.plain(annotation if origin is None else origin)

    def either(self, annotations: Iterable[Any]) -> Accepted:
        """The values of several annotations together."""
        members = list(dict.fromkeys(annotations))
        found = [self.accepted(a) for a in members if a is not str or DType not in members]
        return Accepted(
            tuple([word for a in found for word in a.words]),
            tuple([c for a in found for c in a.classes]),
            tuple([fits for a in found for fits in a.others]),
        )

    def row(self, origin: Any, inner: Sequence[Any]) -> Accepted:
        """Sequences and arrays of accepted items, or of None, which some methods know."""
        item = ANYTHING if Any in inner else self.either([a for a in inner if a is not Ellipsis])
        count = len(inner) if origin is tuple and Ellipsis not in inner else None

        def fits(value: Any) -> bool:
            if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, Array)):
                return item is ANYTHING and hasattr(value, "__array__")
            if count is not None and len(value) != count:
                return False
            return item is ANYTHING or all(each is None or item.admits(each) for each in value)

        many = "sequence of" if count is None else f"sequence of {count}"
        return Accepted((f"a {many} {plural(item.described)}",), (), (fits,))

    def plain(self, annotation: Any) -> Accepted:
        """The instances of a class, or the entry of ACCEPTED_TYPES."""
        if annotation is types.NoneType:
            annotation = None
        if annotation is float:
            return Accepted(("a number",), (*NUMBERS, self.tensor, UOp))
        if annotation is self.tensor:
            return Accepted(("a Tensor",), (self.tensor,))
        if annotation in ACCEPTED_TYPES:
            return ACCEPTED_TYPES[annotation]
        if isinstance(annotation, type):
            return Accepted((f"an instance of {annotation.__name__}",), (annotation,))
        return ANYTHING


Array = NumpyArray
SHORT = Repr()
SHORT.maxother = SHORT.maxstring = 60


def names_devices(name: str, value: Any) -> bool:
    """True if an argument is a list of devices, which is taken as a tuple, or a mesh of them."""
    row = name in ("device", "devices") and isinstance(value, (list, tuple))
    return row and all(isinstance(each, str) or names_devices(name, each) for each in value)


def takes_array(accepted: Accepted, value: Any) -> bool:
    """True if a value is an array of numbers that a tensor can be made of."""
    return "a Tensor" in accepted.words and isinstance(value, Array) and value.dtype.kind in "biuf"


def plural(words: str) -> str:
    """`a sequence of ints or None` as `sequences of ints or None`."""
    first, *more = words.removeprefix("a ").removeprefix("an ").split(" ", 1)
    return " ".join([first if first in ("None", "anything") else first + "s", *more])


def is_complex(value: Any) -> bool:
    """True if a value is a complex number or an array of them."""
    return isinstance(value, (complex, NumpyComplex)) or (
        isinstance(value, Array) and value.dtype.kind == "c"
    )


WRITTEN_AS: Final = {
    **{name: name for name in "add sub mul matmul mod pow lshift rshift".split()},
    "truediv": "div",
    "floordiv": "idiv",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
TOLD_AS: Final = {
    f"__{form}{written}__": name for written, name in WRITTEN_AS.items() for form in ("", "r", "i")
} | {
    "__init__": "Tensor",
    "__lt__": "less",
    "__gt__": "less",
    "__le__": "less_or_equal",
    "__ge__": "less_or_equal",
    "__eq__": "eq",
    "__ne__": "ne",
    "__getitem__": "index",
    "__setitem__": "setitem",
}
"""The methods behind Python's syntax, and the name of each in errors."""

MISTAKES: Final = (ArgumentError, DTypeError, GradientError, IndexRangeError, ShapeError)
"""Errors of a caller, to be raised with the name of the operation that was called."""


def check_signatures(cls: type, tensor: type) -> None:
    """Hold the annotations of the public methods that a class defines; `Self` is `tensor`.

    Those of tinycore defer the program's signal handlers, as a handler that computes may replace
    the nodes that a method has in its hands. See docs/threads.md.
    """
    own = cls.__module__.startswith("tinycore.")
    for name, member in list(vars(cls).items()):
        if isinstance(member, (classmethod, staticmethod)):
            call = checked(name, member.__func__, tensor, own)
            setattr(cls, name, type(member)(call))
        elif isinstance(member, types.FunctionType):
            if own:  # as kernels are told by what was called: `__add__`, not `add`
                member.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, checked(name, member, tensor, own))
        elif isinstance(member, property) and own:
            setattr(cls, name, with_checks_where_changed(member, tensor))


def checked(name: str, function: Callable[..., Any], tensor: type, own: bool) -> Callable[..., Any]:
    """A method of a class, with the checks that it gets; `own` are those of this folder."""
    is_public = name in TOLD_AS or not name.startswith("_")
    own = own and name not in LONG
    if is_public and unwrap(function).__annotations__.keys() - {"return"}:
        return with_argument_checks(TOLD_AS.get(name, name), function, tensor, own)
    is_special = name.startswith("__") and name.endswith("__")  # as `__neg__`, called by Python
    return at_once(function) if own and (is_public or is_special) else function


LONG: Final = frozenset({"__init_subclass__", "__new__", "from_url"})
"""Methods during which signal handlers are called: a download takes its time."""


def at_once(
    function: Function,
    checked_call: Callable[[Given, Named], Any] | None = None,
    own: bool = True,
    name: str = "",
) -> Function:
    """A method, of which programs call the checked one; its mistakes are shown at the caller.

    During an `own` one the program's own signal handlers are deferred.
    """

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("tinycore.tensor."):
            return function(*given, **named)
        try:
            if not own or has_no_handler():
                return checked_call(given, named) if checked_call else function(*given, **named)
            with deferred(everything=False):
                return checked_call(given, named) if checked_call else function(*given, **named)
        except Exception as error:
            if isinstance(error, MISTAKES) and not str(error).startswith(name):
                error.args = (f"{name}: {error}", *error.args[1:])  # a step of it found it
            hide_frames(error)
            raise

    return with_name_of(function, call)


def with_checks_where_changed(member: property, tensor: type) -> property:
    """A property which makes tensors, or is assigned to, likewise, with a check of the value."""
    if (put := member.fset) is not None:
        member = member.setter(checked(put.__name__, put, tensor, own=True))
    if (get := member.fget) is not None and get.__annotations__.get("return") == "Self":
        member = member.getter(at_once(get))
    return member


OF_LISTS: Final = frozenset({"cat", "stack"})
"""Methods of several tensors, which torch and tinygrad give them in a list."""


def renamed(method: Function) -> Function:
    """Another name of a method, which calls what overrides that."""
    name = method.__name__

    @wraps(method)
    def call(x: Any, *given: Any, **named: Any) -> Any:
        return getattr(x, name)(*given, **named)

    return call  # type: ignore[return-value]


def one_by_one(name: str, given: Given, named: Named) -> Arguments:
    """The tensors of lists as arguments; after a list an int is the axis, as in torch.

    Raises ArgumentError for an empty list.
    """
    if not any(isinstance(value, (list, tuple)) for value in given):
        return given, named
    if isinstance(given[-1], Integral) and "dim" not in named:
        given, named = given[:-1], {**named, "dim": given[-1]}
    rows = [value if isinstance(value, (list, tuple)) else [value] for value in given]
    if not any(rows):
        raise ArgumentError(f"{name}: needs at least one tensor, got {SHORT.repr(given[0])}")
    return tuple(chain.from_iterable(rows)), named


def with_argument_checks(
    name: str, function: Callable[..., Any], tensor: type, own: bool
) -> Callable[..., Any]:
    """A method that checks its arguments, except for calls from this folder."""
    contract = Contract(name, function, tensor)
    seen = contract.seen

    def checked_call(given: Given, named: Named) -> Any:
        try:
            if named or tuple(map(type, given)) not in seen:
                if named:
                    given, named = contract.spelled(given, named)
                if name in OF_LISTS:
                    given, named = one_by_one(name, given, named)
                if contract.check(given, named):
                    given, named = contract.with_tensors(given, named)
            return function(*given, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            told = str(error).partition("() ")[2] or error
            raise ArgumentTypeError(f"{name}: {told}") from None

    return at_once(function, checked_call, own, name)
