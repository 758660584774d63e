"""The documents: links lead somewhere, examples run, decisions keep to their form."""

from __future__ import annotations

import doctest
import re
from contextvars import copy_context
from pathlib import Path

import pytest

from tinycore import plugin

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
DOCUMENTS += sorted(ROOT.glob("plugins/*/*.md"))
DECISIONS = sorted(ROOT.glob("docs/decisions/*.md"))
SOURCES = [*sorted(ROOT.glob("tinycore/**/*.py")), *sorted(ROOT.glob("plugins/*/src/**/*.py"))]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fenced(text: str) -> list[str]:
    """The Python blocks of a document."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    local = [target for target in targets if "://" not in target]

    assert [target for target in local if not (path.parent / target).exists()] == []


def complaints(text: str, name: str) -> str:
    """Differences between what a document's examples print and say; all blocks are one session."""
    session = "\n".join(block for block in fenced(text) if ">>> " in block)
    test = doctest.DocTestParser().get_doctest(session, {}, name, name, 0)
    told: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=options)
    copy_context().run(runner.run, test, out=told.append)  # a page may leave a Context open
    return "".join(told)


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_examples_with_a_prompt_print_what_they_say(path: Path) -> None:
    assert complaints(path.read_text("utf-8"), shown(path)) == ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_examples_without_a_prompt_are_python(path: Path) -> None:
    for block in fenced(path.read_text("utf-8")):
        if ">>> " not in block:
            compile(block, shown(path), "exec")


@pytest.mark.parametrize("path", DECISIONS, ids=shown)
def test_a_decision_is_one_page_of_four_parts(path: Path) -> None:
    text = path.read_text("utf-8")

    assert text.startswith(f"# {path.name[:4]} ")
    assert re.findall(r"^## (\w+)", text, re.MULTILINE) == [
        "Context",
        "Choice",
        "Price",
        "Reconsider",
    ]
    assert len(text.splitlines()) <= 60


def test_the_index_lists_every_decision() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")

    assert [path.name for path in DECISIONS if f"decisions/{path.name}" not in index] == []


def test_each_sentence_on_security_has_its_test() -> None:
    page = (ROOT / "docs/security.md").read_text("utf-8").replace("\n  ", " ")
    tests = {
        name
        for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    sentences = [line for line in page.splitlines() if line.startswith("- ")]
    named = [re.findall(r"`(test_\w+)`", line) for line in sentences]

    assert [line for line, names in zip(sentences, named, strict=True) if not names] == []
    assert {name for names in named for name in names} - tests == set()


def test_decisions_are_numbered_apart() -> None:
    numbers = [path.name[:4] for path in DECISIONS]

    assert len(set(numbers)) == len(numbers)


def test_sources_cite_decisions_that_exist() -> None:
    cited = {
        name
        for path in SOURCES
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text("utf-8"))
    }

    assert sorted(name for name in cited if not (ROOT / name).exists()) == []


def words(cell: str) -> list[str]:
    """The names that a cell of a table quotes."""
    return re.findall(r"`(\w+)`", cell)


def test_the_page_of_queues_lists_what_a_driver_must_write() -> None:
    page = (ROOT / "docs" / "write-a-queue-backend.md").read_text("utf-8")
    rows = re.findall(r"^\| `(H\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    abstract = {
        name: sorted(getattr(getattr(plugin, name), "__abstractmethods__", ()))
        for name, _, _ in rows
    }

    assert len(rows) == 4
    assert {name: sorted(words(must)) for name, must, _ in rows} == abstract
    for name, _, may in rows:
        assert [m for m in words(may) if not hasattr(getattr(plugin, name), m)] == []


def test_the_first_week_shows_each_step_as_it_is_stated() -> None:
    page = (ROOT / "docs/first-week.md").read_text("utf-8")
    steps = (ROOT / "docs/first-week-steps.txt").read_text("utf-8").split("\n== ")[2:]
    titles = [step.partition("\n")[0].removeprefix("! ") for step in steps]
    last_lines = [step.strip().splitlines()[-1] for step in steps]

    assert re.findall(r"^## \d+\. (.*)$", page, re.MULTILINE) == titles
    assert [line for line in last_lines if line not in page] == []
