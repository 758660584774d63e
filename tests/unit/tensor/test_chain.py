"""`Tensor` is one class in a chain of files; see docs/decisions/0015."""

from __future__ import annotations

import re
from collections import Counter

from tinycore.tensor import Tensor, core

LINKS = Tensor.__mro__[-2::-1]
"""From `Core` to `Tensor`, without `object`."""

DECLARED_EARLIER = {"_host_array", "_dropped"}
"""Methods that an earlier link calls and a later one provides."""


def test_files_are_linked_in_the_order_that_the_header_states() -> None:
    stated = (core.__doc__ or "").partition("before it: ")[2].partition(".")[0]

    names = [link.__module__.rpartition(".")[2] for link in LINKS]

    assert names == [name for name in re.findall(r"\w+", stated) if name != "and"]


def test_each_link_inherits_the_one_before_only() -> None:
    assert [link.__bases__ for link in LINKS[1:]] == [(before,) for before in LINKS[:-1]]


def test_no_link_overrides_what_another_defines() -> None:
    defined = Counter(name for link in LINKS for name in vars(link) if not name.startswith("__"))

    assert {name for name, count in defined.items() if count > 1} == DECLARED_EARLIER


def test_only_the_first_link_has_state() -> None:
    assert [link.__dict__["__slots__"] for link in LINKS[1:]] == [()] * (len(LINKS) - 1)
    assert [link for link in LINKS if "__init__" in vars(link)] == [core.Core]
