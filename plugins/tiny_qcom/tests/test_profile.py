"""A profile of the stand-in of an Adreno, in machine code of Mesa's compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from adreno.kgsl import Kgsl
from profiled import profile_is_whole
from simulated_qcom import backend_of, execute

from tiny_qcom.ir3 import library_path
from tinycore import Context
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import register, unregister

try:
    library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.slow
def test_a_profile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Kgsl(execute)
    register(backend_of(driver))
    try:
        with Context(DEV="QCOM:IR3"):
            profile_is_whole("QCOM", tmp_path, monkeypatch, assembly=True)
    finally:
        unregister("QCOM")
    assert not driver.faults
