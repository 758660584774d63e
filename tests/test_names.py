"""A name means one thing: few functions share one, and no constant has two values.

Searching for a name should find what it stands for. Functions of a module are counted, not methods:
a method is said with its object, a function often without its module.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

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
    "propose": "protocol of strategies: the plans proposed for a kernel",
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

GLOSSARY: Final = (ROOT / "docs/glossary.md").read_text("utf-8")

ENDS_NOUN: Final = re.compile(
    r"[:;,.]|\b(?:along|and|as|at|behind|between|by|for|from|in|inside|is|like|made|of|on|or|over|that|"
    r"through|to|under|which|whose|with|without)\b"
)
"""End of the noun phrase that a line begins with."""
NAME: Final = re.compile(r"`.+?`|[\w-]+[A-Z0-9][\w'-]*")
"""A name: in backticks, or with capitals or digits inside, such as DLPack."""


def singular(noun: str) -> str:
    """A noun without the ending of the plural."""
    for ending, other in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("ss", "ss"), ("is", "is")):
        if noun.endswith(ending):
            return noun.removesuffix(ending) + other
    return noun.removesuffix("s")


def first_noun(line: str) -> list[str]:
    """The words of the noun phrase that a line begins with, its head last and in the singular."""
    line = re.sub(r"\([^)]*\) ?|^(?:An?|The|One) ", "", line)
    if name := NAME.match(line):
        return [name[0]]
    *words, last = ENDS_NOUN.split(line, maxsplit=1)[0].split() or [""]
    return [last] if NAME.fullmatch(last) else [*map(str.lower, words), singular(last.lower())]


def glossary_terms() -> set[str]:
    """The terms of the glossary in the singular: what is in bold there."""
    found = [
        term for bold in re.findall(r"\*\*(.+?)\.?\*\*", GLOSSARY) for term in bold.split(", ")
    ]
    return {" ".join(first_noun(term)) for term in found}


def ordinary_words() -> list[str]:
    """The nouns that the glossary lists as ordinary ones."""
    return re.findall(r"[\w-]+", GLOSSARY.partition("## Ordinary words")[2].partition(":")[2])


def first_lines() -> dict[str, str]:
    """The first line of each module's docstring: that of its file, which nothing comes before."""
    lines = {}
    for path in files_of("core"):
        with path.open(encoding="utf-8") as file:
            lines[path.relative_to(ROOT).as_posix()] = file.readline().strip().replace('"""', "")
    return lines


def unknown_nouns(lines: dict[str, str], terms: set[str], words: Collection[str]) -> dict[str, str]:
    """Lines whose first noun is neither a name nor a term, nor an ordinary word."""

    def is_known(noun: list[str]) -> bool:
        tails = {" ".join(noun[start:]) for start in range(len(noun))}
        return bool(NAME.fullmatch(noun[-1])) or not tails.isdisjoint(terms.union(words))

    return {path: line for path, line in lines.items() if not is_known(first_noun(line))}


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


def test_docstrings_of_modules_begin_with_a_term_of_the_glossary() -> None:
    lines, terms, words = first_lines(), glossary_terms(), ordinary_words()

    assert unknown_nouns(lines, terms, words) == {}
    assert words == sorted({*words} - terms), "each once, in order, and no term"
    heads = {first_noun(line)[-1] for line in lines.values()}
    assert {*words} <= heads, "an ordinary word that no module needs"


def test_the_first_noun_is_the_head_of_the_first_noun_phrase() -> None:
    terms, words = {"memory plan", "chain"}, ["copy"]
    lines = {
        "term": "The memory plan: offsets of temporary values.",
        "head": "Product chains (GEMM): two products in one kernel.",
        "word": "Transposed copies of operands.",
        "name": "`Buffer`: a span of memory.",
        "other": "Sooner steps of memory.",
        "plan": "Plans of memory.",
        "verb": "Copying of memory.",
        "none": "",
    }

    assert unknown_nouns(lines, terms, words).keys() == {"other", "plan", "verb", "none"}


def test_every_exception_is_needed() -> None:
    parts = [modules_of(part) for part in PARTS]

    assert SHARED_FUNCTIONS.keys() <= {name for part in parts for name in crowded(part)}
    assert SHARED_CONSTANTS.keys() <= {name for part in parts for name in ambiguous(part)}


def test_a_crowded_name_and_an_ambiguous_constant_are_found() -> None:
    sources = ("MOST = 1\ndef f(): pass", "MOST: Final = 2\ndef f(): pass", "def f(): pass\nT = 1")
    modules = {f"{k}.py": ast.parse(source) for k, source in enumerate(sources)}

    assert crowded(modules) == {"f": ["0.py", "1.py", "2.py"]}
    assert ambiguous(modules) == {"MOST": ["0.py", "1.py"]}
