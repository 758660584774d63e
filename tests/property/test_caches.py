"""Random pairs of related programs over one cache: a few here, any number by
`python -m tests.fuzz.caches`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.caches import Pair, check, check_texts, pair_of, shown
from tinycore import Context
from tinycore.schedule import disk
from tinycore.schedule.canonical import CanonicalGraph
from tinycore.uop.node import UOp

PER_PART = 3


@pytest.mark.sample(4)
@pytest.mark.parametrize("part", range(6))
def test_bits_do_not_depend_on_what_ran_before(part: int) -> None:
    with Context(DEV="PYTHON", PARALLEL=1):
        for seed in range(part * PER_PART, (part + 1) * PER_PART):
            pair = pair_of(seed)
            verdict = check(pair)
            assert not verdict.kind, shown(pair, verdict)


STEP = "optimizer.zero_grad(); loss = (h @ w0 @ w1).cross_entropy(labels); loss.backward()"
PROGRAM = f"""
# {{'TRAINING': 1}}
n = 8
c = 0.5
length = 3
dtype = 'float32'
start(AdamW, dtype, n, length)
h = (x0 @ m0).gelu().detach()
LOOK
{STEP}; optimizer.step(); show(loss)
{STEP}; optimizer.step(); show(loss)
"""


class Walked:
    """A graph whose nodes are numbered by the tensor graph, of which the key knows nothing."""

    def __init__(self, canonical: CanonicalGraph) -> None:
        self.nodes = list(canonical.nodes.values())

    def toposort(self) -> list[UOp]:
        return self.nodes


@pytest.mark.slow
def test_positions_that_the_key_does_not_determine_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [PROGRAM.replace("LOOK", look) for look in ("h.realize()", "h.numpy()")]
    with Context(DEV="PYTHON", PARALLEL=1):
        assert check_texts(0, *texts) == ("", "")
        put, find = disk.to_entry, disk.from_entry

        def walked(canonical: CanonicalGraph) -> Any:
            return canonical._replace(sink=Walked(canonical))  # type: ignore[arg-type]

        monkeypatch.setattr(disk, "to_entry", lambda form, parts: put(walked(form), parts))
        monkeypatch.setattr(disk, "from_entry", lambda text, form: find(text, walked(form)))
        assert check_texts(0, *texts).kind == "neighbor"


def test_every_kind_of_line_and_of_neighbor_is_made() -> None:
    pairs = [pair_of(seed) for seed in range(120)]
    text = "\n".join(str(pair.first) for pair in pairs)

    for part in (
        ".realize()", ".numpy()", ".item()", ".detach()", "kept.append", "kept.clear", ".assign(",
        "x0 += 1", "start(SGD", "start(Adam", "backward()", "shards(", "replayed(", ":length]",
        "-0.0", "Tensor.rand", ".dropout(", "Tensor.realize(", "'NOOPT': 1", "'float64'",
    ):  # fmt: skip
        assert part in text, part
    assert {"look", "size", "setting", "longer"} <= {kind for pair in pairs for kind in kinds(pair)}


def kinds(pair: Pair) -> list[str]:
    """Some of the ways in which a pair differs."""
    first, second = (str(program).splitlines() for program in (pair.first, pair.second))
    looks = any("realize" in a and "numpy" in b for a, b in zip(first, second, strict=False))
    found = {
        "look": looks,
        "size": first[1] != second[1],
        "setting": first[0] != second[0],
        "longer": len(first) < len(second),
    }
    return [kind for kind, differs in found.items() if differs]
