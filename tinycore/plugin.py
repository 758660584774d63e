"""The stable API for authors of backends: all that a plugin needs, and what is versioned.

Floor 1, of the device side. A backend imports this module, `tinycore.render`, `tinycore.uop`,
`tinycore.dtype`, `tinycore.errors`, `tinycore.config` and `tinycore.trace`, and nothing else.
Importing it looks for no device and opens none.

    BACKEND = Backend(
        name="TOY",
        api=(2, 0),
        count=deferred("tiny_toy.probe:count"),
        open=deferred("tiny_toy.device:ToyDevice"),
        renderers={"C": deferred("tiny_toy.toolchain:c")},
    )

with `TOY = "tiny_toy:BACKEND"` in the package's entry-point group `tinycore.backends`. The
protocols are described in `tinycore/device/protocols.py`, whose first page is the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tinycore._deferred import Deferred, deferred
from tinycore._locks import in_child, lock, recursive_lock
from tinycore._progress import progress
from tinycore.cache import file_identity
from tinycore.device.backend import API_VERSION, Backend, Interface, InterfaceState
from tinycore.device.discovery import DeviceState, State, entry_points
from tinycore.device.exported import (
    ExportedKernel,
    ExportedLaunch,
    ExportedModel,
    ExportedSpan,
    ExportedTensor,
)
from tinycore.device.extent import Extent
from tinycore.device.hooks import (
    hooks,
    tinycore_backend_closing,
    tinycore_backend_opened,
    tinycore_doctor_checks,
    tinycore_kernel_compiled,
    tinycore_kernel_ran,
    tinycore_report_header,
    tinycore_rewrite_rules,
    tinycore_schedule_created,
    tinycore_select_device,
)
from tinycore.device.host_copies import COPY_THREADS, HostCopy, copied, host_copy
from tinycore.device.protocols import (
    ALIGNMENT_BYTES,
    CAPABILITIES,
    Allocator,
    Compiler,
    DeviceRuntime,
    Graph,
    Handle,
    Launch,
    Program,
    ProgramInfo,
    SupportsArch,
    SupportsAssembly,
    SupportsExchange,
    SupportsExternalPointer,
    SupportsGraph,
    SupportsImages,
    SupportsMap,
    SupportsPeerCopy,
    SupportsQueues,
    SupportsReach,
    SupportsVariety,
    Toolchain,
)
from tinycore.device.registry import Device
from tinycore.device.worker_process import (
    WORKER_SECONDS,
    WorkerLost,
    WorkerProcess,
    serve_questions,
)
from tinycore.errors import PluginError

__all__ = [
    "ALIGNMENT_BYTES",
    "API_VERSION",
    "CAPABILITIES",
    "COPY_THREADS",
    "WORKER_SECONDS",
    "Allocator",
    "Backend",
    "Compiler",
    "Deferred",
    "DeviceRuntime",
    "DeviceState",
    "ExportedKernel",
    "ExportedLaunch",
    "ExportedModel",
    "ExportedSpan",
    "ExportedTensor",
    "Extent",
    "Graph",
    "Handle",
    "HostCopy",
    "Interface",
    "InterfaceState",
    "Launch",
    "Program",
    "ProgramInfo",
    "State",
    "SupportsArch",
    "SupportsAssembly",
    "SupportsExchange",
    "SupportsExternalPointer",
    "SupportsGraph",
    "SupportsImages",
    "SupportsMap",
    "SupportsPeerCopy",
    "SupportsQueues",
    "SupportsReach",
    "SupportsVariety",
    "Toolchain",
    "WorkerLost",
    "WorkerProcess",
    "check_pending",
    "copied",
    "deferred",
    "file_identity",
    "host_copy",
    "in_child",
    "installed_renderers",
    "lock",
    "progress",
    "recursive_lock",
    "register",
    "register_observer",
    "serve_questions",
    "tinycore_backend_closing",
    "tinycore_backend_opened",
    "tinycore_doctor_checks",
    "tinycore_kernel_compiled",
    "tinycore_kernel_ran",
    "tinycore_report_header",
    "tinycore_rewrite_rules",
    "tinycore_schedule_created",
    "tinycore_select_device",
    "unregister",
    "unregister_observer",
]

DRIVER_SUPPORT: Final = "tinycore.driver_support"
"""Entry point group of the package that has what drivers share."""
NAMES_OF_DRIVER_SUPPORT: Final = """
    ArgumentArena ElfFile ElfImage HCQAllocator HCQArgsState HCQBuffer HCQCompiled HCQGraph
    HCQProgram HCQSignal HCQTransfer HWQueue HostView LaunchTime LinuxSystem MAP_FIXED
    MAP_RESERVED Machine Moment Number PciFunction Place Relocation RelocationValue SignalPlace
    SupportsWriteText Symbol System Word address_of bytes_at errno_text fence halves
    integer_writer pci_functions system use_system write_text
""".split()
"""Names of that package which packages made for earlier versions import from here."""


def __getattr__(name: str) -> Any:
    """A name that has moved. Raises PluginError where the package that has it is not installed."""
    if name not in NAMES_OF_DRIVER_SUPPORT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for entry in entry_points(DRIVER_SUPPORT):
        return Deferred(f"{entry.reference}:{name}").resolve()
    raise PluginError(f'{name} comes with `pip install "tinycore[hcq]"`')


def register(backend: Backend) -> None:
    """Add a backend from this program: for tests, notebooks and frozen apps."""
    Device.register(backend)


def unregister(name: str) -> None:
    """Take back what `register` added, closing its devices."""
    Device.unregister(name)


def register_observer(observer: object, name: str | None = None) -> None:
    """Register an object whose functions are marked by `pluggy.HookimplMarker("tinycore")`."""
    hooks.register(observer, name)


def unregister_observer(observer: object) -> None:
    """Remove an observer: its functions are called no more."""
    hooks.unregister(observer)


def check_pending() -> None:
    """Raise PluginError when an observer implements a hook that there is not, such as a misspelt
    one.

    For the tests of packages that have an entry point in `tinycore.hooks`.
    """
    hooks.check_pending()


def installed_renderers(without: str = "") -> dict[str, Callable[[str], Toolchain[Any]]]:
    """The renderers of every backend that can be imported, by name, the preferred backend's first.

    They render and compile without a device. `without` names a backend to leave out.
    """
    return Device.plugins.renderers(without)
