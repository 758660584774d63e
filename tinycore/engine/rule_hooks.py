"""Rewrite-rule hooks: rules of plugins for the passes of lowering.

Floor 4. The hook is `tinycore_rewrite_rules`; the stages are those of `lower.pipeline`. Programs
made with added rules are not cached on disk, where nothing says what code is behind a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from tinycore.device.hooks import hooks
from tinycore.device.protocols import Toolchain
from tinycore.errors import PluginError
from tinycore.uop.pattern import RuleSet

HOOK: Final = "tinycore_rewrite_rules"
HOOK_STAGES: Final = tuple(
    "expand gates group registers launch align images lower scalars tidy copies stream".split()
)
"""The passes of lowering, before which rules can be added."""
NO_RULES: Final[Mapping[str, RuleSet]] = {}


def hook_generation() -> int:
    """The version of the set of hooks, which changes with every registration; 0 without hooks."""
    return hooks.generation if hooks.active(HOOK) else 0


def hooked_rules(toolchain: Toolchain[Any]) -> Mapping[str, RuleSet]:
    """Rules added for a target, by stage.

    Raises PluginError when an observer returns something else.
    """
    now = hook_generation()
    return collect_rules(now, f"{toolchain.name}:{toolchain.arch}") if now else NO_RULES


@lru_cache(maxsize=64)
def collect_rules(_generation: int, target: str) -> Mapping[str, RuleSet]:
    """Ask all hooks for their rules; cached by the version of the set of hooks."""
    call = hooks.active(HOOK)
    found: dict[str, RuleSet] = {}
    if call is None:
        return found
    for stage in HOOK_STAGES:
        for rules in call(stage=stage, target=target):
            check_rules(rules, stage, target)
            found[stage] = found[stage] + rules if stage in found else rules
    return found


def check_rules(rules: object, stage: str, target: str) -> None:
    """Raise PluginError unless a hook returned a RuleSet."""
    if not isinstance(rules, RuleSet):
        raise PluginError(
            f"a {HOOK} hook returned {rules!r} for stage {stage!r} of {target}; it must return a "
            "tinycore.uop.pattern.RuleSet, or None"
        )
