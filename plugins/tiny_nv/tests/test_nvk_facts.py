"""docs/nv-facts.md: the tests that it names are there; and tests of facts that no file has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from driver_memory import content, written
from rm_standin import Machine
from rm_standin.cards import CARDS, H200, CardFacts
from simulated_nv import opened
from test_nvk_driver import BYTES, load

from tiny_nv.nvk.addresses import HUGE_PAGE, PAGE
from tiny_nv.nvk.classes import SM_VERSIONS, arch_of_sm
from tiny_nv.nvk.device import NvDevice
from tinycore.errors import DeviceUnavailable

TESTS: Final = Path(__file__).parent
FACTS: Final = (TESTS.parents[2] / "docs/nv-facts.md").read_text("utf-8")
NAMED: Final = sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)`", FACTS)))


@cache
def names_of(file: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    text = (TESTS / file).read_text("utf-8")
    return frozenset(re.findall(r"^def (test_\w+)", text, re.MULTILINE))


def test_each_fact_has_a_test_that_is_there() -> None:
    rows = [line for line in FACTS.splitlines() if re.match(r"\| (?!fact|evidence)[^-]", line)]

    assert len(rows) > 50
    assert [row for row in rows if "::test_" not in row] == []
    assert [f"{file}::{name}" for file, name in NAMED if name not in names_of(file)] == []


@pytest.fixture(params=list(CARDS.values()), ids=list(CARDS))
def device(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    facts: CardFacts = request.param
    found = opened(Machine((facts,)))
    yield found
    found.close()


def test_every_card_computes(device: NvDevice) -> None:
    source, target = written(device, range(64)), device.allocator.alloc(BYTES)
    load(device)([target, source], [5])
    assert content(device, target).tolist() == list(range(5, 69))


def test_architectures_of_multiprocessors() -> None:
    told = {facts.sm_version: f"sm_{facts.arch}" for facts in CARDS.values()}

    assert {version: arch_of_sm(version) for version in told} == told
    assert SM_VERSIONS.keys() > told.keys()
    with pytest.raises(DeviceUnavailable, match=r"version 0xd00.*DEV=CUDA"):
        arch_of_sm(0xD00)


@pytest.mark.parametrize(
    ("size", "page"), [(5000, PAGE), ((8 << 20) - 1, PAGE), ((8 << 20) + 1, HUGE_PAGE)]
)
def test_large_memory_has_huge_pages(size: int, page: int) -> None:
    machine = Machine((H200,))
    device = opened(machine)
    device.allocator.alloc(5000)  # so that addresses begin at no multiple of a huge page
    before = machine.gpus[0].used_bytes
    buffer = device.allocator.alloc(size)

    assert machine.gpus[0].used_bytes - before == -(-size // page) * page
    assert buffer.address % page == 0
    assert buffer.address % HUGE_PAGE == 0 or page == PAGE
    device.close()
