"""Count the code: sizes of parts, lengths of files and functions, names, docstrings.

    python -m benchmarks.measure_code [FOLDER] > benchmarks/results/code.md

FOLDER is a checkout, this one unless given; so two states of the tree are counted by the same
rules. Nothing is imported: sources are read as text, tokens and syntax.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PARTS: Final = (
    *("tensor", "lower", "uop", "schedule", "device", "nn", "engine"),
    *("array_api", "builtin", "render", "cli"),
)
"""Folders of `tinycore/`; files beside them are the part "top level"."""
FLOORS: Final = ("uop", "device", "render", "schedule", "lower", "engine", "tensor")

IGNORED: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)
"""Tokens that say nothing; a docstring is none either."""

STRING_STARTS: Final = ("FSTRING_START", "TSTRING_START")
STRING_ENDS: Final = ("FSTRING_END", "TSTRING_END")

PARTICIPLES: Final = frozenset(
    "built bound cut done drawn found given held kept known left made met read seen sent set shown "
    "split spread sunk taken told understood won written".split()
)
"""Irregular participles; others end in "ed"."""
NO_PARTICIPLES: Final = frozenset({"bed", "embed", "exceed", "feed", "need", "proceed", "seed"})
BEGINNINGS: Final = ("What", "Whether", "That", "How", "Of", "Where", "Which", "Who")
"""Words by which a docstring describes by a clause and not by a noun or a verb."""


@dataclass
class Source:
    """A file, with the lines that each kind takes."""

    path: Path
    text: str
    tree: ast.Module = field(init=False)
    docstring_lines: set[int] = field(default_factory=set)
    comments: int = 0
    """Lines that have a comment and nothing else."""
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Expr) and is_text(node.value):
                self.docstring_lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
        inside = 0  # f-strings: one token up to Python 3.11, many since, and one here
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            kind = tokenize.tok_name[token.type]
            inside -= kind in STRING_ENDS
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                self.comments += 1
            elif inside or token.type in IGNORED or kind in STRING_ENDS:
                pass
            elif token.start[0] not in self.docstring_lines:
                self.tokens += 1
            inside += kind in STRING_STARTS

    @property
    def lines(self) -> int:
        """All lines."""
        return len(self.text.splitlines())

    @property
    def blank(self) -> int:
        """Empty lines outside of docstrings."""
        numbered = enumerate(self.text.splitlines(), 1)
        return sum(not line.strip() and n not in self.docstring_lines for n, line in numbered)

    @property
    def code(self) -> int:
        """Lines that are neither docstring, comment nor blank."""
        return self.lines - len(self.docstring_lines) - self.comments - self.blank

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]


def is_text(node: ast.AST) -> bool:
    """String literal, such as a docstring."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sources_of(root: Path) -> dict[str, list[Source]]:
    """The files of the core by part."""
    core, found = root / "tinycore", defaultdict(list)
    for path in sorted(core.rglob("*.py")):
        first = path.relative_to(core).parts[0]
        part = first if first in PARTS else "top level"
        found[part].append(Source(path, path.read_text("utf-8")))
    return dict(found)


def quantile(values: Iterable[int], share: float) -> int:
    """The value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0


def percent(part: float, whole: float) -> str:
    """A share, such as "17 %"."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table in Markdown, numbers to the right."""
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'--:|' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(f'{c:,}' if isinstance(c, int) else str(c) for c in row)} |"


# --- 1.1 sizes


def size_row(name: str, files: list[Source]) -> tuple[object, ...]:
    """Files, lines, lines of code, share of docstrings, and tokens of a part."""
    lines = sum(f.lines for f in files)
    docs = sum(len(f.docstring_lines) for f in files)
    code, tokens = sum(f.code for f in files), sum(f.tokens for f in files)
    return name, len(files), lines, code, percent(docs, lines), tokens


def sizes(parts: dict[str, list[Source]]) -> Iterator[str]:
    """Review 1.1: size of each part."""
    groups: dict[str, Callable[[str], bool]] = {
        "**all**": lambda part: True,
        "floors 0-5": lambda part: part in (*FLOORS, "top level"),
    }
    rows = [size_row(part, parts[part]) for part in sorted(parts)]
    rows += [
        size_row(name, [f for part, files in parts.items() if inside(part) for f in files])
        for name, inside in groups.items()
    ]
    yield from table(("part", "files", "lines", "code", "docstrings", "tokens"), rows)


# --- 1.3 lengths of files


def lengths(parts: dict[str, list[Source]]) -> Iterator[str]:
    """Review 1.3: lengths of files."""
    found = [f.lines for files in parts.values() for f in files]
    bins = Counter(length // 100 for length in found)
    rows = [(f"{100 * n} to {100 * n + 99}", bins[n]) for n in range(max(bins) + 1)]
    yield from table(("lines", "files"), rows)
    yield ""
    for least, most in ((0, 59), (0, 99), (0, 124), (351, 400), (401, 10**6), (601, 10**6)):
        count = sum(least <= length <= most for length in found)
        yield (
            f"- {least} lines or more: {count}"
            if most == 10**6
            else f"- {least} to {most}: {count}"
        )


# --- 2.1 names and prose


def is_participle(name: str) -> bool:
    """Participle at the beginning or the end of a name."""
    words = name.strip("_").split("_")
    ends = {words[0], words[-1]} - NO_PARTICIPLES
    return any(word in PARTICIPLES or (word.endswith("ed") and len(word) > 3) for word in ends)


def constants_of(source: Source) -> Iterator[tuple[str, str]]:
    """The constants of a module, with their values as text."""
    for node in source.tree.body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or value is None:
            continue
        if target.id.isupper() and len(target.id) > 1:
            yield target.id, ast.unparse(value)


def names(parts: dict[str, list[Source]]) -> Iterator[str]:
    """Review 2.1: names of functions and constants, beginnings of docstrings."""
    files = [f for found in parts.values() for f in found]
    functions = [node for f in files for node in f.functions]
    participles = sum(is_participle(node.name) for node in functions)
    owners: dict[str, set[Path]] = defaultdict(set)
    values: dict[str, set[str]] = defaultdict(set)
    for f in files:
        for node in f.tree.body:
            if isinstance(node, ast.FunctionDef):
                owners[node.name].add(f.path)
        for name, value in constants_of(f):
            values[name].add(value)
    documented = [node for f in files for node in ast.walk(f.tree) if isinstance(node, DOCUMENTED)]
    docs = [doc for node in documented if (doc := ast.get_docstring(node))]
    first = Counter(doc.split()[0] for doc in docs if doc.split())
    prose = " ".join(docs)
    rows: list[tuple[str, object]] = [
        ("functions and methods", len(functions)),
        ("of them with a participle as first or last word", percent(participles, len(functions))),
        ("function names in more than two modules", sum(len(v) > 2 for v in owners.values())),
        ("constant names with several values", sum(len(v) > 1 for v in values.values())),
        *((f'docstrings that begin with "{word}"', first[word]) for word in BEGINNINGS),
        ('"of its own" in docstrings', len(re.findall(r"of its own", prose))),
        ('"anew" in docstrings', len(re.findall(r"\banew\b", prose))),
    ]
    yield from table(("", "count"), rows)


DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


# --- 6 functions


def function_row(name: str, files: list[Source]) -> tuple[object, ...]:
    """Lengths of functions, with and without docstrings, what is documented, lengths of files."""
    functions = [node for f in files for node in f.functions]
    whole = [(n.end_lineno or 0) - n.lineno + 1 for n in functions]
    bare = [length - doc_lines(n) for n, length in zip(functions, whole, strict=True)]
    documented = sum(ast.get_docstring(n) is not None for n in functions)
    typed = sum(n.returns is not None for n in functions)
    of_files = [f.lines for f in files]
    return (
        name,
        len(functions),
        f"{quantile(whole, 0.5)} / {quantile(whole, 0.9)} / {max(whole, default=0)}",
        f"{quantile(bare, 0.5)} / {quantile(bare, 0.9)}",
        percent(documented, len(functions)),
        percent(typed, len(functions)),
        f"{quantile(of_files, 0.5)} / {quantile(of_files, 0.9)} / {max(of_files, default=0)}",
    )


def doc_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's docstring."""
    first = node.body[0]
    if not isinstance(first, ast.Expr) or not is_text(first.value):
        return 0
    return (first.end_lineno or 0) - first.lineno + 1


def functions(parts: dict[str, list[Source]]) -> Iterator[str]:
    """Review 6: functions and files of each part, and what lines are made of."""
    rows = [function_row(part, parts[part]) for part in sorted(parts)]
    every = [f for files in parts.values() for f in files]
    rows.append(function_row("**all**", every))
    lengths_of = "lines: median / p90 / max"
    head = ("part", "functions", lengths_of, "without docstring: median / p90", "documented")
    yield from table((*head, "typed", f"files, {lengths_of}"), rows)
    yield ""
    lines = sum(f.lines for f in every)
    shares = {
        "code": sum(f.code for f in every),
        "docstrings": sum(len(f.docstring_lines) for f in every),
        "blank": sum(f.blank for f in every),
        "comments": sum(f.comments for f in every),
    }
    yield "Of all lines: " + ", ".join(f"{k} {percent(v, lines)}" for k, v in shares.items()) + "."
    unpacked = sum(f.text.count("tuple([") for f in every)
    yield f"`tuple([...])`: {unpacked} times."


def report(root: Path) -> str:
    """The whole report."""
    parts = sources_of(root)
    chapters = (
        ("Sizes (review 1.1)", sizes),
        ("Lengths of files (review 1.3)", lengths),
        ("Names and prose (review 2.1)", names),
        ("Functions (review 6)", functions),
    )
    lines = ["# The code in numbers", "", "Written by `python -m benchmarks.measure_code`.", ""]
    for title, chapter in chapters:
        lines += [f"## {title}", "", *chapter(parts), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
