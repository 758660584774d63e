"""docs/state.md lists all global state: module-level objects that change after import.

The sources are read as syntax, so that a new global is found before anything imports it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
CORE: Final = ROOT / "tinycore"
PAGE: Final = ROOT / "docs" / "state.md"

LEFT_OUT: Final = frozenset({"testing"})
"""Folders that are not part of the core: the test kit."""

CONTAINERS: Final = frozenset(
    {"Counter", "OrderedDict", "bytearray", "count", "defaultdict", "deque", "dict", "list", "set"}
    | {"WeakKeyDictionary", "WeakSet", "WeakValueDictionary"}
)
SYNCHRONIZERS: Final = frozenset(
    {"Condition", "ContextVar", "Event", "Lock", "RLock", "Semaphore", "local", "lock"}
    | {"recursive_lock"}
)
MEMOIZERS: Final = frozenset({"cache", "lru_cache"})
IMMUTABLE_BASES: Final = frozenset({"Enum", "NamedTuple", "Protocol", "TypedDict"})

CONSTANT: Final = frozenset({"ChosenDefault", "PassTrace", "RuleSet", "Trace", "UOp"})
"""Classes whose module-level objects are constants, though the class is not frozen: a descriptor, a
set of rules that are added while its module is imported, a channel, an interned node."""

MUTATORS: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
    | {"setdefault", "update"}
)


@cache
def sources() -> Mapping[str, ast.Module]:
    """The syntax trees of the core's files, by their paths below `tinycore/`."""
    return {
        path.relative_to(CORE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(CORE.rglob("*.py"))
        if not LEFT_OUT.intersection(path.relative_to(CORE).parts)
    }


def last_name(expression: ast.expr) -> str:
    """The last part of a dotted name: `lru_cache` of `functools.lru_cache(maxsize=4)`."""
    if isinstance(expression, ast.Call | ast.Subscript):
        return last_name(expression.func if isinstance(expression, ast.Call) else expression.value)
    return getattr(expression, "attr", getattr(expression, "id", ""))


def is_frozen(node: ast.ClassDef) -> bool:
    """True if instances cannot change: a named tuple, an enum, a frozen dataclass."""
    bases = {last_name(base) for base in node.bases}
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    return bool(bases & IMMUTABLE_BASES) or "frozen=True" in decorators


def stateful_classes(trees: Mapping[str, ast.Module]) -> frozenset[str]:
    """The names of classes whose instances can change."""
    classes = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    return frozenset(node.name for node in classes if not is_frozen(node)) - CONSTANT


def is_state(value: ast.expr | None, annotation: str, stateful: frozenset[str]) -> bool:
    """True if a module-level value is made to change: an empty container, a lock, an object."""
    if value is None or "Mapping[" in annotation:
        return False
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    return isinstance(value, ast.Call) and last_name(value) in (
        CONTAINERS | SYNCHRONIZERS | stateful
    )


def changed_names(tree: ast.Module) -> frozenset[str]:
    """Names that functions rebind by `global`, or whose items functions assign, add or remove."""
    found: set[str] = set()
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    for node in (n for function in functions for n in ast.walk(function)):
        if isinstance(node, ast.Global):
            found.update(node.names)
        owner: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value if node.func.attr in MUTATORS else None
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        if isinstance(owner, ast.Name):
            found.add(owner.id)
    return frozenset(found)


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None, str]]:
    """Name, value and annotation of each assignment to a plain name."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value, ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value, ast.unparse(node.annotation)


def globals_of(tree: ast.Module, stateful: frozenset[str]) -> Iterator[str]:
    """The mutable globals of a module, and the mutable attributes of its classes."""
    changed = changed_names(tree)
    stateful -= {n.name for n in tree.body if isinstance(n, ast.ClassDef) and is_frozen(n)}
    for name, value, annotation in assignments(tree.body):
        is_display = isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp)
        if is_state(value, annotation, stateful) or (name in changed and is_display):
            yield name
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef):
            for name, value, annotation in assignments(owner.body):
                if is_state(value, annotation, stateful):
                    yield f"{owner.name}.{name}"
    for node in tree.body:  # rebound by a function, whatever the first value is
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Global):
                    yield from inner.names


def memoized_functions(tree: ast.Module) -> Iterator[str]:
    """The functions of a module whose results are kept for the life of the process."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for function in functions:
        if MEMOIZERS.intersection(map(last_name, function.decorator_list)):
            yield function.name


def found_in_sources(memoized: bool) -> set[str]:
    """State in the sources: "file name" of each mutable global, or of each memoized function."""
    trees = sources()
    stateful = stateful_classes(trees)
    return {
        f"{file} {name}"
        for file, tree in trees.items()
        for name in (memoized_functions(tree) if memoized else globals_of(tree, stateful))
    }


def listed(section: str) -> set[str]:
    """Rows of a section of the page: file and name are the first two words of a row."""
    text = PAGE.read_text("utf-8")
    body = text.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in body.splitlines() if row.startswith("| `")]
    return {" ".join(re.findall(r"`([^`]+)`", row)) for row in rows}


@pytest.mark.slow
def test_the_page_lists_every_mutable_global() -> None:
    assert listed("Mutable globals") == found_in_sources(memoized=False)


@pytest.mark.slow
def test_the_page_lists_every_memoized_function() -> None:
    assert listed("Memoized functions") == found_in_sources(memoized=True)


TABLES: Final = frozenset({"cache.get", "cache.put", "disk.get", "disk.put"})
"""Calls by which something is kept on disk, or found there."""


def tables_on_disk() -> Iterator[str]:
    """The tables of the disk cache in core and plugins: "file name" of each."""
    plugins = (ROOT / "plugins").glob("*/src")
    for top in (CORE, *plugins):
        for path in sorted(top.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) not in TABLES:
                    continue
                table = node.args[0]
                name = str(table.value) if isinstance(table, ast.Constant) else ast.unparse(table)
                yield f"{path.relative_to(top).as_posix()} {name}"


def bounded_tables() -> Iterator[str]:
    """The bounded tables in memory."""
    for file, tree in sources().items():
        for name, value, _ in assignments(tree.body):
            if isinstance(value, ast.Call) and last_name(value) == "Lru":
                yield f"{file} {name}"


def memoized_by_arguments(tree: ast.Module) -> Iterator[str]:
    """The functions of a module whose results are kept by their arguments."""
    for node in ast.walk(tree):
        decorators = getattr(node, "decorator_list", ())
        if MEMOIZERS.intersection(map(last_name, decorators)) and isinstance(node, ast.FunctionDef):
            yield from [node.name] if node.args.args else ()


@pytest.mark.slow
def test_the_page_lists_all_state_of_packages() -> None:
    trees = {
        path.relative_to(top).as_posix(): ast.parse(path.read_text("utf-8"))
        for top in sorted((ROOT / "plugins").glob("*/src"))
        for path in sorted(top.rglob("*.py"))
    }
    stateful = stateful_classes({**sources(), **trees})
    found = {
        f"{file} {name}"
        for file, tree in trees.items()
        for name in (
            *globals_of(tree, stateful),
            *({*memoized_functions(tree)} - {*memoized_by_arguments(tree)}),
        )
    }

    assert listed("State of packages") == found


@pytest.mark.slow
def test_the_page_lists_every_memoized_function_of_packages_with_its_key() -> None:
    found = {
        f"{path.relative_to(top).as_posix()} {name}"
        for top in (ROOT / "plugins").glob("*/src")
        for path in top.rglob("*.py")
        for name in memoized_by_arguments(ast.parse(path.read_text("utf-8")))
    }
    assert found - listed("Keys") == set()


def test_a_memoized_function_without_arguments_has_no_key() -> None:
    source = "@cache\ndef f(): ...\n@lru_cache(4)\ndef g(a): ...\ndef h(a): ..."
    assert list(memoized_by_arguments(ast.parse(source))) == ["g"]


@pytest.mark.slow
def test_the_page_lists_every_table_with_its_key() -> None:
    """By the module that defines a table's name, where another one looks into it, too."""
    keys = listed("Keys")
    names = {row.split()[-1] for row in keys}
    found = {*tables_on_disk(), *bounded_tables()} - {"schedule/compiled.py key"}

    assert {row for row in found if row not in keys and row.split()[-1] not in names} == set()
    assert {row for row in bounded_tables() if row not in keys} == set()


def test_what_the_page_says_has_a_key_exists() -> None:
    for row in listed("Keys"):
        file, name = row.split()
        places = [*ROOT.glob(f"tinycore/{file}"), *ROOT.glob(f"plugins/*/src/{file}")]
        assert any(name in place.read_text("utf-8") for place in places), row


def test_every_row_says_what_why_who_resets_and_threads() -> None:
    rows = [row for row in PAGE.read_text("utf-8").splitlines() if row.startswith("| `")]

    assert [row for row in rows if not all(map(str.strip, row.strip("|").split("|")))] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("table = {}", ["table"]),
        ("table: Final[dict[str, int]] = {}", ["table"]),
        ("NOTHING: Final[Mapping[str, int]] = {}", []),
        ("TABLE = {'a': 1}", []),
        ("TABLE = {'a': 1}\ndef f(): TABLE['b'] = 2", ["TABLE"]),
        ("TABLE = [1]\ndef f(): TABLE.append(2)", ["TABLE"]),
        ("guard = threading.Lock()", ["guard"]),
        ("numbers = itertools.count()", ["numbers"]),
        ("here: Final[ContextVar[int]] = ContextVar('here')", ["here"]),
        ("total = 0\ndef f():\n  global total\n  total += 1", ["total"]),
        ("one = Machine()", ["one"]),
        ("one = Frozen()", []),
        ("class Machine(NamedTuple): a: int\none = Machine(1)", []),
        ("TABLE = {'a': []}\ndef f(): TABLE['a'].append(2)", ["TABLE"]),
        ("class A:\n  seen: ClassVar[set[int]] = set()", ["A.seen"]),
    ],
)
def test_a_mutable_global_is_found(source: str, found: list[str]) -> None:
    assert list(globals_of(ast.parse(source), frozenset({"Machine"}))) == found
