"""Body of a worker process: compiles and runs candidates in isolation.

Floor 4. `python -m tinycore.engine.search_worker` is the program of a `WorkerProcess`. A request
says how many seconds it may take; where the system can, an alarm ends the process then, even in the
middle of machine code and after its parent is gone.
"""

from __future__ import annotations

import base64
import math
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from tinycore._deferred import module_named
from tinycore.device.protocols import ProgramInfo
from tinycore.device.registry import Device
from tinycore.device.worker_process import serve_questions
from tinycore.engine.compile import Binary
from tinycore.engine.program_cache import plain_info, restored
from tinycore.engine.trial import Trial
from tinycore.lower.tile import plan_from_text
from tinycore.uop.parse import from_text

Json = dict[str, Any]

MORE_BYTES: Final = 2 << 30
"""Memory that compiling and running one candidate may use in addition to that used before."""
GRACE_SECONDS: Final = 2
"""Seconds between the parent's time limit and the worker's own alarm."""


class Service:
    """The service of a worker: a method per request."""

    trial: Trial
    """The kernel that `open` prepared, which comes first."""

    def open(self, request: Json) -> Json:
        """Open a device and prepare a kernel; returns the name of its compiler."""
        device = Device[request["device"]]
        toolchain = device.toolchain_for(request["toolchain"], request["arch"])
        self.trial = Trial(from_text(request["ast"]), device, toolchain)
        return {"key": toolchain.compiler.key, "limits": repr(toolchain.renderer.limits)}

    def build(self, request: Json) -> Json:
        """Compile a candidate."""
        return binary_to_json(self.trial.build(plan_from_text(request["plan"])))

    def set_reference(self, request: Json) -> Json:
        """Run the reference."""
        return {"seconds": self.trial.set_reference(binary_from_json(request["binary"]))}

    def measure(self, request: Json) -> Json:
        """Time a candidate and compare its results."""
        return asdict(self.trial.measure(binary_from_json(request["binary"]), request["to_beat"]))

    def compare(self, request: Json) -> Json:
        """Time several candidates that take turns."""
        binaries = [binary_from_json(item) for item in request["binaries"]]
        return {"seconds": self.trial.compare(binaries)}

    def answer(self, request: Json) -> Json:
        """The response to a request, or the error that it ended in."""
        limit_resources(request["seconds"])
        try:
            answer = REQUESTS[request["do"]](self, request)
        except Exception as error:  # a candidate may break anything, our passes too
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            end_limits()
        return answer


REQUESTS: Final[dict[str, Callable[[Service, Json], Json]]] = {
    "open": Service.open,
    "build": Service.build,
    "set_reference": Service.set_reference,
    "measure": Service.measure,
    "compare": Service.compare,
}
"""Handlers of requests, by name."""


def binary_to_json(binary: Binary) -> Json:
    """A binary as JSON."""
    content = base64.b64encode(binary.content).decode()
    return {"content": content, "info": plain_info(binary.info)}


def binary_from_json(data: Json) -> Binary:
    """A binary from JSON."""
    return Binary(base64.b64decode(data["content"]), restored(ProgramInfo, data["info"]))


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


def main(service: Service | None = None) -> None:
    """Answer until the parent has no more questions."""
    if os.name == "posix":
        resource = module_named("resource")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = service or Service()
    serve_questions(lambda request: (worker.answer(request), b""))


if __name__ == "__main__":
    main()
