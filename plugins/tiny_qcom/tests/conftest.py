"""The simulated Adreno that tests of launches share: KGSL's stand-in, which executes ir3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from adreno.kgsl import Kgsl
from simulated_qcom import Simulated, execute

from tiny_qcom.device import QcomDevice


@pytest.fixture(scope="module")
def driver() -> Kgsl:
    return Kgsl(execute)


@pytest.fixture(scope="module")
def device(driver: Kgsl) -> Iterator[QcomDevice]:
    opened = Simulated(driver)
    yield opened
    opened.close()
    assert not driver.faults
