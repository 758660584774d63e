"""The faults that `python -m tests.faults` puts into the core: what they are, who notices them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.__main__ import EQUIVALENT, ROOT, report
from tests.faults.choosing import Fault, Source, choose, sources_in
from tests.faults.collecting import Trial
from tests.faults.judging import Equivalents, Readers, Verdict, batches, executing, failing_test


def changes(text: str) -> set[str]:
    """What may stand in place of the lines of a source."""
    source = Source("toy.py", text)
    edits = [edit for line in source.edits.values() for edit in line]
    return {fault.after for edit in edits if (fault := source.fault(edit)) is not None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a is not None", {"x = a is None"}),
        ("x = a and b", {"x = (a or b)", "x = (b)", "x = (a)"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = 1024", {"x = 2048", "x = 512"}),
        ("x = True", {"x = False"}),
        ("x = a if c else b", {"x = a if not (c) else b", "x = (a)", "x = (b)"}),
        ("if c:\n    f.g", {"if not (c):", "if False:"}),
        ("f(a, b)", {"pass", "(f(b, a))"}),
        ("x = f(a)", {"x = (a)"}),
        ("x = a.f()", {"x = (a)"}),
        ("x = f(a, b=c)", {"x = (f(a))"}),
        ("x = max(a, b)", {"x = (max(b, a))", "x = min(a, b)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = {a, b}", {"x = ({b})", "x = ({a})"}),
        ("x = {a: b, c: d}", {"x = ({c: d})", "x = ({a: b})"}),
        (
            "x = [y for y in z if y]",
            {"x = [y for y in z if not (y)]", "x = [y for y in z if True]"},
        ),
        ("@rule(a)\ndef f():\n    pass", {""}),
        ("x.y = z", {"pass"}),
        ("x += y", {"pass"}),
    ],
)
def test_what_a_line_may_become(text: str, expected: set[str]) -> None:
    assert changes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""A text of 3 words."""',
        "raise ValueError(f(a, b))",
        "assert a < b",
        "from a import b",
        "if TYPE_CHECKING:\n    x = 3",
        "if trace.on:\n    x = 3",
        'x = f"{a + 1}"',
        "def __repr__(self):\n    return self.x + 1",
        "@property\ndef f(self) -> Literal[3]:\n    return self.x",
        "x: Literal[3] = y",
        "run = deferred('a:b')",
        "x = zip(y, strict=True)",
        "x = f' of {y}' if c else ''",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert changes(text) == set()


def test_a_seed_chooses_the_same_faults_and_another_one_others() -> None:
    sources = sources_in(ROOT, ["uop"])
    first, again, other = (list(islice(choose(sources, seed), 20)) for seed in (1, 1, 2))

    assert first == again
    assert {fault.key for fault in first} != {fault.key for fault in other}


TABLES = """
LIMITS = {"a": 1, "b": 2}
BOTH = {**LIMITS, "c": 3}


@rule(LIMITS)
def ruled(x):
    return x


def read(name):
    return BOTH[name]
"""


def fault_at(source: Source, line: int) -> Fault:
    fault = source.fault(source.edits[line][0])
    assert fault is not None
    return fault


def test_tests_of_a_table_are_those_that_read_it() -> None:
    source = Source("tinycore/uop/toy.py", TABLES)
    lines = {"rule": 8, "reader": 12, "neither": 11}
    trials = [Trial(name, 0.1, {source.file: 1 << line}) for name, line in lines.items()]
    found = executing(fault_at(source, 2), trials, Readers([source]))

    assert [trial.name for trial in found] == ["rule", "reader"]
    assert executing(fault_at(source, 6), trials, Readers([source])) == trials[:1]


def test_batches_grow_and_plans_come_last() -> None:
    plan = Trial("tests/golden/test_plans.py::test_sizes", 1.0)
    trials = [plan, *(Trial(str(n), 1.0) for n in range(20)), Trial("too long", 1000.0)]
    found = batches(trials)

    assert [len(batch) for batch in found] == [2, 8, 10, 1]
    assert found[-1] == [plan]


def test_the_first_test_that_failed_is_named() -> None:
    assert failing_test("x\nFAILED a::b - c\nFAILED d::e - f\n1 failed") == "a::b - c"
    assert failing_test("no module\n") == "no module"


def test_only_faults_that_matter_count(capsys: pytest.CaptureFixture[str]) -> None:
    fault = fault_at(Source("toy.py", "x = 3"), 1)
    words = ["noticed", "noticed", "noticed", "survived", "equivalent"]
    found = [(fault, Verdict(word, "", 1, 0.0)) for word in words]  # type: ignore[arg-type]

    assert report(found, 75) == 0
    assert report(found, 76) == 1
    assert "of the 4 that matter 3 were noticed, 75.0%" in capsys.readouterr().out


def test_every_equivalent_change_is_of_a_line_that_is_there() -> None:
    """An entry whose line was rewritten goes: the change may be a fault now."""
    listed = Equivalents.read(EQUIVALENT)
    texts = {file: (ROOT / file).read_text("utf-8").splitlines() for file, *_ in listed.reasons}
    known = {file: {line.strip() for line in lines} for file, lines in texts.items()}
    gone = [key for key in listed.reasons if not set(key[2].splitlines()) <= known[key[0]]]

    assert not gone
    assert all(listed.reasons.values())


DRIVER = """
import json, sys
from pathlib import Path
from tests.faults.choosing import Source
from tests.faults.collecting import Scratch, Trial
from tests.faults.judging import judge

root, folder = Path(sys.argv[1]), Path(sys.argv[2])
file = "tinycore/uop/toy.py"
source = Source(file, (root / file).read_text())
trial = Trial("tests/unit/uop/test_toy.py::test_greatest", 0.1)
scratch = Scratch(root, folder)
for edit in [edit for line in source.edits.values() for edit in line]:
    fault = source.fault(edit)
    found = judge(fault, scratch, [trial])
    print(json.dumps([fault.after, found.word, found.by]))
"""


TOY = {
    "tinycore/__init__.py": "",
    "tinycore/uop/__init__.py": "",
    "tinycore/uop/toy.py": "def greatest(a, b):\n    return a if a > b else b\n",
    "tests/__init__.py": "",
    "tests/unit/uop/test_toy.py": "from tinycore.uop.toy import greatest\n\n"
    "def test_greatest():\n    assert (greatest(1, 2), greatest(2, 1)) == (2, 2)\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with one module and its test."""
    found = tmp_path / "root"
    for name, text in TOY.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


def test_a_fault_is_noticed_and_another_way_to_say_the_same_survives(
    root: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", DRIVER, str(root), str(tmp_path / "copy")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert {after: word for after, word, _ in lines} == {
        "return a if a >= b else b": "survived",
        "return a if not (a > b) else b": "noticed",
        "return (a)": "noticed",
        "return (b)": "noticed",
    }
    assert all("test_greatest" in by for _, word, by in lines if word == "noticed")
    assert "a > b" in (tmp_path / "copy/tinycore/uop/toy.py").read_text()


COMMAND = """
import shutil, sys
from pathlib import Path
import tests.faults.__main__ as command

command.ROOT, command.EQUIVALENT = Path(sys.argv[1]), Path(sys.argv[2])
shutil.copytree(Path(command.__file__).parent, command.ROOT / "tests/faults")
sys.exit(command.main(["--seed", "2", "--folder", sys.argv[3], "--least", "100"]))
"""


def test_the_command_finds_who_executes_a_line_and_reports(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("coverage", reason="coverage is not installed")
    listed = tmp_path / "equivalent.toml"
    listed.write_text("change = []")
    words = [sys.executable, "-c", COMMAND, *map(str, (root, listed, tmp_path / "kept"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert "1 faults: 0 equivalent; of the 1 that matter" in done.stdout, done.stderr
    assert "100.0%" in done.stdout or "survived 1 tests that execute it" in done.stdout
