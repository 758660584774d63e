"""Two vendors for whatever the core knows of hardware: fields of `Limits`, and ops of kernels.

A capability that one vendor has is that vendor's: its plugin brings the pass and the instruction.
What the plugins state is read from their source. Processors count as two vendors, since x86 and
ARM share a plugin. There are no exceptions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Final

from tinycore.render.base import Limits
from tinycore.uop.op import Op

ROOT: Final = Path(__file__).resolve().parent.parent
VENDORS: Final = {"tiny_cpu": 2}
"""Vendors that a plugin stands for, where it is not one."""

SET_BY_THE_CORE: Final = frozenset({"buffers_aligned"})
"""Fields that the engine sets for a launch, and no plugin for a device."""
SEAMS: Final = frozenset({"strategies", "layout", "fills", "copies"})
"""Fields by which a plugin brings what its hardware alone has: the core knows nothing of it."""
STATED_BY: Final = {
    Op.SPECIAL: ("Limits", "grid"),
    Op.DEFINE_LOCAL: ("Limits", "shared_bytes"),
    Op.BARRIER: ("Limits", "shared_bytes"),
    Op.PIXEL: ("Limits", "image"),
    Op.DOT: ("Limits", "pair_bytes"),
    Op.SHUFFLE: ("Limits", "shuffles"),
    Op.MATRIX: ("Limits", "matrix"),
}
"""Ops that kernels have on some devices: the class and the field by which a plugin asks for one."""
SEAM_OPS: Final = frozenset({Op.INSTRUCTION})
"""Ops that stand for what a plugin alone knows."""
EVERYWHERE: Final = """
    DEVICE UNIQUE BUFFER BUFFER_VIEW COPY MULTI ASSIGN KERNEL CUSTOM BIND
    CONTIGUOUS DETACH OWN CONTIGUOUS_BACKWARD CALL VALUE RESHAPE EXPAND PERMUTE PAD SHRINK FLIP
    SKEW UNSKEW REDUCE_AXIS SCAN_AXIS MERGE_AXIS GATHER SCATTER INSERT
    CONST ARANGE DEFINE_VAR CAST BITCAST NEG RECIPROCAL SQRT EXP2 LOG2 EXP LOG SIN TRUNC
    ADD SUB MUL FDIV IDIV MOD FLOORDIV FLOORMOD MAX MIN CMPLT CMPNE CMPEQ AND OR XOR SHL SHR
    THREEFRY WHERE MULACC DEFINE_GLOBAL DEFINE_REG INDEX LOAD STORE VECTORIZE EXTRACT
    RANGE REDUCE SCAN RECUR ITERATE STATE END AFTER GROUP SINK
""".split()
"""Ops that no device has to ask for. An op that is new here is in the kernels of every device."""


@cache
def backends() -> set[str]:
    """The plugins that bring a device; the test kit's, which claims everything, is not sold."""
    projects = ROOT.glob("plugins/*/pyproject.toml")
    return {p.parent.name for p in projects if '"tinycore.backends"' in p.read_text("utf-8")}


@cache
def stated() -> dict[tuple[str, str], set[str]]:
    """The plugins that give a field of a class, in its call or in `replace` of a value of it."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(ROOT.glob("plugins/*/src/**/*.py")):
        plugin = path.relative_to(ROOT).parts[1]
        if plugin not in backends():
            continue
        for owner, name in keywords(path.read_text("utf-8")):
            found.setdefault((owner, name), set()).add(plugin)
    return found


def keywords(source: str) -> Iterator[tuple[str, str]]:
    """Class and field of each keyword of a call; `replace(limits, x=1)` is one of Limits."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name == "replace" and node.args and "limits" in ast.unparse(node.args[0]).lower():
            name = "Limits"
        yield from ((name, keyword.arg) for keyword in node.keywords if keyword.arg)


def vendors(owner: str, name: str) -> int:
    """Number of vendors that state a field."""
    return sum(VENDORS.get(plugin, 1) for plugin in stated().get((owner, name), ()))


def test_each_field_of_limits_is_set_by_two_vendors() -> None:
    few = {
        field.name: ", ".join(stated().get(("Limits", field.name), ()))
        for field in fields(Limits)
        if field.name not in SET_BY_THE_CORE | SEAMS and vendors("Limits", field.name) < 2
    }

    assert not few, "a field that no other vendor sets belongs to a plugin"


def test_each_op_is_asked_for_by_two_vendors() -> None:
    few = {
        op: ", ".join(stated().get(origin, ()))
        for op, origin in STATED_BY.items()
        if vendors(*origin) < 2
    }

    assert not few, "an op that no other vendor asks for belongs to a plugin"


def test_each_op_is_asked_for_or_everywhere() -> None:
    known = {*EVERYWHERE, *(op.name for op in {*STATED_BY, *SEAM_OPS})}

    assert {op.name for op in Op} == known


def test_what_plugins_state_is_found() -> None:
    source = (
        "a = Limits(grid=x)\nb = replace(toolchain.limits, matrix=())\nc = render.Limits(image=1)"
    )

    assert set(keywords(source)) == {("Limits", "grid"), ("Limits", "matrix"), ("Limits", "image")}
