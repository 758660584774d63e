"""QCOM without an Adreno: the plugin on the stand-in of KGSL, whose kernels are run here.

`BACKEND` is the plugin's own but for the system calls, and for Qualcomm's compiler, in whose place
the stand-in's is; kernels of that are run by PoCL, those of ir3 by the interpreter.

    export PYTHONPATH=tests/support:plugins/tiny_qcom/tests
    tinycore conformance QCOM --register simulated_qcom:BACKEND
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from adreno import ir3, opencl
from adreno.kgsl import Kgsl
from adreno.state import Launch
from emulation.memory import GlobalMemory

from tiny_hcq import HCQSignal
from tiny_qcom import BACKEND as PLUGIN
from tiny_qcom.chip import DEFAULT, chip_of, limits_of
from tiny_qcom.device import QcomDevice
from tiny_qcom.llvm_qcom import QcomCompiler
from tiny_qcom.opencl import QcomOpenClC
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import Backend, Toolchain

__all__ = ["BACKEND", "Simulated", "backend_of", "execute"]


def execute(launch: Launch, memory: GlobalMemory) -> None:
    """Run a launch, whoever compiled it."""
    (opencl.execute if launch.is_blob else ir3.execute)(launch, memory)


def qcomcl(arch: str = "") -> Toolchain[QcomOpenClC]:
    """The plugin's OpenCL C, with the stand-in of the compiler."""
    if why := opencl.missing():
        raise CompilerUnavailable(why)
    chip = chip_of(arch or DEFAULT)
    compiler = QcomCompiler(chip, opencl.Compiler())
    return Toolchain("QCOMCL", chip.name, QcomOpenClC(limits_of(chip)), compiler)


PATIENCE_MS: Final = 300_000


class Simulated(QcomDevice):
    """A device that says what the stand-in found wrong, where KGSL says that something is."""

    patience_ms = 0
    """Time that a wait stays with the interpreter, which is slow, before time is counted."""

    def __init__(self, driver: Kgsl, index: int = 0, interface: str = "") -> None:
        self.driver = driver
        super().__init__(index, interface, system=driver)

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        if self.patience_ms:
            self.kgsl.wait(self.kgsl.last, self.patience_ms)
        super().sleep(signal, value, waited_seconds)

    def fault(self) -> str:
        found = super().fault()
        return f"{found}: {self.driver.faults[-1]}" if found and self.driver.faults else found


def backend_of(kgsl: Kgsl) -> Backend:
    """The plugin's backend on a stand-in."""

    def opened(index: int, interface: str) -> QcomDevice:
        device = Simulated(kgsl, index, interface)
        device.patience_ms = PATIENCE_MS
        return device

    renderers = {**PLUGIN.renderers, "QCOMCL": qcomcl}
    return replace(PLUGIN, open=opened, count=lambda: 1, probe=lambda: "", renderers=renderers)


BACKEND: Final = backend_of(Kgsl(execute))
