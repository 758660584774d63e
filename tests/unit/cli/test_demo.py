"""The demo keeps its promise: 97% of the digits it has not seen, and the same ones each time."""

from __future__ import annotations

import re

import pytest

from tinycore.cli.main import main


def accuracy(output: str) -> float:
    found = re.search(r"held-out accuracy ([\d.]+)%", output)
    assert found is not None
    return float(found[1])


@pytest.mark.slow
def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"])

    assert accuracy(capsys.readouterr().out) >= 97


@pytest.mark.slow
def test_a_seed_gives_the_same_numbers_again(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        main(["demo", "--steps", "3", "--batch", "16", "--seed", "5"])
        outputs.append(re.sub(r"in [\d.]+ s", "", capsys.readouterr().out))

    assert outputs[0] == outputs[1]
