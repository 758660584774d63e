"""Rules that observers add before a pass of lowering: who is asked, what programs are kept by."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pluggy
import pytest

from tinycore import Context, Device, Tensor
from tinycore.device.hooks import hooks, tinycore_rewrite_rules
from tinycore.engine.program_cache import program_key
from tinycore.engine.rule_hooks import HOOK_STAGES, hooked_rules
from tinycore.errors import PluginError
from tinycore.lower.pipeline import KERNEL_PIPELINE
from tinycore.schedule import ScheduleItem
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import RuleSet, node

listen = pluggy.HookimplMarker("tinycore")

shifts = RuleSet("shifts")


@shifts.rule(node(Op.FDIV, name="root"))
def quotient_of_two(root: UOp) -> UOp | None:
    """x / 2 == x * 0.5, exactly."""
    x, y = root.src
    return x * 0.5 if y.op is Op.CONST and y.arg == 2.0 else None


wrong = RuleSet("wrong")


@wrong.rule(node(Op.EXP2, name="root"))
def power_that_is_none(root: UOp) -> UOp:
    """2**x == x + 100, which no device believes: seen in the result, so the rule has run."""
    return root.src[0] + 100.0


class Adds:
    """Adds a rule at one stage for one renderer."""

    def __init__(self, rules: Any, stage: str = "lower", renderer: str = "PYTHON") -> None:
        self.rules, self.stage, self.renderer = rules, stage, renderer
        self.asked: list[tuple[str, str]] = []

    @listen
    def tinycore_rewrite_rules(self, stage: str, target: str) -> Any:
        self.asked.append((stage, target))
        ours = target.partition(":")[0] == self.renderer
        return self.rules if ours and stage == self.stage else None


@contextmanager
def listening(observer: Adds) -> Iterator[Adds]:
    hooks.register(observer)
    try:
        yield observer
    finally:
        hooks.unregister(observer)


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[None]:
    with Context(DEV="PYTHON", CACHE_DIR=str(tmp_path), VERIFY=0):
        yield


def powers() -> list[float]:
    found: list[float] = Tensor([1.0, 3.0]).realize().exp2().tolist()
    return found


def item() -> ScheduleItem:
    (item,) = Tensor([1.0, 3.0]).realize().exp2().schedule()
    return item


def test_the_stages_are_the_passes() -> None:
    assert tuple(step.name for step in KERNEL_PIPELINE) == HOOK_STAGES


def test_the_documentation_of_the_hook_names_every_stage() -> None:
    text = inspect.getdoc(tinycore_rewrite_rules) or ""
    (sentence,) = re.findall(r"run to their end: (.+?)\.", text, re.DOTALL)

    assert tuple(re.findall(r'"(\w+)"', sentence)) == HOOK_STAGES


@pytest.mark.parametrize("stage", HOOK_STAGES)
def test_rules_run_before_a_pass_while_their_observer_listens(stage: str) -> None:
    assert powers() == [2.0, 8.0]
    with listening(Adds(wrong, stage)):
        assert powers() == [101.0, 103.0]
    assert powers() == [2.0, 8.0]


def test_another_renderer_is_left_alone() -> None:
    with listening(Adds(wrong, renderer="MARS")):
        assert powers() == [2.0, 8.0]


def test_it_is_asked_once_per_target() -> None:
    with listening(Adds(shifts)) as observer:
        first, second = Tensor([1.0]).realize() / 2, Tensor([1.0, 2.0]).realize() / 2
        assert first.tolist() == [0.5]
        assert second.tolist() == [0.5, 1.0]

    target = f"PYTHON:{Device['PYTHON'].toolchain.arch}"
    assert observer.asked == [(stage, target) for stage in HOOK_STAGES]


def test_several_observers_add_to_one_stage() -> None:
    with listening(Adds(wrong)), listening(Adds(shifts)):
        added = hooked_rules(Device["PYTHON"].toolchain)

    names = [rule.name for rule in added["lower"]]
    assert sorted(names) == ["power_that_is_none", "quotient_of_two"]


def test_programs_under_added_rules_are_not_kept_on_disk() -> None:
    """A rule may be of any code: of a closure, or typed at a prompt, and edited there."""
    toolchain = Device["PYTHON"].toolchain
    with listening(Adds(wrong)):
        assert program_key(item().ast, toolchain) is None
        assert powers() == [101.0, 103.0]

    assert program_key(item().ast, toolchain) is not None


def test_what_is_no_set_of_rules_is_refused() -> None:
    with (
        listening(Adds([quotient_of_two])),
        pytest.raises(PluginError, match=r"tinycore_rewrite_rules hook returned .* for stage"),
    ):
        hooked_rules(Device["PYTHON"].toolchain)
