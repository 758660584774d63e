"""The words of an ARCH."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tiny_webgpu.arch import Arch
from tinycore import Context, Device, Tensor, Variable, dtypes
from tinycore.errors import SettingError, UnsupportedError


def test_no_words_are_what_the_standard_guarantees() -> None:
    arch = Arch.parse("")

    assert str(arch) == ""
    assert not arch.float16
    assert arch.limits().block == (256, 256, 64)
    assert arch.limits().buffers == 8


def test_words_and_text_are_the_same() -> None:
    assert str(Arch.parse("f16,threads=1024,shared=32768")) == "f16,threads=1024,shared=32768"


def test_a_word_that_is_none_is_told() -> None:
    with pytest.raises(SettingError, match="'f64' in the ARCH 'f16,f64' is not understood; use"):
        Arch.parse("f16,f64")


@pytest.fixture
def closed() -> Iterator[None]:
    """NULL keeps the toolchains that it was asked for."""
    yield
    Device.close("NULL")


def test_a_kernel_whose_loops_would_end_too_early_is_refused(closed: None) -> None:
    with Context(DEV="NULL:WGSL:rounds=255"):
        part = Tensor.empty(64, 1024)[: Variable("rows", 1, 64).bind(33)]
        with pytest.raises(UnsupportedError, match="go round up to 320 times in one thread"):
            (part @ part.T).realize()


def test_a_division_of_64_bits_is_a_loop_too(closed: None) -> None:
    with Context(DEV="NULL:WGSL:rounds=63"):
        x = Tensor.empty(4, dtype=dtypes.int64)
        with pytest.raises(UnsupportedError, match="go round up to 128 times in one thread"):
            (x // Tensor.empty(4, dtype=dtypes.int64)).realize()
