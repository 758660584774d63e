"""The text form: what it looks like, that it parses back, and what it refuses."""

import math
from dataclasses import dataclass

import pytest

from tinycore.dtype import dtypes
from tinycore.errors import FileFormatError
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.parse import from_text, program_from_text
from tinycore.uop.text import argument_types, inline, register_argument, to_text

i = UOp.range(8, 0)
n = UOp.variable("n", 1, 9)


# --- printing


def test_one_line_per_node_sources_first() -> None:
    assert to_text(i * 4 + n) == (
        "%0 = CONST index [8]\n"
        "%1 = RANGE index [Axis((0,), AxisKind.LOOP)] (%0)\n"
        "%2 = CONST index [4]\n"
        "%3 = MUL index (%1, %2)\n"
        '%4 = DEFINE_VAR index [("n", 1, 9)]\n'
        "%5 = ADD index (%3, %4)\n"
    )


def test_str_of_a_node_is_its_text() -> None:
    assert str(n) == '%0 = DEFINE_VAR index [("n", 1, 9)]\n'


def test_program_keeps_its_order() -> None:
    program = (n, UOp.index(8), i)

    assert to_text(program).splitlines()[0] == '%0 = DEFINE_VAR index [("n", 1, 9)]'
    assert program_from_text(to_text(program)) == program


def test_program_with_sources_outside_of_it_says_what_it_is() -> None:
    program = (i + n, i, i)

    assert to_text(program).splitlines()[-1] == "return %3, %1, %1"
    assert program_from_text(to_text(program)) == program


def test_inline_is_an_expression() -> None:
    assert inline((i * 4 + n).cast(dtypes.int32)) == "int32(((r0 * 4) + n))"
    assert inline(i * 4 + n, depth=1) == "(... + n)"


# --- back again


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 0.1, 1e22, 1e-320, math.inf, -math.inf, math.nan], ids=str
)
def test_floats_come_back(value: float) -> None:
    constant = UOp(Op.CONST, dtypes.float64, (), value)

    assert from_text(to_text(constant)) is constant


@pytest.mark.parametrize(
    "argument",
    [
        None,
        True,
        -(1 << 70),
        'quotes " and # and\n lines é',
        (),
        (1,),
        (1, (2, ("deep", None)), False),
        Skew(0, 1, 2, 3, 4),
        Op.ADD,
        (Op.MAX, (0, 2)),
        AxisKind.REDUCE,
        dtypes.float16,
        dtypes.float32.vec(4).ptr(8, "local"),
        (UOp.index(3), 4),
    ],
    ids=repr,
)
def test_arguments_come_back(argument: object) -> None:
    node = UOp(Op.GROUP, dtypes.void, (n,), argument)

    assert from_text(to_text(node)) is node


@pytest.mark.parametrize(
    "dtype",
    [
        dtypes.float32.vec(4),
        dtypes.int8.ptr(100),
        dtypes.int8.ptr(1, "register"),
        dtypes.bool.vec(8).ptr(4, "local"),
    ],
    ids=repr,
)
def test_dtypes_come_back(dtype: object) -> None:
    node = UOp(Op.DEFINE_GLOBAL, dtype, (), 0)  # type: ignore[arg-type]

    assert from_text(to_text(node)) is node


def test_deep_graph_needs_no_recursion() -> None:
    deep = i
    for _ in range(5000):
        deep = deep + n

    assert from_text(to_text(deep)) is deep


def test_registered_arguments_come_back() -> None:
    @dataclass(frozen=True)
    class Recipe:
        name: str
        body: UOp

    register_argument(Recipe, lambda r: (r.name, r.body))
    try:
        node = UOp(Op.KERNEL, dtypes.void, (), Recipe("soup", i + n))
        text = to_text(node)

        assert text.splitlines()[-1] == '%4 = KERNEL void [Recipe("soup", %3)]'
        assert from_text(text) is node
    finally:
        del argument_types["Recipe"]


def test_comments_and_blank_lines_are_skipped() -> None:
    text = "\n# a comment\n%0 = CONST index [3]  # another\n\n"

    assert from_text(text) is UOp.index(3)


# --- refusals


def test_unregistered_argument_cannot_be_printed() -> None:
    with pytest.raises(FileFormatError, match=r"type 'object' has no text form"):
        to_text(UOp(Op.GROUP, dtypes.void, (), object()))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("%1 = ADD", "the line ends where a dtype should be"),
        ("%1 = ADD index (%0, %7)", "'%7' is no node of an earlier line"),
        ("%1 = ADD index (%0)", "ADD takes 2 sources, here are 1"),
        ("%1 = PLUS index (%0, %0)", "no Op is named 'PLUS'"),
        ("%1 = CONST integer [1]", "no dtype is named 'integer'"),
        ("%0 = CONST index [1]", "%0 is defined twice"),
        ("x = CONST index [1]", "a node such as %0 should be where 'x' is"),
        ("%1 = CONST index [1] %0", "unexpected '%0'"),
        ("%1 = CONST index [open('x')]", """unexpected "'\""""),
        ("%1 = CONST index [open(1)]", "no argument type is named 'open'"),
        ("%1 = CONST index [((1]", "',' should be where ']' is"),
        ("%1 = GROUP void [" + "(" * 70, "an argument nested deeper than 64"),
        ("%1 = GROUP void [Axis(1)]", "Axis cannot be made of 1 such fields"),
        ("%1 = GROUP void [Op.NONE]", "no Op is named 'NONE'"),
        ('%1 = GROUP void ["\\q"]', '"\\q" is no string'),
        ("%1 = CONST index [" + "9" * 5000 + "]", "is no number that fits"),
        ("%1 = CONST float32.vec(0) [1]", "vec(0) of float32 is no dtype"),
        ("%1 = CONST float32.ptr(1, heap) [1]", "no memory space is named 'heap'"),
        ("%1 = CONST index $", "unexpected '$'"),
        ("return %0, %3", "'%3' is no node of an earlier line"),
    ],
)
def test_wrong_line_is_named(line: str, problem: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        from_text(f"%0 = CONST index [2]\n{line}")

    assert str(caught.value).startswith("graph text, line 2: ")
    assert problem in str(caught.value)


def test_nothing_follows_return() -> None:
    with pytest.raises(FileFormatError, match="line 3: nothing may follow `return`"):
        from_text("%0 = CONST index [2]\nreturn %0\n%1 = CONST index [3]")


def test_empty_text_is_no_graph() -> None:
    with pytest.raises(FileFormatError, match="there is no node in it"):
        from_text("\n")
