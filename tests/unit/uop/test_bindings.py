"""Names for bound variables in the graphs that schedules and programs are made for."""

from __future__ import annotations

from tinycore.uop.bindings import Naming
from tinycore.uop.size import GIVEN_MARK, Size, Variable


def names(naming: Naming) -> list[str]:
    return [node.arg[0] for node in naming.nodes.values()]


def bound(name: str, value: int) -> Size:
    size = Variable(name, 1, 9).bind(value)
    assert isinstance(size, Size)
    return size


def test_a_binding_keeps_the_name_of_its_variable_and_drops_its_number() -> None:
    naming = Naming()
    for size in (bound("n", 3), bound("n", 4), bound("m", 3)):
        naming.note(size)

    assert names(naming) == ["n", "n#1", "m"]
    assert naming.numbers == {"n": 3, "n#1": 4, "m": 3}


def test_what_a_captured_function_is_given_is_numbered_from_its_name() -> None:
    given = Naming(GIVEN_MARK)
    first, second = given.held(bound("n", 3)), given.held(bound("n", 4))

    assert names(given) == ["n@0", "n@1"]

    again = Naming()
    again.note(first)
    assert names(again) == ["n@0"]  # as it was given

    plain = Naming(keeps_given=False)
    plain.note(first)
    plain.note(second)
    assert names(plain) == ["n", "n#1"]
