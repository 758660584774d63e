"""LLVM in this process, through llvmlite: IR to a code object, with no ROCm installed."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tiny_amd.arch import arch_of
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import lock

__all__ = ["LlvmCompiler", "features_of"]

TRIPLE: Final = "amdgcn-amd-amdhsa"
_LEVEL: Final = 2
FEATURES: Final = "-dot7-insts,-dot8-insts,-dot9-insts,-dot10-insts,-unaligned-access-mode"
"""Dot products of bytes are not for LLVM to find: of `a * b + (first ? c * d : 0)` on bytes LLVM 22
makes one v_dot4_u32_u8 that adds `first` itself. The tests compile such a kernel and run it. Nor
does it join loads of bytes into wider ones at odd addresses: whether these work SH_MEM_CONFIG says,
which belongs to the kernel's driver."""
_lock: Final = lock()


def features_of(arch: str) -> str:
    """LLVM's features of kernels for an architecture."""
    return ",".join((FEATURES, *arch_of(arch).features))


class LlvmCompiler:
    """Compiles LLVM IR to a relocatable code object (version 5 or 6) for one architecture."""

    name = "LLVM"

    def __init__(self, arch: str) -> None:
        self._llvm = _load()
        try:
            target = self._llvm.Target.from_triple(TRIPLE)
        except RuntimeError as error:
            raise CompilerUnavailable(
                f"llvmlite has no code generator for {TRIPLE}: {error}. Install another one: "
                "pip install --upgrade llvmlite"
            ) from error
        self._machine = target.create_target_machine(
            cpu=arch, features=features_of(arch), opt=_LEVEL, reloc="pic"
        )
        self._data_layout = str(self._machine.target_data)
        release = importlib.import_module("llvmlite").__version__
        version = f"{'.'.join(map(str, self._llvm.llvm_version_info))} of llvmlite {release}"
        self.key = f"LLVM {version} O{_LEVEL} {TRIPLE} {arch} {features_of(arch)}"

    def compile(self, source: str) -> bytes:
        """The code object. Raises CompileError with what LLVM said."""
        with _lock:  # one target machine, used by one thread at a time
            emitted: bytes = self._machine.emit_object(self._optimized(source))
            return emitted

    def assembly(self, source: str) -> str:
        """The machine code as text. Raises CompileError with what LLVM said."""
        with _lock:
            emitted: str = self._machine.emit_assembly(self._optimized(source))
            return emitted

    def _optimized(self, source: str) -> Any:
        """The module after LLVM's own passes for its second level."""
        llvm = self._llvm
        try:
            module = llvm.parse_assembly(source, llvm.create_context())
            module.triple, module.data_layout = TRIPLE, self._data_layout
            module.verify()
        except RuntimeError as error:
            raise CompileError("LLVM rejected a kernel:", log=str(error), source=source) from error
        options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return module


def _load() -> Any:
    try:
        llvm = importlib.import_module("llvmlite.binding")
    except ImportError as error:
        raise CompilerUnavailable(
            f"DEV=AMD:LLVM needs the Python package llvmlite, which cannot be imported ({error}). "
            "Run `pip install llvmlite`."
        ) from error
    with _lock:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm
