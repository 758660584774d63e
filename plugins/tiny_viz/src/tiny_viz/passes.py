"""The way of a kernel from its graph to machine code, made again under the traces of the core.

A profile has the graph of each kernel; lowering it is a function of the graph, the device and
tinycore, so the passes are shown by lowering it once more. That is done in a process of its own,
where no node is known to be in normal form yet, so that every rule fires.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import TextIOBase
from itertools import chain
from typing import Any, Final

from tinycore import Context, Device
from tinycore._stamp import DECISIVE_SETTINGS
from tinycore.config import cpu_count
from tinycore.engine.compile import compile_kernel
from tinycore.engine.search import tuned_plan
from tinycore.errors import TinycoreError
from tinycore.uop.node import UOp
from tinycore.uop.parse import from_text, program_from_text
from tinycore.uop.pattern import Rule
from tinycore.uop.rewrite import observe

__all__ = ["difference", "lowered", "made_apart"]

MOST_LINES: Final = 3000
"""Lines of a graph that are compared."""
MOST_SECONDS: Final = 300
"""Seconds that making something again may take."""
REFERENCE: Final = re.compile(r"%\d+")
TAKEN: Final = {*DECISIVE_SETTINGS, "TUNED"}
"""Settings that a profile may name; with TUNED, a kernel has the plan that a search has kept."""


@dataclass
class Stage:
    """A graph as it is after a pass, and the rules that changed it on the way."""

    name: str
    text: str
    rules: Counter[str] = field(default_factory=Counter)
    makers: list[str] = field(default_factory=list)
    """By line, the rule that made its node in this pass, or ""."""
    removers: list[str] = field(default_factory=list)
    """By line of the stage before, the rule that replaced its node."""


class Collected(TextIOBase):
    """A stream whose every write is one line of a trace, with its body."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.stages: list[Stage] = []
        self.rules: Counter[str] = Counter()
        self.made: dict[UOp, str] = {}
        """Nodes that rules made since the last pass, with the last rule that did."""
        self.replaced: dict[UOp, str] = {}
        """Likewise, nodes that rules replaced."""
        self.others: dict[str, list[str]] = {"plan": [], "source": [], "binary": []}

    def write(self, text: str) -> int:
        """Take one trace."""
        line, _, body = text.partition("\n")
        channel, told = line[:8].strip(), line[9:]
        if channel == "passes":
            name = told.removeprefix("after ").partition(" of ")[0]
            earlier = self.stages[-1].text if self.stages else self.kernel
            text_now = body or earlier
            makers, removers = by_line(text_now, self.made), by_line(earlier, self.replaced)
            self.stages.append(Stage(name, text_now, self.rules, makers, removers))
            self.rules, self.made, self.replaced = Counter(), {}, {}
        elif channel in self.others:
            self.others[channel].append(body or told)
        return len(text)

    def note(self, rule: Rule, before: UOp, after: UOp) -> None:
        """Count a rule that fired."""
        self.rules[rule.name] += 1
        self.made[after] = self.replaced[before] = rule.name


def by_line(text: str, rules: Mapping[UOp, str]) -> list[str]:
    """By line, the rule of its node: what is printed is parsed as the identical node."""
    return [rules.get(node, "") for node in program_from_text(text)] if rules else []


def made_apart(module: str, question: Any, settings: str = "") -> Any:
    """The answer of a module to a question, in a process of its own; or {"error": reason}.

    `settings` are lines NAME=value; those that decide how graphs are scheduled and lowered are in
    force there, on as many processors as it had. Text from anywhere sets no other variable.
    """
    told = {
        name: value for name, _, value in (line.partition("=") for line in settings.splitlines())
    }
    if told.get("CPU_COUNT") == "0" and told.get("PROCESSORS") != str(cpu_count()):
        told["CPU_COUNT"] = told.get("PROCESSORS", "0")
    given = {f"TINYCORE_{name}": value for name, value in told.items() if name in TAKEN}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", module],  # -P: nothing is imported from the current folder
            input=json.dumps(question),
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | given | {"VIZ": "0", "TINYCORE_VIZ": "0"},
            timeout=MOST_SECONDS,
        )
        reason = f"failed: {done.stderr.strip()[-2000:]}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"took more than {MOST_SECONDS} seconds"
    if reason:
        return {"error": f"making it again {reason}", "passes": []}
    return json.loads(done.stdout)


def lowered(graph: str, device: str) -> Any:
    """Every pass with its difference to the one before, the plans proposed, source and assembly.

    Where the device cannot be opened here, the reason instead.
    """
    collected = Collected(graph)
    try:
        toolchain = Device[device].toolchain
        ast = from_text(graph)
        plan = tuned_plan(ast, Device[device], toolchain)
        with (
            Context(DEBUG=0, TRACE="passes,plan,source,binary", VIZ=0, NO_COLOR=1),
            observe(collected.note),
            redirect_stderr(collected),
        ):
            compile_kernel(ast, toolchain, plan)
    except TinycoreError as error:
        return {"error": f"it cannot be lowered here: {error}", "passes": []}
    stages = [Stage("kernel", graph), *collected.stages]
    return {
        "target": f"{toolchain.name}:{toolchain.arch}",
        "passes": [
            {
                "name": stage.name,
                "rules": stage.rules.most_common(),
                "lines": difference(earlier.text, stage.text, stage.makers, stage.removers),
                "changed": earlier.text != stage.text,
            }
            for earlier, stage in zip([stages[0], *stages], stages, strict=False)
        ],
        "plans": collected.others["plan"],
        "source": "\n".join(collected.others["source"]),
        "assembly": "\n".join(collected.others["binary"]),
    }


def difference(
    before: str, after: str, makers: Sequence[str] = (), removers: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """The lines of a graph, each with " ", "+" or "-", and the rule that made or replaced its node.

    Numbers of nodes are not compared, nor is their order.
    """
    old, new = (text.splitlines()[:MOST_LINES] for text in (before, after))
    left: dict[str, deque[int]] = defaultdict(deque)
    for place, line in enumerate(old):
        left[REFERENCE.sub("%", line)].append(place)
    twins = [left[key].popleft() if left[key := REFERENCE.sub("%", line)] else -1 for line in new]
    gone = deque(sorted(chain(*left.values())))
    fixed = in_order(twins)
    found: list[tuple[str, str, str]] = []

    def remove(end: int) -> None:
        while gone and gone[0] < end:
            place = gone.popleft()
            found.append(("-", old[place], removers[place] if place < len(removers) else ""))

    for place, (line, twin) in enumerate(zip(new, twins, strict=True)):
        remove(twin if place in fixed else 0)
        if twin >= 0:
            found.append((" ", line, ""))
        else:
            found.append(("+", line, makers[place] if place < len(makers) else ""))
    remove(len(old))
    return found


def in_order(places: Sequence[int]) -> set[int]:
    """The indices of a longest increasing part of different places, but for those below 0."""
    least: list[int] = []
    """By length, the least place at which an increasing part ends."""
    lengths = []
    for place in places:
        length = bisect_left(least, place) if place >= 0 else -1
        if place >= 0:
            least[length : length + 1] = [place]
        lengths.append(length)
    found: set[int] = set()
    length, after = len(least) - 1, MOST_LINES
    for index in reversed(range(len(places))):
        if 0 <= length == lengths[index] and places[index] < after:
            found.add(index)
            length, after = length - 1, places[index]
    return found


if __name__ == "__main__":
    json.dump(lowered(*json.load(sys.stdin)), sys.stdout)
