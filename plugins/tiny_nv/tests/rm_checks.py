"""Checks of the stand-ins of NVIDIA's driver and of a card, and tests that break each of them.

    python plugins/tiny_nv/tests/rm_checks.py                tests that break no rule by a program
    python plugins/tiny_nv/tests/rm_checks.py --page FILE    a table as well

A rule is one condition before a refusal: an operand of the `if` before `raise`, of the argument of
`must`, or a call of a helper that raises. They are found in the syntax trees of rm_standin and of
gsp_standin, and compiled so that they note the test under which they fail. The status is 1 if a
rule has no test.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import pytest

__all__ = ["PACKAGES", "Rule", "rules"]

TESTS: Final = Path(__file__).parent
PACKAGES: Final = (TESTS / "rm_standin", TESTS / "gsp_standin")
OF_CARDS: Final = ("test_gsp_rules.py", "test_pci.py", "test_pci_boot.py")
RUN: Final = (
    *sorted(path.name for path in TESTS.glob("test_rm_*.py") if path.name != "test_rm_checks.py"),
    *OF_CARDS,
)
"""Tests whose programs are made by hand, without the driver, and those of cards at their registers.
"""
HELPERS: Final = ("must", "below", "aligned", "check_engine")
"""Functions that raise for their caller; conditions are arguments of the first alone."""
NOTE: Final = "_note_rule"


@dataclass(frozen=True)
class Rule:
    """A condition before a refusal."""

    file: str
    function: str
    condition: str
    consequence: str

    def row(self, test: str) -> str:
        """Its line in a table."""
        cells = (self.function, self.condition, self.consequence, test)
        shown = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
        coded = " | ".join(f"`{cell}`" if cell else "**none**" for cell in shown)
        return f"| {self.file} | {coded} |"


def is_refusal(node: ast.stmt) -> bool:
    """True for a refusal: what it raises is made there, or an errno is returned."""
    if isinstance(node, ast.Raise):
        return isinstance(node.exc, ast.Call)
    return isinstance(node, ast.Return) and "errno." in ast.unparse(node)


class Instrument(ast.NodeTransformer):
    """Finds the rules of one module, and has each note that it fails."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.rules: list[Rule] = []
        self.functions: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Name what is inside."""
        return self.named(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Name what is inside; helpers have no rules of their own."""
        return node if node.name in HELPERS[:3] else self.named(node)

    def named(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        """Visit what is inside of a definition."""
        self.functions.append(node.name)
        found = self.generic_visit(node)
        self.functions.pop()
        return found

    def rule(self, condition: str, consequence: ast.AST) -> ast.Constant:
        """A new rule; its number as an expression."""
        text = ast.unparse(consequence)
        self.rules.append(Rule(self.file, ".".join(self.functions), condition, text))
        return ast.Constant(len(self.rules) - 1)

    def noting(self, operand: ast.expr, consequence: ast.AST, *, fails: bool) -> ast.expr:
        """An operand that notes when it is true, or false."""
        number = self.rule(("" if fails else "not ") + ast.unparse(operand), consequence)
        call = ast.Call(ast.Name(NOTE, ast.Load()), [number, operand, ast.Constant(fails)], [])
        return ast.copy_location(call, operand)

    def visit_If(self, node: ast.If) -> ast.AST:
        """A condition before a refusal: each alternative of it is a rule."""
        if is_refusal(node.body[0]):
            is_any = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
            operands = node.test.values if is_any else [node.test]  # type: ignore[attr-defined]
            found = [self.noting(each, node.body[0], fails=True) for each in operands]
            node.test = ast.BoolOp(ast.Or(), found) if is_any else found[0]
            node.orelse = [self.visit(each) for each in node.orelse]
            return node
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        """A call of a helper: each condition of `must` is a rule, and each other call."""
        call = node.value
        name = call.func if isinstance(call, ast.Call) else None
        called = getattr(name, "attr", getattr(name, "id", ""))
        if called not in HELPERS:
            return self.generic_visit(node)
        assert isinstance(call, ast.Call)
        if called == "must":
            first = call.args[0]
            is_all = isinstance(first, ast.BoolOp) and isinstance(first.op, ast.And)
            operands = first.values if is_all else [first]  # type: ignore[attr-defined]
            others = ast.Tuple(call.args[1:], ast.Load())
            found = [self.noting(each, others, fails=False) for each in operands]
            call.args[0] = ast.BoolOp(ast.And(), found) if is_all else found[0]
            return node
        number = self.rule(ast.unparse(call), call)
        noted = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [number], []))
        handler = ast.ExceptHandler(
            ast.Name("BaseException", ast.Load()), None, [noted, ast.Raise()]
        )
        return ast.Try([node], [handler], [], [])

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Refusals without a condition of their own before them."""
        for name in ("body", "orelse", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [new for each in block for new in self.statement(each)])
        return node

    def statement(self, node: ast.AST) -> Iterator[ast.AST]:
        """Statements that take the place of a statement."""
        if isinstance(node, ast.stmt) and is_refusal(node):
            number = self.rule("otherwise", node)
            yield ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [number], []))
            yield node
        else:
            yield self.visit(node)


def instrumented(path: Path) -> tuple[ast.Module, list[Rule]]:
    """The syntax tree of a module whose rules note when they fail, and the rules."""
    is_first = path.parent == PACKAGES[0]
    found = Instrument(path.name if is_first else f"{path.parent.name}/{path.name}")
    tree = found.visit(ast.parse(path.read_text("utf-8")))
    return ast.fix_missing_locations(tree), found.rules


def rules() -> list[Rule]:
    """All rules of the stand-ins."""
    files = [path for package in PACKAGES for path in sorted(package.glob("*.py"))]
    return [rule for path in files for rule in instrumented(path)[1]]


# --- noting


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles modules of the stand-in so that their rules are noted."""

    broken: dict[Rule, str]

    def get_code(self, fullname: str) -> CodeType:
        """Code that is not from a cache."""
        tree, _ = instrumented(Path(self.path))
        return compile(tree, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with its function that notes."""
        found = instrumented(Path(self.path))[1]

        def note(number: int, value: object = True, fails: bool = True) -> object:
            if bool(value) == fails:
                test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
                self.broken.setdefault(found[number], test)
            return value

        vars(module)[NOTE] = note
        super().exec_module(module)


class Finder:
    """Finds the stand-in before others do."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The place of a module of the stand-in."""
        package, _, module = name.partition(".")
        folder = next((each for each in PACKAGES if each.name == package), None)
        if folder is None:
            return None
        file = folder / f"{module or '__init__'}.py"
        within = None if module else [str(folder)]
        return importlib.util.spec_from_file_location(
            name, file, loader=Loader(name, str(file)), submodule_search_locations=within
        )


def broken_by_tests() -> dict[Rule, str]:
    """Rules that tests break, and the first test that breaks each. Raises where a test fails."""
    Loader.broken = {}
    sys.meta_path.insert(0, Finder())
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--override-ini=addopts="]
    status = pytest.main([*arguments, *(str(TESTS / name) for name in RUN)])
    if status:
        raise SystemExit(f"tests of the stand-in fail: {status}")
    return Loader.broken


def page_of(found: dict[Rule, str]) -> str:
    """A table of rules, and of the first test that breaks each."""
    told = [found.get(rule, "") for rule in rules()]
    lines = (
        "# Rules of the stand-ins of NVIDIA's driver and of a card",
        "",
        "Written by `python plugins/tiny_nv/tests/rm_checks.py --page FILE`. Each rule is one",
        "condition before a refusal in `plugins/tiny_nv/tests/rm_standin`, or in `gsp_standin`, a",
        "card without a kernel driver; beside it is the first test that breaks it.",
        "",
        f"{sum(map(bool, told))} of {len(told)} rules are broken by a test.",
        "",
        "| file | function | condition | consequence | first test |",
        "| --- | --- | --- | --- | --- |",
        *(rule.row(test.rpartition("/")[2]) for rule, test in zip(rules(), told, strict=True)),
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Break all rules; print those that no test breaks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    found = broken_by_tests()
    missing = [rule for rule in rules() if rule not in found]
    for rule in missing:
        print(f"{rule.file} {rule.function}: {rule.condition} -> {rule.consequence}")
    print(f"{len(rules()) - len(missing)} of {len(rules())} rules are broken by a test")
    if asked.page is not None:
        asked.page.write_text(page_of(found), "utf-8")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
