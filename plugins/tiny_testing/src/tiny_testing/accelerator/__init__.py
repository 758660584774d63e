"""A reference accelerator: memory of its own, an asynchronous queue, and faults on request.

It behaves as devices with drivers do, and needs none: programs are run by the interpreter
of PYTHON, by a thread of the device, after the call that asked for them has returned. The suite is
graded on it: each fault of `faults.py` must be caught by a named trial. Nothing registers it; do so
with `tinycore.plugin.register(BACKEND)`, or `--register tiny_testing.accelerator:BACKEND`.
"""

from __future__ import annotations

from typing import Final

from tiny_testing.accelerator.device import CORRECT, Parts, backend_of, external_memory

__all__ = ["BACKEND", "CORRECT", "Parts", "backend_of", "external_memory"]

BACKEND: Final = backend_of()
