"""The text form against random graphs and random damage."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.expressions import random_expression
from tinycore.dtype import dtypes
from tinycore.errors import FileFormatError
from tinycore.uop.node import UOp
from tinycore.uop.parse import from_text, program_from_text
from tinycore.uop.text import to_text

MIX = (dtypes.index, dtypes.float32, dtypes.int8, dtypes.bool)
DAMAGE = '%=[](),."#\\ \n\0é0aE-'


def random_graph(random: Random) -> UOp:
    parts = [random_expression(random, random.choice(MIX), 5, MIX) for _ in range(3)]
    return UOp.sink(*parts)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_graph_comes_back_as_the_same_nodes(seed: int) -> None:
    graph = random_graph(Random(seed))

    assert from_text(to_text(graph)) is graph


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_program_comes_back_in_its_order(seed: int) -> None:
    random = Random(seed)
    program = tuple(random.sample(nodes := random_graph(random).toposort(), len(nodes)))

    assert program_from_text(to_text(program)) == program


@given(seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_damaged_text_is_parsed_or_refused(seed: int) -> None:
    random = Random(seed)
    text = to_text(random_graph(random))
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(text))
        kept = place + random.randint(0, 3)
        text = text[:place] + random.choice(DAMAGE) + text[kept:]

    try:
        assert isinstance(from_text(text), UOp)
    except FileFormatError:
        return


@pytest.mark.slow
@given(text=st.text(max_size=200))
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert isinstance(from_text(text), UOp)
    except FileFormatError:
        return
