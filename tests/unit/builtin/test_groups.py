"""PYTHON under an ARCH: plans of a graphics card, run by the interpreter."""

from __future__ import annotations

import numpy
import pytest

from tinycore import Context, Device, Tensor
from tinycore.errors import SettingError
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import Stage
from tinycore.uop.op import Op

GROUPS = "PYTHON:PYTHON:groups=16"


def test_an_arch_asks_for_groups() -> None:
    device = Device["PYTHON"]
    alone, groups = (device.toolchain_for("PYTHON", arch) for arch in ("", "groups=64"))

    assert alone.renderer.limits.block_wanted == 1
    assert groups.renderer.limits.block_wanted == 64


@pytest.mark.parametrize("arch", ["64", "groups", "groups=1", "groups=x", "groups=2000"])
def test_another_arch_is_refused(arch: str) -> None:
    with pytest.raises(SettingError, match="no ARCH of PYTHON; it has one"):
        Device["PYTHON"].toolchain_for("PYTHON", arch)


def test_a_product_shares_operands() -> None:
    a, b = (numpy.arange(n * 5, dtype="f").reshape(n, 5) for n in (24, 20))
    with Context(DEV=GROUPS):
        found = Tensor(a) @ Tensor(b).T
        found.kernelize()
        kernel = next(n for n in found.uop.toposort() if n.op is Op.KERNEL)
        limits = Device["PYTHON"].toolchain_for("PYTHON", "groups=16").renderer.limits

        assert any(isinstance(step, Stage) for step in plan_for(kernel.arg.ast, limits))
        numpy.testing.assert_allclose(found.numpy(), a @ b.T)
