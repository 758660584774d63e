"""Talking to a worker: lines of JSON over its stdin and stdout.

A worker says once that it is ready; then each line {"seconds": s} asks for a turn of about so many
seconds, and is answered by one line. Whatever libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["private_stdout", "serve"]


def private_stdout() -> TextIO:
    """The real stdout; from now on what anyone prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers: TextIO, ready: dict[str, Any], turn: Callable[[float], Any]) -> None:
    """Say that all is ready, then take turns until stdin ends."""
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(float(json.loads(line)["seconds"]))), file=answers, flush=True)
