"""A worker of which some candidates make trouble, told by the size of their first split.

Run as a program in place of `tinycore.engine.search_worker`.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace

from tinycore.engine import search_worker, trial
from tinycore.engine.compile import Binary
from tinycore.engine.trial import Outcome, Trial
from tinycore.lower.tile import Plan, Split

CRASHES, HANGS, IS_WRONG, IS_HUNGRY, CRASHES_EARLY = 3, 5, 7, 9, 11
FAULT = re.compile(rb"# fault (\d+)")


class Misbehaving(Trial):
    """A trial that does what it is asked for, but for the marked candidates."""

    def build(self, plan: Plan | None) -> Binary:
        """Mark a candidate in its code, so that whoever runs it knows."""
        size = next((step.by for step in plan or () if isinstance(step, Split)), 0)
        if size == CRASHES_EARLY:
            os.abort()
        binary = super().build(None) if size == IS_WRONG else super().build(plan)
        content = binary.content
        if size == IS_WRONG:
            content = content.replace(b"= ADD float32", b"= SUB float32")
        return replace(binary, content=content + f"# fault {size}\n".encode())

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Run a candidate, or do what a broken one may do."""
        found = FAULT.search(candidate.content)
        size = int(found[1]) if found else 0
        if size == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        while size == HANGS:
            pass
        if size == IS_HUNGRY:
            bytearray(64 << 30)
        return super().measure(candidate, to_beat)


if __name__ == "__main__":
    search_worker.Trial = Misbehaving  # type: ignore[attr-defined]
    trial.NEARLY = trial.HOPELESS = 1000.0  # type: ignore[misc]  # what is wrong is looked at
    search_worker.main()
