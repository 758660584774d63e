"""NVIDIA's compiler: where it is looked for, what it is told to make, and how it complains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_nv import _nvrtc
from tiny_nv.arch import ARCHS, arch_of, limits_of, number_of
from tiny_nv.device import toolchain
from tiny_nv.program import NvrtcCompiler, target_of
from tinycore.errors import CompileError, CompilerUnavailable

SUPPORTED = (80, 89, 90, 100)


def test_without_the_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvrtc, "_found", [])
    monkeypatch.setenv("NVRTC_LIBRARY", "/nowhere/libnvrtc.so")

    with pytest.raises(CompilerUnavailable, match=r'pip install "tinycore\[cuda\]".*/nowhere/'):
        _nvrtc.library()


def test_it_is_looked_for_in_the_system_then_in_toolkits_then_in_wheels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NVRTC_LIBRARY", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(_nvrtc, "_TOOLKITS", ())
    monkeypatch.setattr(_nvrtc, "_wheels", lambda: [Path("/wheel/libnvrtc.so.13")])
    in_toolkit = tmp_path / "lib64" / "libnvrtc.so.12"
    in_toolkit.parent.mkdir()
    in_toolkit.touch()

    found = list(_nvrtc._candidates())

    assert found == ["libnvrtc.so.13", "libnvrtc.so.12", str(in_toolkit), "/wheel/libnvrtc.so.13"]


@pytest.mark.parametrize(
    ("number", "assembles", "target", "form"),
    [
        (90, True, "sm_90", "CUBIN"),
        (90, False, "compute_90", "PTX"),
        (120, True, "compute_100", "PTX"),
        (86, True, "compute_80", "PTX"),
    ],
)
def test_for_a_card_it_does_not_know_it_makes_what_the_driver_assembles(
    number: int, assembles: bool, target: str, form: str
) -> None:
    assert target_of(number, SUPPORTED, assembles) == (target, form)


def test_a_card_older_than_all_it_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvrtc, "path", lambda: "here")
    with pytest.raises(CompilerUnavailable, match="does not compile for sm_80, only for sm_90"):
        target_of(80, (90,), True)


@pytest.mark.parametrize(("version", "supported"), [((11, 8), (80, 90)), ((12, 0), (80,))])
def test_an_older_nvrtc_does_not_know_what_hopper_alone_has(
    version: tuple[int, int], supported: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nvrtc, "version", lambda: version)
    monkeypatch.setattr(_nvrtc, "supported", lambda: supported)
    monkeypatch.setattr(_nvrtc, "path", lambda: "libnvrtc.so")

    with pytest.raises(CompilerUnavailable, match="does not compile for sm_90a"):
        NvrtcCompiler("sm_90a")
    assert NvrtcCompiler("sm_90").form in ("CUBIN", "PTX")


@pytest.mark.parametrize("name", ["gfx1100", "sm_75", "90", "sm_"])
def test_what_is_no_architecture_of_nvidia_is_refused(name: str) -> None:
    with pytest.raises(CompilerUnavailable, match="is no architecture that tiny-nv compiles for"):
        number_of(name)


def test_an_architecture_that_is_not_known_is_like_the_one_before_it() -> None:
    assert arch_of("sm_88") is ARCHS[87]
    assert arch_of("sm_150") is ARCHS[121]
    assert limits_of(ARCHS[90]).shared_bytes == 227 << 10


def test_a_message_of_the_compiler_has_its_line() -> None:
    log = 'kernel.cu(2): error: identifier "y" is undefined\n\n1 error detected'

    assert _nvrtc.annotated(log, "first\n  x = y;\nlast").splitlines()[:2] == [
        'kernel.cu(2): error: identifier "y" is undefined',
        "  line 2: x = y;",
    ]


def test_what_does_not_compile_is_told_with_log_and_line(nvrtc: None) -> None:
    with pytest.raises(CompileError) as caught:
        NvrtcCompiler("sm_90").compile('extern "C" __global__ void k() {\n  int x = y;\n}\n')

    assert "line 2: int x = y;" in caught.value.log
    assert "nvrtc" in str(caught.value)


def test_it_makes_programs_and_shows_assembly(nvrtc: None) -> None:
    compiler = NvrtcCompiler("sm_90")
    source = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] = 1; }\n'

    assert compiler.compile(source).startswith(b"\x7fELF")
    assert ".target sm_90" in compiler.assembly(source)


def test_without_an_architecture_it_compiles_for_the_oldest(nvrtc: None) -> None:
    assert toolchain().arch == "sm_80"
