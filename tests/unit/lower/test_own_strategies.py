"""Strategies and layouts that a plugin brings: `Limits.strategies` and `Limits.layout`."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product as product_of
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.lower.test_stage import AVX2, product
from tiny_testing.accelerator.device import LIMITS
from tinycore import Device, Tensor
from tinycore._stamp import content_of, stamp_of_modules
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.config import Context
from tinycore.dtype import dtypes
from tinycore.engine.program_cache import program_key
from tinycore.errors import PluginError, VerifyError
from tinycore.lower.plan import drafted, plan_for
from tinycore.plugin import Toolchain, deferred
from tinycore.render.base import Limits
from tinycore.schedule.disk import facts_of
from tinycore.schedule.limits import cut_for
from tinycore.tiling import (
    Bind,
    Cost,
    Draft,
    KernelFacts,
    Operand,
    ProductLoops,
    Proposal,
    own_loop,
)
from tinycore.uop.instruction import Instruction
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.pattern import RuleSet, node


def unroll_innermost(draft: Draft) -> bool | None:
    """Unroll the innermost loop of the sum."""
    draft.do(Bind(draft.facts.reduced[-1].arg.number, AxisKind.UNROLL))
    return None


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A dear plan for each sum."""
    assert limits.strategies
    if facts.reduced:
        yield Proposal("toy", None, Cost(1e9), unroll_innermost)


def propose_in_vain(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A plan that turns out impossible."""
    assert limits.strategies
    if facts.reduced:
        yield Proposal("in vain", None, Cost(0.0), lambda _draft: False)


def propose_too_many(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A plan with more threads than a group has."""
    assert limits.strategies
    steps = [Bind(r.arg.number, AxisKind.BLOCK) for r in facts.outputs]
    yield Proposal("too many", None, Cost(0.0), lambda draft: draft.do(*steps))


def copy_first(
    operands: list[Operand], loops: ProductLoops, work: int, limits: Limits
) -> Mapping[UOp, UOp]:
    """A copy of the first operand along its own side of a product."""
    assert work > 0
    loop = own_loop(operands[0], operands, loops.sides, 1)
    return {} if loop is None else {operands[0].top: operands[0].copied_along(loop)}


OWN = deferred(f"{__name__}:propose")
IN_VAIN = deferred(f"{__name__}:propose_in_vain")
TOO_MANY = deferred(f"{__name__}:propose_too_many")
LAYOUT = deferred(f"{__name__}:copy_first")


@pytest.mark.parametrize("limits", [LIMITS, AVX2], ids=["grid", "loops"])
def test_what_a_plugin_proposes_goes_first_whatever_it_costs(limits: Limits) -> None:
    kernel = product(8, 8, 8)
    (loop,) = KernelFacts(kernel, (kernel,)).reduced

    own = plan_for(kernel, replace(limits, strategies=(OWN,)))

    assert Bind(loop.arg.number, AxisKind.UNROLL) in own
    assert own != plan_for(kernel, limits)


@pytest.mark.parametrize("limits", [LIMITS, AVX2], ids=["grid", "loops"])
def test_the_cores_are_tried_where_none_of_a_plugin_is_possible(limits: Limits) -> None:
    kernel = product(8, 8, 8)

    assert plan_for(kernel, replace(limits, strategies=(IN_VAIN,))) == plan_for(kernel, limits)


def test_a_plan_that_no_device_can_launch_is_told_of() -> None:
    limits = replace(LIMITS, strategies=(TOO_MANY,), block_threads=32)

    with Context(VERIFY=1), pytest.raises(VerifyError, match=r"64 threads .* too many for a group"):
        plan_for(product(8, 8, 8), limits)


def test_a_search_tries_them_too() -> None:
    kernel = product(8, 8, 8)
    limits = replace(LIMITS, strategies=(OWN,))

    assert drafted(kernel, limits, {"proposal 0": 1}).steps == drafted(kernel, LIMITS).steps


def test_a_layout_is_the_plugins() -> None:
    def stored(limits: Limits) -> list[int]:
        x = Tensor.empty(6, 8, device="PYTHON").realize()
        y = Tensor.empty(8, 5, device="PYTHON").realize()
        with cut_for(limits):
            return [item.bufs[0].size for item in (x @ y).schedule()]

    assert stored(LIMITS) == [30]
    assert stored(replace(LIMITS, matrix=(), layout=LAYOUT)) == [48, 30]


def test_deferred_functions_are_equal_by_their_reference() -> None:
    limits = replace(AVX2, strategies=(OWN,), layout=LAYOUT)

    assert limits == pickle.loads(pickle.dumps(limits))
    assert hash(limits) == hash(replace(AVX2, strategies=(OWN,), layout=LAYOUT))
    assert limits != replace(limits, strategies=(IN_VAIN,))


@pytest.mark.parametrize(
    ("field", "wrong"), [("strategies", (propose,)), ("strategies", OWN), ("layout", copy_first)]
)
def test_a_function_that_is_not_deferred_is_refused(field: str, wrong: object) -> None:
    with pytest.raises(PluginError, match=f"Limits: {field} must be .*deferred"):
        replace(LIMITS, **{field: wrong})  # type: ignore[arg-type]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module without a file, as that of an interactive session."""
    module = ModuleType("typed_in")
    module.propose, module.copy = propose, copy_first  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "typed_in", module)
    monkeypatch.setattr(propose, "__module__", "typed_in")
    monkeypatch.setattr(copy_first, "__module__", "typed_in")
    return "typed_in"


def test_programs_are_kept_on_disk_by_the_code_of_strategies(typed: str) -> None:
    toolchain = Device["PYTHON"].toolchain
    limits = replace(toolchain.renderer.limits, strategies=(IN_VAIN,))
    kernel = product(4, 4, 4)

    def key(limits: Limits) -> str | None:
        renderer = PythonRenderer(limits)
        return program_key(kernel, Toolchain("PYTHON", "", renderer, toolchain.compiler))

    assert key(limits) not in (None, key(toolchain.renderer.limits))
    assert key(replace(limits, strategies=(deferred(f"{typed}:propose"),))) is None


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders with a module each: `parted` of partial functions, and `parts` of what they call."""
    for name, text in (
        ("parts", "def given(root=None): pass"),
        ("parted", "from functools import partial\nfrom parts import given\nown = partial(given)"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(text, "utf-8")
        monkeypatch.syspath_prepend(tmp_path / name)
        importlib.import_module(name)
    yield tmp_path
    del sys.modules["parts"], sys.modules["parted"]


def edit(file: Path) -> None:
    """Change a module, as between two processes."""
    file.write_text("# edited", "utf-8")
    stamp_of_modules.cache_clear()
    content_of.cache_clear()


RULES = RuleSet("rules")
RULES.rule(node(Op.SQRT))(lambda root: None)


@pytest.mark.parametrize(
    ("by", "edited"), [*product_of(("strategy", "layout"), ("parted", "parts")), ("rule", "parts")]
)
def test_keys_follow_code_in_each_folder(
    by: str, edited: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, toolchain = deferred("parted:own"), Device["PYTHON"].toolchain
    limits = replace(LIMITS, layout=own)
    monkeypatch.setattr("tinycore.schedule.disk.limits_of", lambda _device: limits)
    renderer = PythonRenderer(replace(LIMITS, strategies=(own,) if by == "strategy" else ()))
    if by == "rule":
        rules = RuleSet("rules")
        rules.rule(node(Op.SQRT, name="root"))(own.resolve())
        monkeypatch.setattr(PythonRenderer, "rules", {"tidy": rules})

    def key() -> str | None:
        if by == "layout":
            return facts_of("PYTHON")
        return program_key(product(4, 4, 4), replace(toolchain, renderer=renderer))

    before = key()
    assert before == key() is not None
    edit(folders / edited / f"{edited}.py")

    assert key() not in (before, None)


def test_keys_follow_rules_and_templates_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    instruction = Instruction("x", (dtypes.float32,), dtypes.float32, "m:f")
    toolchain = Device["PYTHON"].toolchain

    def key(field: str, value: object) -> str | None:
        monkeypatch.setattr(PythonRenderer, field, value)
        return program_key(product(4, 4, 4), toolchain)

    first, second = (key("instructions", {instruction: text}) for text in ("a({0})", "b({0})"))
    found = [key("rules", {stage: RULES}) for stage in ("tidy", "lower")]

    assert len({first, second, *found, None}) == 5


def test_schedules_are_kept_on_disk_by_the_code_of_layouts(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(limits: Limits) -> str:
        monkeypatch.setattr("tinycore.schedule.disk.limits_of", lambda _device: limits)
        return facts_of("PYTHON")

    limits = replace(LIMITS, layout=deferred(f"{__name__}:cut_for"))

    assert facts(limits).removeprefix(f"PYTHON  {limits!r} ") != ""
    with pytest.raises(PluginError, match="has no file"):
        facts(replace(LIMITS, layout=deferred(f"{typed}:copy")))
