"""Compilers that end in a cubin: without libcuda there is nobody else to assemble PTX."""

from __future__ import annotations

from tiny_nv import _nvrtc
from tiny_nv.arch import number_of
from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tinycore.errors import CompilerUnavailable

__all__ = ["CubinCompiler", "CubinOfPtxCompiler"]


class CubinCompiler(NvrtcCompiler):
    """nvrtc for an architecture that it assembles for. Raises CompilerUnavailable."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        if self.form != "CUBIN":
            known = ", ".join(f"sm_{number}" for number in _nvrtc.supported())
            raise CompilerUnavailable(
                f"nvrtc at {_nvrtc.path()} makes no machine code for sm_{number_of(arch)}, only "
                f"for {known}, and NV has no driver that assembles PTX: install a newer nvrtc "
                "(pip install --upgrade nvidia-cuda-nvrtc), or use DEV=CUDA"
            )


class CubinOfPtxCompiler(PtxCompiler):
    """The program `ptxas` of a toolkit. Raises CompilerUnavailable."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        if self._assembler is None:
            raise CompilerUnavailable(
                "NV has no driver that assembles PTX, and there is no ptxas, on the PATH or in a "
                "CUDA toolkit: install one (CUDA_HOME names it elsewhere), or let nvrtc compile: "
                "DEV=NV:NVRTC with pip install nvidia-cuda-nvrtc"
            )
