"""The declaration of a backend, and what is said about one that breaks the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tinycore._deferred import deferred
from tinycore.device.backend import API_VERSION, Backend, Interface
from tinycore.device.protocols import ABILITIES, CAPABILITIES
from tinycore.errors import PluginError

Toy = Callable[..., Backend]


def test_a_deferred_imports_when_it_is_called() -> None:
    join = deferred("posixpath:join")

    assert repr(join) == "deferred('posixpath:join')"
    assert join("a", "b") == "a/b"


def test_a_deferred_reaches_into_classes() -> None:
    assert deferred("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}


@pytest.mark.parametrize("reference", ["module", "module.attribute", ":x", "a:b:c", "a b:c"])
def test_a_malformed_deferred(reference: str) -> None:
    with pytest.raises(PluginError, match=r'must be written "package.module:attribute"'):
        deferred(reference)


def test_a_missing_target_is_told_by_python() -> None:
    with pytest.raises(ModuleNotFoundError, match="nosuchmodule"):
        deferred("nosuchmodule:x")()
    with pytest.raises(AttributeError, match="nosuch"):
        deferred("posixpath:nosuch")()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "toy"}, "name must be words in capitals, not 'toy'"),
        ({"renderers": {"c": print}}, "renderers must be words in capitals, not 'c'"),
        ({"renderers": {}}, "it has no renderers"),
        ({"interfaces": ("P-I",)}, "interfaces must be words in capitals, not 'P-I'"),
        ({"interfaces": {"p-i": Interface()}}, "interfaces must be words in capitals, not 'p-i'"),
        ({"interfaces": {"PCI": "lspci"}}, "interface PCI must be an Interface, not 'lspci'"),
        ({"api": 1}, "api must be (major, minor), not 1"),
        ({"open": None}, "open must be callable"),
        ({"priority": "high"}, "priority must be a whole number, not 'high'"),
        ({"priority": float("nan")}, "priority must be a whole number, not nan"),
        ({"priority": True}, "priority must be a whole number, not True"),
        ({"platforms": "linux"}, "platforms must be a tuple of words, not 'linux'"),
        ({"capabilities": [1]}, "capabilities must be a frozenset of words, not [1]"),
        ({"renderers": {"C": 7}}, "renderer C must be callable"),
        ({"export": "page"}, "export must be callable"),
        ({"dlpack": (1, True)}, "dlpack must be a DLDeviceType or several, not (1, True)"),
        (
            {"interfaces": {"PCI": Interface(probe="none")}},  # type: ignore[arg-type]
            "probe of interface PCI must be callable",
        ),
        ({"count": 1}, "count must be callable"),
        ({"capabilities": {"float12"}}, "unknown capabilities float12; known are host_memory, "),
    ],
)
def test_a_broken_declaration_is_refused(toy: Toy, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(PluginError) as raised:
        toy(**changes)

    assert str(raised.value).startswith(f"Backend {changes.get('name', 'TOY')!r}: {problem}")


def test_an_unknown_field_is_named(toy: Toy) -> None:
    with pytest.raises(PluginError, match=r"TOY states nosuch, which version .* has not: leave it"):
        toy(nosuch=1)


def test_an_unknown_field_of_a_later_api_names_both_versions(toy: Toy) -> None:
    major, minor = API_VERSION

    with pytest.raises(PluginError, match=f"needs version {major}.{minor + 1} of the plugin API"):
        toy(nosuch=1, api=(major, minor + 1))


def test_every_ability_is_a_capability() -> None:
    assert ABILITIES.keys() <= CAPABILITIES.keys()
