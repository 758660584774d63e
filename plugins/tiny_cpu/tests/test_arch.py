"""The processor that is meant, and its features."""

import pytest

from tiny_cpu import arch
from tiny_cpu.arch import Arch, host_machine
from tinycore.config import Context
from tinycore.errors import SettingError


@pytest.mark.parametrize("text", ["", "native", " native "])
def test_nothing_and_native_are_the_host(text: str) -> None:
    assert Arch.parse(text) == Arch(host_machine(), "native")


def test_a_machine_alone_is_its_plainest_processor() -> None:
    assert Arch.parse("x86_64") == Arch("x86_64", "x86-64")
    assert Arch.parse("arm64") == Arch("aarch64", "generic")


def test_features_carry_their_sign() -> None:
    arch = Arch.parse("x86_64,znver2,avx2,-avx512f")

    assert arch == Arch("x86_64", "znver2", ("+avx2", "-avx512f"))
    assert str(arch) == "x86_64,znver2,avx2,-avx512f"


@pytest.mark.parametrize(
    ("text", "vector_bytes", "registers"),
    [
        ("x86_64", 16, 16),
        ("x86_64,sandybridge", 32, 16),
        ("x86_64,znver2", 32, 16),
        ("x86_64,znver4", 64, 32),
        ("x86_64,znver4,-avx512f", 32, 16),
        ("x86_64,znver4,-avx", 16, 16),
        ("x86_64,x86-64,avx2,fma", 32, 16),
        ("aarch64,apple-m1", 16, 32),
    ],
)
def test_limits_follow_the_processor(text: str, vector_bytes: int, registers: int) -> None:
    limits = Arch.parse(text).limits()

    assert limits.vector_bytes == vector_bytes
    assert limits.vector_registers == registers


def test_threads_are_of_this_machine() -> None:
    with Context(CPU_COUNT=7):
        limits = Arch.parse("native").limits()

    assert limits.threads == 7


@pytest.mark.parametrize(("listed", "found"), [(8, 8), (32, 24), (480, 24)])
def test_a_processor_counts_on_its_part_of_a_last_cache_only(
    listed: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arch, "_cache_bytes", lambda level, usual: listed << 20)
    with Context(CPU_COUNT=2):
        assert Arch.parse("x86_64").limits().stream_bytes == found << 20


@pytest.mark.parametrize(
    ("text", "is_baseline"), [("x86_64", True), ("x86_64,x86-64-v3", False), ("aarch64", False)]
)
def test_a_baseline_lacks_half_floats(text: str, is_baseline: bool) -> None:
    assert Arch.parse(text).is_baseline is is_baseline


def test_what_native_stands_for_is_in_the_identity() -> None:
    assert Arch.parse("native").identity != str(Arch.parse("native"))
    assert Arch.parse("x86_64,znver2").identity == "x86_64,znver2"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("z80", "no machine is named 'z80'; known are x86_64, aarch64"),
        ("x86_64,znvr2", "no x86_64 processor is named 'znvr2'; did you mean znver2?"),
        ("x86_64,,avx2", "no x86_64 processor is named ''"),
        ("x86_64,znver2,avx3", "x86_64 has no feature 'avx3'"),
        ("x86_64,znver2,", "x86_64 has no feature ''"),
        ("aarch64,apple m1", "'apple m1' is no name of a processor"),
    ],
)
def test_a_malformed_processor_is_told_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        Arch.parse(text)

    assert f"the processor {text!r} is not understood: {problem}" in str(caught.value)
    assert "such as x86_64,znver2,avx2,-avx512f" in str(caught.value)


def test_another_machine_cannot_be_native() -> None:
    other = "aarch64" if host_machine() == "x86_64" else "x86_64"

    with pytest.raises(SettingError, match="cannot be native"):
        Arch.parse(f"{other},native")
