"""Changes around a captured function that a guard might not see: absent names, patched objects,
containers with attributes, memory of other libraries.

Each case is called until it is replayed, then changed; the next call has to see that.
"""

from __future__ import annotations

import argparse
import array
import collections
import configparser
import ctypes
import enum
import io
import operator
import os
import queue
import string
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import getenv
from pathlib import Path
from typing import Any

import numpy
import pytest

from tinycore import Tensor, TinyJit
from tinycore.errors import JitError

ROOT = Path(__file__).resolve().parents[3]

Case = tuple[Callable[..., Any], Callable[[], object]]
"""A function of a tensor, to be captured, and a change that it has to see."""
cases: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    cases[make.__name__] = make
    return make


class Plain:
    def factor(self) -> float:
        return 2.0


def setting(value: object, name: str, new: object) -> Callable[[], object]:
    return lambda: setattr(value, name, new)


@case
def a_method_of_one_object() -> Case:
    value = Plain()
    return lambda x: x * value.factor(), setting(value, "factor", lambda: 5.0)


@case
def a_method_of_a_subclass() -> Case:
    class Below(Plain):
        pass

    value = Below()
    return lambda x: x * value.factor(), setting(Below, "factor", lambda self: 5.0)


@case
def a_special_method() -> Case:
    class Called(Plain):
        pass

    value = Called()
    return (
        lambda x: x * (5.0 if callable(value) else 2.0),
        setting(Called, "__call__", lambda self: 5.0),
    )


@case
def hasattr_of_an_object() -> Case:
    value: Any = Plain()
    return lambda x: x * (5.0 if hasattr(value, "other") else 2.0), setting(value, "other", 1)


@case
def getattr_with_a_default() -> Case:
    value: Any = Plain()
    return lambda x: x * getattr(value, "other", 2.0), setting(value, "other", 5.0)


@case
def none_where_nothing_was() -> Case:
    value: Any = Plain()
    return (
        lambda x: x * (5.0 if getattr(value, "other", 1) is None else 2.0),
        setting(value, "other", None),
    )


@case
def nothing_where_none_was() -> Case:
    value: Any = types.SimpleNamespace(other=None)
    return (
        lambda x: x * (2.0 if getattr(value, "other", 1) is None else 5.0),
        lambda: delattr(value, "other"),
    )


@case
def an_error_that_is_caught() -> Case:
    value: Any = Plain()

    def run(x: Tensor) -> object:
        try:
            return x * value.other
        except AttributeError:
            return x * 2

    return run, setting(value, "other", 5.0)


@case
def an_empty_slot() -> Case:
    class Slotted:
        __slots__ = ("other",)

    value: Any = Slotted()
    return lambda x: x * getattr(value, "other", 2.0), setting(value, "other", 5.0)


@case
def a_private_slot() -> Case:
    class Slotted:
        __slots__ = ("__factor",)

        def __init__(self) -> None:
            self.__factor = 2.0

        def run(self, x: Tensor) -> Tensor:
            return x * self.__factor

        def change(self) -> None:
            self.__factor = 5.0

    value = Slotted()
    return value.run, value.change


@case
def a_slot_named_by_a_keyword() -> Case:
    class Slotted:
        __slots__ = ("class",)

    value: Any = Slotted()
    setattr(value, "class", 2.0)
    return lambda x: x * getattr(value, "class"), setting(value, "class", 5.0)


@case
def an_attribute_that_is_no_identifier() -> Case:
    value: Any = Plain()
    setattr(value, "a-b", 2.0)
    return lambda x: x * getattr(value, "a-b"), setting(value, "a-b", 5.0)


@case
def a_name_from_elsewhere() -> Case:
    value, name = types.SimpleNamespace(other=2.0), "ot" + "her"
    return lambda x: x * getattr(value, name), setting(value, "other", 5.0)


@case
def a_name_from_elsewhere_of_a_class() -> Case:
    kind, name = type("Kind", (), {}), "ot" + "her"
    value = kind()
    return lambda x: x * getattr(value, name, 2.0), setting(kind, "other", 5.0)


@case
def an_attrgetter() -> Case:
    value, get = types.SimpleNamespace(inner=types.SimpleNamespace(other=2.0)), "inner.other"
    getter = operator.attrgetter(get)
    return lambda x: x * getter(value), setting(value.inner, "other", 5.0)


@case
def a_pattern() -> Case:
    value = types.SimpleNamespace(other=2.0)

    def run(x: Tensor) -> Tensor:
        match value:
            case types.SimpleNamespace(other=2.0):
                return x * 2
        return x * 5

    return run, setting(value, "other", 5.0)


@case
def an_attribute_of_a_function() -> Case:
    def inner(x: Tensor) -> Tensor:
        return x * getattr(inner, "factor", 2.0)

    return inner, setting(inner, "factor", 5.0)


@case
def defaults_of_a_function() -> Case:
    def inner(*factors: float) -> float:
        return sum(factors) or 2.0

    def other(factor: float = 5.0) -> float:
        return factor

    def change() -> None:
        inner.__code__, inner.__defaults__ = other.__code__, other.__defaults__

    return lambda x: x * inner(), change


@case
def a_global_that_hides_a_builtin() -> Case:
    scope: dict[str, Any] = {"__name__": "program"}
    exec("def run(x): return x * abs(-2.0)", scope)
    return scope["run"], lambda: scope.update(abs=lambda _: 5.0)


def in_a_program(body: str, change: str = "k = 5.0") -> Callable[[], Case]:
    def make() -> Case:
        lines = (
            "import sys\nfrom types import SimpleNamespace\nk, s = 2.0, SimpleNamespace(k=2.0)\n"
        )
        module = sys.modules["a_program"] = types.ModuleType("a_program")
        exec(f"{lines}def run(x):\n    return x * {body}", vars(module))
        return vars(module)["run"], lambda: exec(change, vars(module))

    return make


for name, text in {
    "eval": 'eval("k")', "globals": 'globals()["k"]',
    "exec": '(d := {}, exec("r = k", globals(), d), d["r"])[2]',
    "globals_of_a_function": 'run.__globals__["k"]',
    "globals_of_a_frame": 'sys._getframe().f_globals["k"]',
    "sys_modules": "sys.modules[__name__].k", "dunder_import": '__import__("a_program").k',
    "import_module": '__import__("importlib").import_module("a_program").k',
}.items():  # fmt: skip
    cases[f"a_name_in_a_text_by_{name}"] = in_a_program(text)
cases["an_attribute_in_a_text"] = in_a_program('eval("s.k")', "s.k = 5.0")
cases["a_global_that_a_text_finds_later"] = in_a_program(
    'globals().get("later", 2.0)', "later = 5.0"
)
cases["a_text_that_is_a_value"] = in_a_program("eval(t if 't' in globals() else 'k')", "t = '5.0'")


@case
def a_builtin_that_is_replaced() -> Case:
    scope: dict[str, Any] = {"__builtins__": {"abs": abs}}
    exec("def run(x): return x * abs(-2.0)", scope)
    return scope["run"], lambda: scope["__builtins__"].update(abs=lambda _: 5.0)


@case
def a_name_that_becomes_a_builtin() -> Case:
    scope: dict[str, Any] = {"__builtins__": {"NameError": NameError}}
    text = "def run(x):\n    try: return x * later\n    except NameError: return x * 2.0"
    exec(text, scope)
    return scope["run"], lambda: scope["__builtins__"].update(later=5.0)


def put_module(name: str, factor: float) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module)["factor"] = factor
    return module


@case
def a_module_that_is_replaced() -> Case:
    put_module("a_module", 2.0)

    def run(x: Tensor) -> Tensor:
        import a_module  # type: ignore[import-not-found]  # noqa: PLC0415

        result: Tensor = x * a_module.factor
        return result

    return run, lambda: put_module("a_module", 5.0)


@case
def a_name_of_a_module_that_is_replaced() -> Case:
    put_module("a_module", 2.0)

    def run(x: Tensor) -> Tensor:
        from a_module import factor  # noqa: PLC0415

        result: Tensor = x * factor
        return result

    return run, lambda: put_module("a_module", 5.0)


def relative_import(statement: str, change: Callable[[Any], object]) -> Callable[[], Case]:
    def make() -> Case:
        package = put_module("a_package", 2.0)
        vars(package).update(__path__=[], within=put_module("a_package.within", 2.0))
        scope: dict[str, Any] = {"__name__": "a_package.code", "__package__": "a_package"}
        exec(f"def run(x):\n    {statement}\n    return x * factor", scope)
        return scope["run"], lambda: change(package)

    return make


cases["a_module_of_a_package"] = relative_import(
    "from .within import factor", lambda _: put_module("a_package.within", 5.0)
)
cases["an_attribute_of_a_package"] = relative_import(
    "from . import factor", lambda package: setattr(package, "factor", 5.0)
)


@case
def an_environment_variable_by_a_function() -> Case:
    os.environ["A_FACTOR"] = "2"
    return lambda x: x * float(getenv("A_FACTOR", "2")), lambda: os.environ.update(A_FACTOR="5")


def of_tensor(name: str, new: Callable[[Any], Any], text: str) -> Callable[[], Case]:
    def make() -> Case:
        return eval(text), lambda: replaced.setattr(
            Tensor, name, new(getattr(Tensor, name, None)), raising=False
        )

    return make


replaced = pytest.MonkeyPatch()
cases["a_method_of_tensor"] = of_tensor(
    "relu", lambda former: lambda x: former(x) * 2.5, "lambda x: (x * 2).relu()"
)
cases["an_operator_of_tensor"] = of_tensor(
    "__mul__", lambda former: lambda x, y: former(x, y * 2.5), "lambda x: x * 2"
)
cases["an_attribute_that_tensor_gets"] = of_tensor(
    "later", lambda _: 5.0, "lambda x: x * getattr(x, 'later', 2.0)"
)


def told_equal(base: type, one: Any, other: Any) -> Callable[[], Case]:
    def make() -> Case:
        kind = type("Equal", (base,), {"__eq__": lambda *_: True, "__hash__": base.__hash__})
        value = types.SimpleNamespace(factor=kind(one))
        return lambda x: x * float(value.factor), setting(value, "factor", kind(other))

    return make


cases["a_text_that_says_it_is_equal"] = told_equal(str, "2", "5")
cases["an_int_that_says_it_is_equal"] = told_equal(int, 2, 5)
cases["a_float_that_says_it_is_equal"] = told_equal(float, 2.0, 5.0)


@case
def what_a_module_computes() -> Case:
    module = types.ModuleType("a_module")
    exec("table = {'factor': 2.0}\ndef __getattr__(name): return table[name]", vars(module))
    return lambda x: x * module.factor, lambda: vars(module)["table"].update(factor=5.0)


def of_subclass(base: type, *arguments: Any) -> Callable[[], Case]:
    def make() -> Case:
        value = type("Below", (base,), {})(*arguments)
        value.factor = 2.0
        return lambda x: x * value.factor, setting(value, "factor", 5.0)

    return make


for base, arguments in (
    (dict, ()), (list, ()), (tuple, ()), (set, ()), (float, (1.0,)), (str, ("a",)), (int, (1,)),
    (bytearray, ()), (numpy.ndarray, ((2,),)),
):  # fmt: skip
    cases[f"an_attribute_of_a_{base.__name__}"] = of_subclass(base, *arguments)


@case
def an_attribute_of_a_tensor() -> Case:
    value: Any = type("Below", (Tensor,), {})([1.0]).realize()
    value.factor = 2.0
    return lambda x: x * value.factor, setting(value, "factor", 5.0)


@case
def a_method_of_an_enum() -> Case:
    class Kind(enum.Enum):
        ONE = 1

        def factor(self) -> float:
            return 2.0

    value = Kind.ONE
    return lambda x: x * value.factor(), setting(Kind, "factor", lambda self: 5.0)


@case
def what_is_in_an_array_of_objects() -> Case:
    value = numpy.array([1.0, [2.0]], object)
    return lambda x: x * value[1][0], lambda: value[1].__setitem__(0, 5.0)


@case
def a_field_of_an_array_of_records() -> Case:
    value = numpy.array([(2.0, 1)], [("a", "f8"), ("b", "i4")])
    return lambda x: x * float(value["a"][0]), lambda: value.__setitem__(0, (5.0, 1))


@case
def an_array_of_the_standard_library() -> Case:
    value = array.array("d", [2.0])
    return lambda x: x * value[0], lambda: value.__setitem__(0, 5.0)


@case
def a_memoryview() -> Case:
    value = memoryview(bytearray(b"\x02"))
    return lambda x: x * value[0], lambda: value.__setitem__(0, 5)


@case
def a_number_of_ctypes() -> Case:
    value = ctypes.c_int(2)
    return lambda x: x * value.value, setting(value, "value", 5)


@case
def a_file_in_memory() -> Case:
    value = io.BytesIO(b"\x02")
    return lambda x: x * value.getvalue()[0], lambda: value.write(b"\x05")


@case
def a_read_only_view_of_a_dict() -> Case:
    inner = {"factor": 2.0}
    value = types.MappingProxyType(inner)
    return lambda x: x * value["factor"], lambda: inner.update(factor=5.0)


@case
def a_factory_of_missing_keys() -> Case:
    value = collections.defaultdict[str, float](lambda: 2.0)
    return lambda x: x * (value["k"], value.pop("k"))[0], setting(
        value, "default_factory", lambda: 5.0
    )


@case
def a_factory_that_is_called() -> Case:
    class Below(collections.defaultdict[str, float]):
        pass

    value: Any = Below(lambda: 2.0)
    return lambda x: x * value.default_factory(), setting(value, "default_factory", lambda: 5.0)


@case
def a_dict_written_in_python() -> Case:
    value = collections.UserDict(factor=2.0)
    return lambda x: x * value["factor"], lambda: value.update(factor=5.0)


@case
def a_subclass_of_a_list_written_in_python() -> Case:
    class Below(collections.UserList[float]):
        pass

    value = Below([2.0])
    return lambda x: x * value[0], lambda: value.__setitem__(0, 5.0)


@case
def a_chain_of_dicts() -> Case:
    value = collections.ChainMap({"other": 3.0}, {"factor": 2.0})
    return lambda x: x * value["factor"], lambda: value.maps.insert(0, {"factor": 5.0})


@case
def parsed_arguments() -> Case:
    value = argparse.Namespace(factor=2.0)
    return lambda x: x * value.factor, setting(value, "factor", 5.0)


@case
def a_parsed_file() -> Case:
    value = configparser.ConfigParser()
    value.read_dict({"model": {"factor": "2"}})
    return lambda x: x * float(value["model"]["factor"]), lambda: value.set("model", "factor", "5")


@case
def a_template() -> Case:
    value = string.Template("2")
    return lambda x: x * float(value.substitute()), setting(value, "template", "5")


@case
def an_event() -> Case:
    value = threading.Event()
    return lambda x: x * (5.0 if value.is_set() else 2.0), value.set


@case
def a_queue() -> Case:
    value: queue.Queue[int] = queue.Queue()
    value.put(1)
    value.put(1)
    return lambda x: x * value.qsize(), lambda: [*map(value.put, [1] * 3)]


@pytest.fixture
def undoing() -> Iterator[None]:
    """Undo what a case has done to Tensor, modules and the environment."""
    former = dict(sys.modules)
    yield
    replaced.undo()
    os.environ.pop("A_FACTOR", None)
    for name in sys.modules.keys() - former:
        del sys.modules[name]


LOOKED_UP = [
    f"a_name_in_a_text_by_{how}" for how in ("sys_modules", "dunder_import", "import_module")
]
"""Cases that may find any module: all that other tests have brought in would be compared, too."""


@pytest.mark.parametrize("name", [name for name in cases if name not in LOOKED_UP])
def test_a_change_is_seen(name: str, undoing: None) -> None:
    see_a_change(name)


@pytest.mark.parametrize(
    "call", [*(f"see_a_change({name!r})" for name in LOOKED_UP), "import_while_looking()"]
)
def test_any_module_may_be_looked_up(call: str) -> None:
    code = f"import {__name__} as here; here.{call}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def see_a_change(name: str) -> None:
    """Call a function until it is replayed, then after a change."""
    function, change = cases[name]()
    step = TinyJit(function)
    x = Tensor([1.0]).realize()
    before = [step(x).tolist() for _ in range(4)]
    assert before == [[2.0]] * 4
    assert step.captured is not None

    change()

    assert [step(x).tolist() for _ in range(4)] == [[5.0]] * 4


def import_while_looking() -> None:
    """Look through modules of which one imports another."""

    class Importing(str):
        __slots__ = ()

        def partition(self, sep: str, /) -> tuple[str, str, str]:
            sys.modules[f"imported_{len(sys.modules)}"] = types.ModuleType("imported")
            return str.partition(self, sep)

    sys.modules[Importing("importing")] = types.ModuleType("importing")
    step = TinyJit(lambda x: (x * len(sys.modules["importing"].__name__)).realize())

    assert [step(Tensor([1.0])).tolist() for _ in range(3)] == [[9.0]] * 3


def test_names_that_no_code_mentions_may_come_and_go() -> None:
    value: Any = Plain()
    step = TinyJit(lambda x: x * value.factor() * getattr(value, "other", 1.0))
    for number in range(6):
        setattr(value, f"unread{number}", number)
        step(Tensor([1.0]).realize())

    assert len(step.captures) == 1


@pytest.mark.parametrize("kind", ["class", "object", "class of a class"])
def test_a_class_whose_module_is_no_text_is_looked_into(kind: str) -> None:
    class Odd(type if kind == "class of a class" else object):  # type: ignore[misc]
        factor = 2.0

    Odd.__module__ = property(lambda self: "made")  # type: ignore[assignment]  # as in C
    found: Any = Odd if kind == "class" else Odd() if kind == "object" else Odd("Made", (), {})
    step = TinyJit(lambda x: (x * found.factor).realize())
    x = Tensor([1.0]).realize()
    assert [step(x).tolist() for _ in range(4)] == [[2.0]] * 4

    Odd.factor = 5.0

    assert step(x).tolist() == [5.0]


@dataclass
class Batch:
    x: Tensor


class Named(dict[str, Tensor]):
    pass


class Number(float):
    pass


@pytest.mark.parametrize("kind", ["dict", "dataclass", "float"])
def test_attributes_of_arguments_are_compared(kind: str) -> None:
    def given(factor: float) -> Any:
        x = Tensor([1.0]).realize()
        value: Any = {"dict": Named(x=x), "dataclass": Batch(x), "float": Number(1.0)}[kind]
        value.factor = factor
        return value

    step = TinyJit(lambda x, value: x * value.factor)
    x = Tensor([1.0]).realize()
    seen = [step(x, given(factor)).item() for factor in (2.0, 2.0, 2.0, 2.0, 5.0, 5.0, 5.0)]

    assert seen == [2.0] * 4 + [5.0] * 3


def test_a_large_buffer_is_refused_where_data_of_the_host_is_read() -> None:
    value = array.array("d", [2.0] * 1000)
    step = TinyJit(lambda x: x * Tensor([value[0]]))
    step(Tensor([1.0]))

    with pytest.raises(JitError, match="large"):
        step(Tensor([1.0]))
