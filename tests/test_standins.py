"""A sample of the tests of tensors and layers, on what plays each card: `STANDIN=AMD pytest`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.standins import ROOT

SAMPLED = {
    "AMD": 75,
    "CUDA:PTX": 75,
    "METAL": 100,
    "METAL-M3": 200,
    "METAL-OLD": 200,
    "NV:PTX-HOPPER-580": 75,
    "QCOM:IR3": 75,
    "QCOM:QCOMCL": 150,
}
"""One test in so many is run, fewer where a kernel is compiled by a process: METAL, QCOMCL."""
LIMIT_SECONDS = 900


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_of_tensor_tests(name: str) -> None:
    arguments = ["--one-in", str(SAMPLED[name]), "tests/unit/tensor", "tests/unit/nn"]
    told = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "DEV", "TENSOR"))}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS,
        env={**told, "STANDIN": name},
    )  # fmt: skip

    if missing := re.search(r"no stand-in: (.*)", done.stdout + done.stderr):
        pytest.skip(missing[1])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\b\d{2,} passed", done.stdout), done.stdout[-2000:]
