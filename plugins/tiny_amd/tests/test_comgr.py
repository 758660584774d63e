"""COMGR: the library where it is, a recorded one, and one that ends the process that compiles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("ziglang")

from hip_by_clang import toolchain
from hip_programs import ANYWHERE, check_accesses_of_bytes, product_of

from tiny_amd.arch import ARCHS
from tiny_amd.comgr import ComgrCompiler, worker_of
from tiny_amd.comgr_library import ComgrLibrary
from tinycore.cache import file_identity
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import SupportsAssembly

VARIABLE: Final = "COMGR_LIBRARY"
KERNEL: Final = 'extern "C" __attribute__((global)) void k(float *p) { *p = 1; }'


def compiler_of(*archs: str) -> ComgrCompiler:
    """The library that is here, for the first architecture that it knows; skips without one."""
    said = ""
    for arch in archs:
        try:
            return ComgrCompiler(arch)
        except CompilerUnavailable as why:
            said = str(why)
    pytest.skip(said)


def test_comgr_compiles_where_it_is() -> None:
    compiler = compiler_of("gfx1100", "gfx1030")
    assert compiler.compile(KERNEL)[:4] == b"\x7fELF"

    if compiler.arch == "gfx1100":
        check_accesses_of_bytes(compiler.compile(ANYWHERE))
    with pytest.raises(CompileError, match="COMGR cannot compile a kernel") as raised:
        compiler.compile("void k( {")
    assert "error:" in raised.value.log


def test_comgr_shows_the_machine_code() -> None:
    compiler = compiler_of("gfx1100", "gfx1030")
    shown = compiler.assembly(KERNEL)

    assert "s_endpgm" in shown
    assert ".amdhsa_next_free_vgpr" in shown
    assert isinstance(compiler, SupportsAssembly)


def test_comgr_has_the_builtins_of_matrix_instructions() -> None:
    compiler = compiler_of("gfx1100", "gfx90a")
    arch = compiler.arch
    for found in ARCHS[arch].matrix:
        source = toolchain(arch).renderer.render(product_of(arch, found, (64, 64, 64)))
        assert re.search(r"v_mfma_|v_wmma_", compiler.assembly(source)), found.unit.name


def test_products_do_without_the_packet_of_a_launch() -> None:
    """COMGR 2.4 puts operands of 16 bytes into LDS, at places that the packet says."""
    compiler = compiler_of("gfx1100", "gfx90a")
    arch = compiler.arch
    for found in ARCHS[arch].matrix:
        source = toolchain(arch).renderer.render(product_of(arch, found, (16, 16, 16)))
        assert ".amdhsa_user_sgpr_dispatch_ptr 0" in compiler.assembly(source), found.unit.name


def test_an_architecture_that_comgr_does_not_know() -> None:
    compiler_of("gfx1100", "gfx1030")
    with pytest.raises(CompilerUnavailable, match=r"does not compile for gfx1, but for .*gfx900"):
        ComgrCompiler("gfx1")


def test_what_is_said_without_comgr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/libamd_comgr.so")
    with pytest.raises(CompilerUnavailable) as raised:
        ComgrCompiler("gfx1100")

    said = str(raised.value)
    assert "DEV=AMD:HIP needs AMD's compiler library COMGR, which is not here" in said
    assert "apt install libamd-comgr2" in said
    assert "Tried: /nowhere/libamd_comgr.so" in said


# --- what the library is asked for


@pytest.mark.parametrize(
    ("version", "language", "actions"), [(2, 4, [2, 6, 2, 7]), (3, 3, [2, 4, 2, 5])]
)
def test_versions_of_comgr_number_languages_and_actions(
    version: int, language: int, actions: list[int]
) -> None:
    """ROCm's amd_comgr.h.in of both: two actions are gone in version 3."""
    recorded = Recorded(version)
    library = ComgrLibrary(recorded)
    library.compile("gfx1100", "")
    library.assembly("gfx1100", "")

    assert recorded.language == language
    assert recorded.actions == actions


def test_a_version_whose_numbers_are_not_known_is_refused() -> None:
    with pytest.raises(CompilerUnavailable, match=r"COMGR 4\.0 is here; .* versions 2 and 3"):
        ComgrLibrary(Recorded(4))


class Recorded:
    """A library that compiles nothing, and notes what it is asked for."""

    def __init__(self, version: int) -> None:
        self.version, self.actions, self.language = version, list[int](), 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 0

    def amd_comgr_get_version(self, major: Any, minor: Any) -> None:
        major[0], minor[0] = self.version, 0

    def amd_comgr_action_info_set_language(self, info: Any, language: int) -> int:
        self.language = language
        return 0

    def amd_comgr_do_action(self, kind: int, *others: Any) -> int:
        self.actions.append(kind)
        return 0


# --- the process that compiles, with a library that returns its source as the object

ECHO: Final = r"""
typedef struct { unsigned long handle; } comgr;
typedef unsigned long size;
long write(int file, const void *bytes, size count);

static char text[1 << 20];
static size held;

static void copy(volatile char *to, const char *from) {
  for (size i = 0; i < held; i++) to[i] = from[i];
}

#ifdef ENDS
__attribute__((constructor)) static void loaded(void) {
  write(2, "option registered twice\n", 24);
  __builtin_trap();
}
#endif

void amd_comgr_get_version(size *major, size *minor) { *major = 2; *minor = 7; }
int amd_comgr_status_string(int s, const char **said) { *said = "ERROR"; return 0; }
int amd_comgr_get_isa_count(size *count) { *count = 1; return 0; }
int amd_comgr_get_isa_name(size i, const char **name) {
  *name = "amdgcn-amd-amdhsa--gfx1100";
  return 0;
}
int amd_comgr_create_data(int kind, comgr *data) { return 0; }
int amd_comgr_release_data(comgr data) { return 0; }
int amd_comgr_set_data(comgr data, size count, const char *bytes) {
  held = count;
  copy(text, bytes);
  return 0;
}
int amd_comgr_set_data_name(comgr data, const char *name) { return 0; }
int amd_comgr_get_data(comgr data, size *count, char *bytes) {
  *count = held;
  if (bytes) copy(bytes, text);
  return 0;
}
int amd_comgr_create_data_set(comgr *set) { return 0; }
int amd_comgr_destroy_data_set(comgr set) { return 0; }
int amd_comgr_data_set_add(comgr set, comgr data) { return 0; }
int amd_comgr_action_data_get_data(comgr set, int kind, size i, comgr *data) { return 0; }
int amd_comgr_action_data_count(comgr set, int kind, size *count) { *count = 1; return 0; }
int amd_comgr_create_action_info(comgr *info) { return 0; }
int amd_comgr_destroy_action_info(comgr info) { return 0; }
int amd_comgr_action_info_set_isa_name(comgr info, const char *name) { return 0; }
int amd_comgr_action_info_set_language(comgr info, int language) { return 0; }
int amd_comgr_action_info_set_option_list(comgr info, const char **o, size n) { return 0; }
int amd_comgr_action_info_set_logging(comgr info, _Bool on) { return 0; }
int amd_comgr_do_action(int kind, comgr info, comgr in, comgr out) {
  write(1, "noise\n", 6);
  if (text[0] == '!') {
    write(2, "out of words\n", 13);
    __builtin_trap();
  }
  return text[0] == '?';
}
"""
"""A source that begins with "!" ends the process, one with "?" is refused."""


def built(folder: Path, *options: str) -> str:
    """Path of the library, compiled by zig's clang."""
    source, library = folder / "comgr.c", folder / "libamd_comgr.so"
    source.write_text(ECHO, "utf-8")
    command = ["cc", "-shared", "-O1", "-nostdlib", "-Wl,--allow-shlib-undefined", *options]
    subprocess.run(
        [sys.executable, "-m", "ziglang", *command, str(source), "-o", str(library)], check=True
    )
    return str(library)


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComgrCompiler]:
    """A compiler of the library that returns its source."""
    monkeypatch.setenv(VARIABLE, built(tmp_path))
    compiler = ComgrCompiler("gfx1100")
    yield compiler
    compiler.worker.stop()


def test_an_object_comes_from_the_process_whatever_the_library_prints(echo: ComgrCompiler) -> None:
    for source in ("first", "second\n" * 10_000, "\0\xff"):
        assert echo.compile(source) == source.encode()
        assert echo.assembly(source) == source
    assert echo.key.startswith("COMGR 2.7 gfx1100 -O3")
    assert echo.key.endswith(file_identity(os.environ[VARIABLE]))
    assert "libamd_comgr" not in Path("/proc/self/maps").read_text("utf-8")


def test_a_source_that_is_refused_leaves_the_process_for_the_next(echo: ComgrCompiler) -> None:
    before = echo.worker.pid
    with pytest.raises(CompileError, match="COMGR cannot compile a kernel: ERROR") as raised:
        echo.compile("?: no such thing")

    assert raised.value.log == raised.value.source == "?: no such thing"
    assert echo.compile("next") == b"next"
    assert echo.worker.pid == before


def test_a_process_that_ends_is_an_error_and_the_next_kernel_has_another(
    echo: ComgrCompiler,
) -> None:
    with pytest.raises(CompileError, match=r"COMGR was ended by SIG(ILL|TRAP)") as raised:
        echo.compile("!")

    assert raised.value.log.endswith("out of words\n")
    assert raised.value.source == "!"
    assert echo.compile("next") == b"next"


def test_a_library_that_ends_the_process_as_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's COMGR beside another user of the system's LLVM."""
    monkeypatch.setenv(VARIABLE, built(tmp_path, "-DENDS"))
    with pytest.raises(CompilerUnavailable, match="as it was loaded: option registered twice") as e:
        ComgrCompiler("gfx1100")

    assert re.search("COMGR was ended by SIG(ILL|TRAP)", str(e.value))
    assert worker_of(os.environ[VARIABLE]).pid == 0
