"""Rules that observers add to lowering: asked for once per target, and part of what programs are
kept by.

Floor 4. The hook is `tinycore_rewrite_rules`; the stages are those of `lower.pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from tinycore.device.hooks import hooks
from tinycore.device.protocols import Toolchain
from tinycore.errors import PluginError
from tinycore.uop.pattern import RuleSet

__all__ = ["HOOK", "STAGES", "added_rules", "generation", "modules_of", "text_of"]

HOOK: Final = "tinycore_rewrite_rules"
STAGES: Final = (
    *("expand", "gates", "group", "registers", "launch", "align", "images", "lower", "scalars"),
    *("tidy", "stream"),
)
"""The passes of lowering, before which rules can be added."""
NOTHING: Final[Mapping[str, RuleSet]] = {}


def generation() -> int:
    """A number that is another one whenever rules may have been added or taken back; 0: none."""
    return hooks.generation if hooks.active(HOOK) else 0


def added_rules(toolchain: Toolchain[Any]) -> Mapping[str, RuleSet]:
    """The rules that observers add for a target, by stage.

    Raises PluginError when an observer returns something else.
    """
    now = generation()
    return asked(now, f"{toolchain.name}:{toolchain.arch}") if now else NOTHING


@lru_cache(maxsize=64)
def asked(_generation: int, target: str) -> Mapping[str, RuleSet]:
    """What the observers of a generation say."""
    call = hooks.active(HOOK)
    found: dict[str, RuleSet] = {}
    if call is None:
        return found
    for stage in STAGES:
        for rules in call(stage=stage, target=target):
            verify(rules, stage, target)
            found[stage] = found[stage] + rules if stage in found else rules
    return found


def verify(rules: object, stage: str, target: str) -> None:
    """Raise PluginError unless an observer returned rules."""
    if not isinstance(rules, RuleSet):
        raise PluginError(
            f"a {HOOK} hook returned {rules!r} for stage {stage!r} of {target}; it must return a "
            "tinycore.uop.pattern.RuleSet, or None"
        )


def text_of(added: Mapping[str, RuleSet]) -> list[str]:
    """The names of the rules, a line for each stage."""
    return [f"{stage}: {', '.join(r.name for r in rules)}" for stage, rules in added.items()]


def modules_of(added: Mapping[str, RuleSet]) -> list[str]:
    """The modules that the rules are in."""
    return sorted({rule.function.__module__ for rules in added.values() for rule in rules})
