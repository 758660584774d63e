"""A name means one thing: few functions share one, and no constant has two values.

Searching for a name should find what it stands for. Functions of a module are counted, not methods:
a method is said with its object, a function often without its module.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.first_nouns import (
    ROOT,
    docstrings,
    first_noun_phrase,
    glossary_terms,
    is_known,
    word_lists,
)

PARTS: Final = (
    "core",
    "fuzz",
    *sorted(path.name for path in ROOT.glob("plugins/tiny_*")),
)
"""Parts in which names are counted: the core, the fuzzers, and each package."""

SHARED_FUNCTIONS: Final = {
    "__getattr__": "Python's protocol of modules (PEP 562)",
    "add": "protocol of commands: add the command to the command line",
    "run": "protocol of commands: run the command",
    "main": "protocol of programs: what `python -m` calls",
    "program": "protocol of fuzzers: the program of a seed",
    "check": "protocol of fuzzers: run a random program and return what is wrong",
    "smaller": "protocol of fuzzers: the programs that a failing one shrinks to",
    "shown": "protocol of fuzzers: a program as text",
}
"""Functions that any number of modules may have, as they are called by that name on any of them."""

SHARED_CONSTANTS: Final = {
    "BACKEND": "protocol of plugins: what an entry point names",
    "DECLARATIONS": "protocol of C declarations: what `tiny_testing.native` reads",
    "DESCRIPTION": "protocol of commands: the text above the options",
    "EPILOG": "protocol of commands: the text below the options",
    "FAMILY": "protocol of families of random programs: its members with their weights",
    "MODULE": "protocol of C declarations: the module that they are made to",
    "FUZZER": "protocol of fuzzers: the object that `python -m tests.fuzz.NAME` runs",
}
"""Constants that have a value per module, for the same reason."""

CLAUSE: Final = re.compile(r'^ *r?"""(?:What|Whether|That|How|Where|Which|Who|Of)\b', re.MULTILINE)
"""Beginning of a docstring that describes a thing by a clause in place of naming it."""

FOLDERS: Final = ("tinycore", "plugins", "tests", "docs", "benchmarks", "examples")
"""Folders of all sources."""


def files_of(part: str) -> Iterator[Path]:
    """The sources of a part."""
    folders = {"core": ROOT / "tinycore", "fuzz": ROOT / "tests/fuzz"}
    return iter(sorted(folders.get(part, ROOT / "plugins" / part / "src").rglob("*.py")))


@cache
def modules_of(part: str) -> dict[str, ast.Module]:
    """The syntax trees of a part's modules, by path."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in files_of(part)
    }


def functions_in(tree: ast.Module) -> Iterator[str]:
    """The functions of a module."""
    return (node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def constants_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The constants of a module, with their values as text."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], ast.unparse(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, ast.unparse(node.value)
        else:
            continue
        if isinstance(target, ast.Name) and is_constant_name(target.id):
            yield target.id, value


def is_constant_name(name: str) -> bool:
    """True if a name is in capitals and no type variable: those have one letter."""
    return name.isupper() and len(name.strip("_")) > 1


def crowded(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Functions of more than two modules, with the modules."""
    owners: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for name in set(functions_in(tree)):
            owners[name].append(path)
    return {name: paths for name, paths in sorted(owners.items()) if len(paths) > 2}


def ambiguous(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Constants with several values, with the modules that define them."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for path, tree in modules.items():
        for name, value in constants_in(tree):
            values[name][path] = value
    return {
        name: sorted(found)
        for name, found in sorted(values.items())
        if len(set(found.values())) > 1
    }


@pytest.mark.sample(4)
@pytest.mark.parametrize("part", PARTS)
def test_no_function_name_is_in_more_than_two_modules(part: str) -> None:
    found = crowded(modules_of(part))

    assert {name: found[name] for name in found if name not in SHARED_FUNCTIONS} == {}


@pytest.mark.parametrize("part", PARTS)
def test_no_constant_name_has_two_values(part: str) -> None:
    found = ambiguous(modules_of(part))

    assert {name: found[name] for name in found if name not in SHARED_CONSTANTS} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_name_things_by_a_term_or_say_true_if(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text[match.start() :].strip().splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in [path.read_text("utf-8")]
        for match in CLAUSE.finditer(text)
    ]

    assert found == []


def test_a_clause_is_found_and_a_term_is_not() -> None:
    assert CLAUSE.search('def f():\n    """Whether it is so."""')
    assert CLAUSE.search('"""Of both."""')
    assert not CLAUSE.search('"""True if it is so."""')
    assert not CLAUSE.search('"""Offsets of both."""')


@pytest.mark.parametrize("part", [part for part in PARTS if part != "fuzz"])
def test_docstrings_begin_with_a_term_of_the_glossary_or_an_ordinary_word(part: str) -> None:
    found = docstrings("tinycore" if part == "core" else f"plugins/{part}/src")

    unknown = {
        f"{phrase[-1]}: {doc.path}": doc.text
        for doc in found
        if (phrase := first_noun_phrase(doc.text, doc.is_function)) and not is_known(phrase)
    }

    assert unknown == {}, "say it by a term of docs/glossary.md, or a word of tests/words.toml"


def test_ordinary_words_are_sorted_and_no_terms() -> None:
    text = (ROOT / "tests/words.toml").read_text("utf-8")

    for name, words in word_lists().items():
        listed = text.partition(f'{name} = """')[2].partition('"""')[0].split()
        assert listed == sorted(words), name
    assert word_lists()["nouns"].isdisjoint(glossary_terms())


@pytest.mark.parametrize(
    ("text", "is_function", "noun"),
    [
        ("The memory plan: offsets of temporary values.", False, "plan"),
        ("Product chains (GEMM): two products in one kernel.", False, "chain"),
        ("Return the largest stride of an access.", True, "stride"),
        ("Loads, stores and arithmetic of a kernel.", True, "load"),
        ("True if the threads of a group may differ.", True, "thread"),
        ("Prints how long a block took.", False, ""),
        ("Wait until all of it is done.", True, ""),
        ("The weights packed for a tile.", True, "weight"),
        ("`Buffer`: a span of memory.", False, ""),
        ("x (N, C, H, W) -> (N, O, H', W').", True, ""),
        ("A CUDA stream.", True, ""),
        ("All matrices of a batch.", True, "matrix"),
        ("Frobnications of a kernel.", False, "frobnication"),
        ("Do the frobnication.", True, "frobnication"),
        ("True if a frobnication is over.", True, "frobnication"),
    ],
)
def test_the_first_noun_is_the_head_of_the_first_noun_phrase(
    text: str, is_function: bool, noun: str
) -> None:
    phrase = first_noun_phrase(text, is_function)

    assert (phrase or [""])[-1] == noun
    assert is_known(phrase or ["kernel"]) == (noun != "frobnication")


def test_every_exception_is_needed() -> None:
    parts = [modules_of(part) for part in PARTS]

    assert SHARED_FUNCTIONS.keys() <= {name for part in parts for name in crowded(part)}
    assert SHARED_CONSTANTS.keys() <= {name for part in parts for name in ambiguous(part)}


def test_a_crowded_name_and_an_ambiguous_constant_are_found() -> None:
    sources = ("MOST = 1\ndef f(): pass", "MOST: Final = 2\ndef f(): pass", "def f(): pass\nT = 1")
    modules = {f"{k}.py": ast.parse(source) for k, source in enumerate(sources)}

    assert crowded(modules) == {"f": ["0.py", "1.py", "2.py"]}
    assert ambiguous(modules) == {"MOST": ["0.py", "1.py"]}
