"""The OpenCL compiler of Qualcomm, libllvm-qcom.so, which comes with the drivers of Adrenos.

An instance compiles one source at a time. After an error it is thrown away: what it does then is
not known.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from cffi import FFI

from tiny_qcom.chip import Chip
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import file_identity, lock

__all__ = ["Library", "QcomCompiler"]

NAMES: Final = ("libllvm-qcom.so", "/vendor/lib64/libllvm-qcom.so", "/usr/lib/libllvm-qcom.so")
MODE_64_BITS: Final = 1
SOURCE_IS_TEXT: Final = 0
DECLARATIONS: Final = """
typedef struct {
  uint32_t type; uint32_t _pad; struct compiled *compiled; struct executable *executable;
} handle;
struct compiled {
  uint32_t chip_id; uint32_t _a; uint32_t mode; uint32_t _b; void *bitcode; uint64_t size;
  char *build_log; uint32_t log_length; uint32_t error_code;
};
struct executable {
  uint32_t num_kernels; uint32_t _a; void *properties; uint32_t error_code; uint32_t _b;
  char *build_log; uint64_t _c[4]; uint32_t chip_id; uint32_t _d; uint32_t mode; uint32_t _e;
};
void *cl_compiler_create_llvm_instance(void);
void cl_compiler_destroy_llvm_instance(void *);
handle *cl_compiler_compile_source(void *, uint64_t, int, const char *, int, void *, void *,
  const char *, uint64_t, uint64_t, void *);
handle *cl_compiler_link_program(void *, uint64_t, int, const char *, uint32_t, handle **);
void cl_compiler_handle_create_binary(handle *, void **, size_t *);
void cl_compiler_free_handle(handle *);
void cl_compiler_free_assembly(void *);
"""


class Library:
    """The library, loaded. Tests put another with the same methods in its place."""

    def __init__(self) -> None:
        self.ffi = FFI()
        self.ffi.cdef(DECLARATIONS)
        tried = []
        for name in NAMES:
            try:
                self.lib: Any = self.ffi.dlopen(name)
                break
            except OSError as error:
                tried.append(str(error))
        else:
            raise CompilerUnavailable(
                "DEV=QCOM:QCOMCL needs Qualcomm's compiler libllvm-qcom.so, which is part of the "
                f"drivers of an Adreno and is not here ({'; '.join(tried)}). Put its folder into "
                'LD_LIBRARY_PATH, or use Mesa\'s compiler: pip install "tiny-qcom[ir3]"'
            )
        self.lock = lock()
        self.instance = self.lib.cl_compiler_create_llvm_instance()

    def compile(self, source: str, chip_id: int) -> bytes:
        """The container of one program. Raises CompileError."""
        with self.lock:
            return self._compile(source, chip_id)

    def _compile(self, source: str, chip_id: int) -> bytes:
        ffi, lib = self.ffi, self.lib
        text = ffi.new("char[]", source.encode())
        target = (chip_id, MODE_64_BITS)
        options = ffi.new("char[]", b"")
        null = ffi.NULL
        made = lib.cl_compiler_compile_source(
            self.instance, *target, options, 0, null, null, text, 0, SOURCE_IS_TEXT, null
        )
        self._check(made, made.compiled if made else null, source)
        handles = ffi.new("handle *[]", [made])
        linked = lib.cl_compiler_link_program(self.instance, *target, null, 1, handles)
        self._check(linked, linked.executable if linked else null, source)
        binary, size = ffi.new("void **"), ffi.new("size_t *")
        lib.cl_compiler_handle_create_binary(linked, binary, size)
        found = bytes(ffi.buffer(binary[0], size[0]))
        lib.cl_compiler_free_assembly(binary[0])
        for handle in (made, linked):
            lib.cl_compiler_free_handle(handle)
        return found

    def _check(self, handle: Any, result: Any, source: str) -> None:
        """Raise CompileError where a step failed, and begin with a new instance."""
        if handle and result and not result.error_code:
            return
        log = ""
        if result and result.build_log:
            log = self.ffi.string(result.build_log).decode(errors="replace")
        self.lib.cl_compiler_destroy_llvm_instance(self.instance)
        self.instance = self.lib.cl_compiler_create_llvm_instance()
        raise CompileError("Qualcomm's compiler rejected a kernel:", log=log, source=source)


@cache
def library() -> Library:
    """The library, loaded once. Raises CompilerUnavailable."""
    return Library()


class QcomCompiler:
    """Compiles OpenCL C for one chip."""

    name = "QCOMCL"

    def __init__(self, chip: Chip, loaded: Any = None) -> None:
        self.library = loaded or library()
        self.chip = chip
        build = next(filter(None, map(file_identity, NAMES)), "")
        self.key = f"libllvm-qcom {chip.id:#x} {build}"

    def compile(self, source: str) -> bytes:
        """The container. Raises CompileError with the compiler's log."""
        found: bytes = self.library.compile(source, self.chip.id)
        return found
