"""Finding clang, what is said when there is none, and compiling with it."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_cpu import clang
from tiny_cpu.arch import Arch
from tiny_cpu.clang import Clang, ClangCompiler, find_clang, is_clang_installed
from tiny_cpu.device import clang_toolchain
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import SupportsAssembly

VECTOR_SUM = """
typedef float lanes __attribute__((ext_vector_type(16)));
void sum(lanes *a) { *a += *a; }
"""


@pytest.fixture
def empty_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_cache: Path
) -> Iterator[Path]:
    """A PATH with nothing on it, and no ziglang."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(clang, "zig", lambda: None)
    find_clang.cache_clear()
    yield tmp_path
    find_clang.cache_clear()


def install(folder: Path, name: str, version: str) -> str:
    """A program that says it is a clang."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'Debian clang version {version}'\n")
    program.chmod(0o755)
    return str(program)


def test_without_clang_the_message_names_search_and_fixes(empty_path: Path) -> None:
    with pytest.raises(CompilerUnavailable) as caught:
        clang_toolchain("native")

    assert str(caught.value) == (
        "no clang 15 or newer. Searched: clang and clang-15 to clang-22 on PATH, and the Python "
        "package ziglang; found none. Install clang 15 or newer with the system's packages, or run "
        "`pip install ziglang`, or set DEV=CPU:LLVM, which needs no compiler."
    )


def test_an_old_clang_is_named(empty_path: Path) -> None:
    path = install(empty_path, "clang", "14.0.6")

    with pytest.raises(
        CompilerUnavailable, match=r"found only: .*clang is Debian clang version 14\.0"
    ) as caught:
        find_clang()

    assert path in str(caught.value)


def test_a_broken_clang_is_named(empty_path: Path) -> None:
    install(empty_path, "clang", "19.1.7")
    (empty_path / "clang").write_text("#!/bin/sh\nexit 1\n")

    with pytest.raises(CompilerUnavailable, match="clang is broken"):
        find_clang()


def test_plain_clang_is_preferred_when_it_is_new_enough(empty_path: Path) -> None:
    path = install(empty_path, "clang", "16.0.6")
    install(empty_path, "clang-19", "19.1.7")

    assert find_clang() == Clang((path,), "Debian clang version 16.0.6")


def test_the_newest_numbered_clang_stands_in_for_an_old_one(empty_path: Path) -> None:
    install(empty_path, "clang", "14.0.6")
    install(empty_path, "clang-16", "16.0.6")
    path = install(empty_path, "clang-19", "19.1.7")

    assert find_clang().command == (path,)


def test_a_clang_is_asked_for_its_version_once(empty_path: Path) -> None:
    program = Path(install(empty_path, "clang", "16.0.6"))
    find_clang()
    facts = program.stat()
    program.write_text(program.read_text().replace("16.0.6", "17.0.6"))
    os.utime(program, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    find_clang.cache_clear()

    assert find_clang().major == 16


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang")
def test_ziglang_brings_a_clang(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(empty_path))

    found = find_clang()

    assert found.command[1:] == ("clang",)
    assert found.major >= clang.OLDEST


# Compiling


@pytest.mark.parametrize("line", ["this is no C", "int f(void) { return nothing; }"])
@pytest.mark.skipif(not is_clang_installed(), reason="no clang")
def test_what_clang_says_is_kept(line: str) -> None:
    with pytest.raises(CompileError, match="clang rejected a kernel") as caught:
        ClangCompiler(Arch.parse("native")).compile(line)

    assert "error:" in caught.value.log
    assert caught.value.source == line


def test_a_defect_of_its_code_generator_is_avoided(tmp_path: Path) -> None:
    program = tmp_path / "clang"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-fno-slp-vectorize*) echo object; exit 0;; esac\n'
        "echo 'fatal error: error in backend: Cannot select: v16i8 = X86ISD::VBROADCAST' >&2\n"
        "exit 1\n"
    )
    program.chmod(0o755)
    compiler = ClangCompiler(Arch.parse("native"), Clang((str(program),), "clang version 15"))

    assert compiler.compile("") == b"object\n"
    assert compiler.assembly("") == "object\n"


@pytest.mark.parametrize(
    "text", ["native", "x86_64,znver2,avx2,-avx512f", "aarch64,cortex-a76,-fp16"]
)
@pytest.mark.skipif(not is_clang_installed(), reason="no clang")
def test_every_processor_gets_its_object(text: str) -> None:
    arch = Arch.parse(text)
    binary = ClangCompiler(arch).compile("void f(void) {}")

    assert binary[:4] == b"\x7fELF"
    assert int.from_bytes(binary[18:20], "little") == {"x86_64": 62, "aarch64": 183}[arch.machine]


@pytest.mark.parametrize(
    ("text", "instruction"),
    [("x86_64,knl", "vaddps\t%zmm"), ("x86_64,znver2", "vaddps\t%ymm"), ("aarch64", "fadd\tv")],
)
@pytest.mark.skipif(not is_clang_installed(), reason="no clang")
def test_assembly_is_what_is_compiled(text: str, instruction: str) -> None:
    compiler = ClangCompiler(Arch.parse(text))

    assert isinstance(compiler, SupportsAssembly)
    assert instruction in compiler.assembly(VECTOR_SUM)


@pytest.mark.skipif(not is_clang_installed(), reason="no clang")
def test_assembly_of_what_clang_rejects_is_refused_alike() -> None:
    with pytest.raises(CompileError, match="clang rejected a kernel"):
        ClangCompiler(Arch.parse("native")).assembly("this is no C")


def test_the_key_tells_builds_of_one_version_apart(tmp_path: Path) -> None:
    """Two distributions patch one version of clang in two ways, and both say the same of it."""

    def key(folder: str) -> str:
        program = tmp_path / folder / "clang"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        return ClangCompiler(Arch.parse("native"), Clang((str(program),), "clang version 19")).key

    assert key("one") != key("other")


def test_the_key_tells_processors_and_versions_apart() -> None:
    def key(version: str, arch: str) -> str:
        return ClangCompiler(Arch.parse(arch), Clang(("clang",), version)).key

    keys = {
        key(v, a)
        for v in ("clang version 19", "clang version 20")
        for a in ("native", "x86_64", "aarch64")
    }

    assert len(keys) == 6


def test_sums_are_not_reordered(compiler_flags: tuple[str, ...]) -> None:
    forbidden = {
        "-ffast-math",
        "-Ofast",
        "-fassociative-math",
        "-ffinite-math-only",
        "-funsafe-math-optimizations",
    }

    assert not forbidden & set(compiler_flags)


@pytest.fixture
def compiler_flags() -> tuple[str, ...]:
    return clang._FLAGS
