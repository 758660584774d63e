"""The words of an ARCH."""

from __future__ import annotations

import pytest

from tiny_webgpu.arch import Arch
from tinycore.errors import SettingError


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
