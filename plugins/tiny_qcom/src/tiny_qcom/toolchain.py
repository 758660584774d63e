"""The toolchains of Adrenos: renderer and compiler for a chip."""

from __future__ import annotations

from tiny_qcom.chip import DEFAULT, chip_of, limits_of
from tiny_qcom.ir3 import Ir3Compiler
from tiny_qcom.llvm_qcom import QcomCompiler
from tiny_qcom.nir import Nir
from tiny_qcom.opencl import QcomOpenClC
from tinycore.plugin import Toolchain

__all__ = ["ir3", "opencl"]


def opencl(arch: str = "") -> Toolchain[QcomOpenClC]:
    """OpenCL C compiled by Qualcomm's library. Raises CompilerUnavailable."""
    chip = chip_of(arch or DEFAULT)
    return Toolchain("QCOMCL", chip.name, QcomOpenClC(limits_of(chip)), QcomCompiler(chip))


def ir3(arch: str = "") -> Toolchain[Nir]:
    """NIR compiled by Mesa's library. Raises CompilerUnavailable."""
    chip = chip_of(arch or DEFAULT)
    return Toolchain("IR3", chip.name, Nir(limits_of(chip, textures=True)), Ir3Compiler(chip))
