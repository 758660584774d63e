"""Host streams around a captured function: generators of random numbers, and iterators.

Floor 5. What the host draws is a constant of the launches, and two calls often draw alike, as in
`if random.random() < .1`. So a capture is refused if it drew a number from Python's or NumPy's
random generators, or finds an iterator, whose position nobody can ask for.
"""

from __future__ import annotations

import pickle
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tinycore.tensor.names import Names

OF_PYTHON: Final = ("builtins", "itertools")
"""Modules of the iterators that nobody can look into."""
METHODS: Final = (types.BuiltinMethodType, types.MethodType)


def is_iterator(value: Any) -> bool:
    """True for generators and the iterators of Python and `itertools`."""
    return isinstance(value, Iterator) and type(value).__module__ in OF_PYTHON


def random_generators(values: Iterable[Any], names: Names) -> list[Any]:
    """The generators of random numbers among values, their methods, and modules that code names."""
    numpy_random: Any = sys.modules.get("numpy.random")
    found: dict[int, Any] = {}
    for value in values:
        owner = value.__self__ if isinstance(value, METHODS) else value
        if owner is random:
            owner = random._inst
        elif numpy_random is None:
            pass
        elif owner is numpy_random or (owner is sys.modules["numpy"] and names.has("random")):
            owner = numpy_random.mtrand._rand
        kinds = (random.Random, *generators_of(numpy_random))
        if isinstance(owner, kinds) and not isinstance(owner, random.SystemRandom):
            found[id(owner)] = owner
    return list(found.values())


def generators_of(numpy_random: Any) -> tuple[type, ...]:
    """The classes of NumPy's generators; none before NumPy's module is imported."""
    return () if numpy_random is None else (numpy_random.Generator, numpy_random.RandomState)


def positions(generators: Iterable[Any]) -> list[bytes]:
    """The state of each generator."""
    return [pickle.dumps(generator) for generator in generators]
