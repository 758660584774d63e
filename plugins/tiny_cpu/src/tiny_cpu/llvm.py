"""LLVM in this process, through llvmlite: LLVM IR to an object, with no compiler installed.

The passes are few on purpose. What a kernel needs was decided when it was lowered, and the short
list takes half to two thirds of the time of -O2, for the same machine code in inner loops.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from tiny_cpu.arch import NATIVE, Arch
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import lock

__all__ = ["LlvmCompiler"]

_OPTIMIZATION: Final = 2
_lock: Final = lock()


class LlvmCompiler:
    """Compiles LLVM IR to an ELF object for one processor."""

    name = "LLVM"

    def __init__(self, arch: Arch) -> None:
        self._llvm = _load()
        self.arch = arch
        llvm = self._llvm
        self._triple = f"{arch.machine}-none-elf"
        processor, features = self._processor()
        try:
            target = llvm.Target.from_triple(self._triple)
        except RuntimeError as error:
            raise CompilerUnavailable(
                f"llvmlite has no code generator for {arch.machine}: {error}"
            ) from error
        self._machine = target.create_target_machine(
            cpu=processor, features=features, opt=_OPTIMIZATION, reloc="pic", codemodel="small"
        )
        self._data_layout = str(self._machine.target_data)
        release = importlib.import_module("llvmlite").__version__
        version = f"{'.'.join(map(str, llvm.llvm_version_info))} of llvmlite {release}"
        self.key = f"LLVM {version} O{_OPTIMIZATION} short {self._triple} {processor} {features}"

    def compile(self, source: str) -> bytes:
        """The object file for `source`. Raises CompileError with what LLVM said."""
        with _lock:  # one target machine, used by one thread at a time
            emitted: bytes = self._machine.emit_object(self._optimized(source))
            return emitted

    def assembly(self, source: str) -> str:
        """The machine code of `source` as text. Raises CompileError with what LLVM said."""
        with _lock:
            emitted: str = self._machine.emit_assembly(self._optimized(source))
            return emitted

    def _optimized(self, source: str) -> Any:
        """The module after the passes."""
        llvm = self._llvm
        try:
            module = llvm.parse_assembly(source, llvm.create_context())
            module.triple = self._triple
            module.data_layout = self._data_layout
            module.verify()
        except RuntimeError as error:
            raise CompileError("LLVM rejected a kernel:", log=str(error), source=source) from error
        builder = llvm.create_pass_builder(
            self._machine, llvm.create_pipeline_tuning_options(speed_level=2)
        )
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)
        return module

    def _processor(self) -> tuple[str, str]:
        """The processor's name, and its features in LLVM's own form."""
        llvm, arch = self._llvm, self.arch
        features = list(arch.features)
        processor = arch.processor
        if processor == NATIVE:
            processor = llvm.get_host_cpu_name()
            host = llvm.get_host_cpu_features()
            features = [host.flatten(), *features] if host else features
        if arch.machine == "x86_64":
            features.append("-prefer-256-bit")  # a plan that wants 512-bit vectors gets them
        else:
            features.append("+reserve-x18")  # macOS owns that register
        return processor, ",".join(features)


def _load() -> Any:
    try:
        llvm = importlib.import_module("llvmlite.binding")
    except ImportError as error:
        raise CompilerUnavailable(
            f"DEV=CPU:LLVM needs the Python package llvmlite, which cannot be imported ({error}). "
            "Run `pip install llvmlite`, or set DEV=CPU:CLANG where clang is installed."
        ) from error
    with _lock:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm
