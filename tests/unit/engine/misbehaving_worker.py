"""A worker of which some candidates make trouble, told by the size of their first split.

Run as a program in place of `tinycore.engine.search_worker`.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from tinycore.engine import search_worker, trial
from tinycore.engine.search_worker import Service, binary_from_json, binary_to_json
from tinycore.lower.tile import Split, plan_from_text

CRASHES, HANGS, IS_WRONG, IS_HUNGRY, CRASHES_EARLY = 3, 5, 7, 9, 11
FAULT = re.compile(rb"# fault (\d+)")


class Misbehaving(Service):
    """A service that does what it is asked for, but for the marked candidates."""

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Mark a candidate in its code, so that whoever runs it knows."""
        plan = plan_from_text(request["plan"])
        size = next((step.by for step in plan if isinstance(step, Split)), 0)
        if size == CRASHES_EARLY:
            os.abort()
        assert self.trial is not None
        binary = self.trial.build(None) if size == IS_WRONG else self.trial.build(plan)
        content = binary.content
        if size == IS_WRONG:
            content = content.replace(b"= ADD float32", b"= SUB float32")
        marked = type(binary)(content + f"# fault {size}\n".encode(), binary.info)
        return binary_to_json(marked)

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a candidate, or do what a broken one may do."""
        found = FAULT.search(binary_from_json(request["binary"]).content)
        size = int(found[1]) if found else 0
        if size == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        while size == HANGS:
            pass
        if size == IS_HUNGRY:
            bytearray(64 << 30)
        return super().measure(request)


if __name__ == "__main__":
    search_worker.REQUESTS["build"] = Misbehaving.build  # type: ignore[assignment]
    search_worker.REQUESTS["measure"] = Misbehaving.measure  # type: ignore[assignment]
    trial.NEARLY = trial.HOPELESS = 10.0  # type: ignore[misc]  # what is wrong is looked at
    search_worker.main(Misbehaving())
