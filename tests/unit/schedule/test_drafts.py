"""Which kernel in the making waits for which: levels give the answer of a search of everything."""

from __future__ import annotations

import random

import pytest

from tests.unit.schedule.graphs import assign, buffer, kernels, matmul
from tinycore.schedule.drafts import Draft, Drafts
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def searched(drafts: Drafts, later: Draft, draft: Draft) -> bool:
    """Whether a draft waits for another, by looking at all that it waits for."""
    stack, seen = [later], set()
    while stack:
        found = stack.pop()
        if found is draft:
            return True
        if id(found) not in seen:
            seen.add(id(found))
            stack += drafts.before(found)
    return False


@pytest.mark.parametrize("seed", range(20))
def test_levels_find_what_a_search_of_everything_finds(seed: int) -> None:
    chance = random.Random(seed)
    drafts = Drafts()
    nodes: list[UOp] = [buffer(4) for _ in range(3)]
    for number in range(40):
        needs = chance.sample(nodes, min(len(nodes), chance.randint(1, 3)))
        node = nodes[0] * float(number)
        if chance.random() < 0.3:
            node = assign(chance.choice(nodes[:3]), node)
        draft = Draft([node], dict.fromkeys(needs))
        homes = [d for d in drafts.all if not drafts.comes_after([draft], d)]
        waits = drafts.before(draft)
        joined = [d for d in homes if d not in waits and not drafts.comes_after(waits, d)]
        if joined and chance.random() < 0.3:
            drafts.join(chance.choice(joined), draft)
        else:
            drafts.add(draft)
        nodes.append(node)

    for later in drafts.all:
        for draft in drafts.all:
            assert drafts.comes_after([later], draft) == searched(drafts, later, draft)


def test_work_grows_with_the_number_of_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    whole = Drafts.before

    def counted(self: Drafts, draft: Draft) -> list[Draft]:
        looked_at.append(1)
        return whole(self, draft)

    def chain(length: int) -> int:
        """Kernels in a chain, and one more beside each, which could share its loops."""
        looked_at.clear()
        x, weight, found = buffer(8, 8), buffer(8, 8), []
        for _ in range(length):
            x = UOp(Op.CONTIGUOUS, x.dtype, (matmul(x, weight),))
            found.append(x * weight)
        assert len(kernels(x, *found)) >= length
        return len(looked_at)

    monkeypatch.setattr(Drafts, "before", counted)
    short, long = chain(20), chain(80)

    assert long < 6 * short
