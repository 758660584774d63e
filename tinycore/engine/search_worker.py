"""Body of a worker process: compiles and runs candidates in isolation.

Floor 4. `python -m tinycore.engine.search_worker` is the program of a `WorkerProcess`. A request
says how many seconds it may take; where the system can, an alarm ends the process then, even in the
middle of machine code and after its parent is gone.
"""

from __future__ import annotations

import base64
import math
import os
import pickle
import signal
from typing import Final

from tinycore._deferred import module_named
from tinycore.device.registry import Device
from tinycore.device.worker_process import serve_questions
from tinycore.engine.trial import Trial
from tinycore.uop.parse import from_text

MORE_BYTES: Final = 2 << 30
"""Memory that compiling and running one candidate may use in addition to that used before."""
GRACE_SECONDS: Final = 2
"""Seconds between the parent's time limit and the worker's own alarm."""


class Service:
    """The service of a worker: requests are methods of `Trial`, after that which opens a device."""

    trial: Trial
    """The kernel that `open` prepared, which comes first."""

    def open(self, device: str, toolchain: str, arch: str, ast: str) -> tuple[str, str]:
        """Open a device and prepare a kernel; the key of its compiler, and its limits."""
        opened = Device[device]
        chosen = opened.toolchain_for(toolchain, arch)
        self.trial = Trial(from_text(ast), opened, chosen)
        return chosen.compiler.key, repr(chosen.renderer.limits)

    def answer(self, request: tuple[str, float, str]) -> tuple[str, bytes]:
        """The message of the error that a request ended in, or "" and the pickled response."""
        word, seconds, given = request
        limit_resources(seconds)
        try:
            asked = self.open if word == "open" else getattr(self.trial, word)
            return "", pickle.dumps(asked(*pickle.loads(base64.b64decode(given))))
        except Exception as error:  # a candidate may break anything, our passes too
            return f"{type(error).__name__}: {error}", b""
        finally:
            end_limits()


def limit_resources(seconds: float) -> None:
    """From now on this process ends by itself after some time, and memory is short after a while.

    Memory is limited as private data, which counts what is written to and no reserved addresses.
    """
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(seconds) + GRACE_SECONDS)
    used = data_bytes()
    if used is not None:
        resource = module_named("resource")
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = used + MORE_BYTES
        soft = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, most))


def end_limits() -> None:
    """The alarm is off."""
    if hasattr(signal, "alarm"):
        signal.alarm(0)


def data_bytes() -> int | None:
    """Bytes of private data of this process; None if the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def main() -> None:
    """Answer until the parent has no more questions."""
    if os.name == "posix":
        resource = module_named("resource")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve_questions(Service().answer)


if __name__ == "__main__":
    main()
