"""The faults that `python -m tests.faults` puts into the core: what they are, who notices them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.faults.__main__ import EQUIVALENT, ROOT, report
from tests.faults.choosing import Fault, Source, choose, sources_in
from tests.faults.collecting import Known, Trial
from tests.faults.hosting import told
from tests.faults.judging import (
    Equivalents,
    Readers,
    Verdict,
    affordable,
    batches,
    failing_test,
    fastest_of_files,
    nearest_first,
    places,
)
from tests.faults.page import SURVIVORS, Row, rows_of, survivors, table
from tests.faults.patching import marked, set_mark


def changes(text: str) -> set[str]:
    """Texts that may stand in place of the lines of a source."""
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


@pytest.mark.slow
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


def test_a_table_is_executed_where_it_is_read() -> None:
    source = Source("tinycore/uop/toy.py", TABLES)
    entry, rule = fault_at(source, 2), fault_at(source, 6)
    found = places([entry, rule], Readers([source]))[source.file]

    assert {line for line, numbers in found.items() if 0 in numbers} >= {8, 12}
    assert {line for line, numbers in found.items() if 1 in numbers} == {8}


BRANCHES = """
def branch(x):
    if x > 3:
        return 1
    elif x > 2:
        return 2
    return [y for y in (1, 2) if y > x]
"""


def test_a_mark_says_which_statements_a_call_executes() -> None:
    source = Source("toy.py", BRANCHES)
    names: dict[str, Any] = {}
    exec(compile(marked(source, {3: [0], 4: [1], 5: [2], 6: [3], 7: [4]}), "toy", "exec"), names)
    seen: list[int] = []
    set_mark(seen.append)

    assert names["branch"](0) == [1, 2]
    assert seen == [0, 2, 4]
    assert names["branch"](9) == 1
    assert seen == [0, 2, 4, 0, 1]


ORDER = [("a", "0"), ("a", "1"), ("b", "x"), ("a", "2"), ("a", "slow")]


def test_tests_of_one_file_take_turns_with_others(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("")
    known = Known(tmp_path, tmp_path, "")
    known.write("a.py", [Trial("a.py::slow", 2.0), *(Trial(f"a.py::{n}", 0.0) for n in range(3))])
    known.write("b.py", [Trial("b.py::x", 0.015, (7,))])
    found = known.read(["a.py", "b.py"])

    assert [t.name for t in found] == [f"{name}.py::{case}" for name, case in ORDER]
    assert found[2].marks == (7,)
    assert [t.name for t in fastest_of_files(found)] == ["a.py::0", "b.py::x"]


def test_tests_run_for_as_long_as_one_fault_may_take() -> None:
    trials = [Trial(str(n), 1.0) for n in range(100)]

    assert len(affordable(trials, 5)) == 5
    assert [len(batch) for batch in batches(trials)] == [2, 58]


def test_a_fork_that_stops_in_a_test_crashed_in_it() -> None:
    begin, passed = ["begin", "a"], ["passed", "a", 0.1, [3]]

    assert told([begin, passed, ["end"]]) == (None, [Trial("a", 0.1, (3,))])
    assert told([begin, passed, ["begin", "b"]]).failure == ("b", "a crash")
    assert told([begin, ["hang"]]).failure == ("a", "a hang")
    assert told([begin, ["failed", "a", "why"], ["end"]]).failure == ("a", "why")
    assert told([]).failure == ("", "a crash")


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
from tests.faults.hosting import Host
from tests.faults.judging import Court, judge_by_import

root, folder = Path(sys.argv[1]), Path(sys.argv[2])
file, tests = "tinycore/uop/toy.py", "tests/unit/uop/test_toy.py"
source = Source(file, (root / file).read_text())
trial = Trial(f"{tests}::test_greatest", 0.1, (0,))
scratch = Scratch(root, folder)
faults = [source.fault(edit) for line in source.edits.values() for edit in line]

def judge(host):
    court = Court(host, [trial])
    rows = [[fault.after, *vars(court.judge(fault, 0, False)).values()] for fault in faults]
    (folder / "rows").write_text(json.dumps(rows))

scratch.pytest([tests], 60, [Host(scratch, folder / "at-import", judge)])
found = json.loads((folder / "rows").read_text())
for (after, word, by, *_), fault in zip(found, faults):
    print(json.dumps([after, word, by, judge_by_import(fault, scratch, [trial]).word]))
"""


TOY = {
    "tinycore/__init__.py": "",
    "tinycore/uop/__init__.py": "",
    "tinycore/uop/toy.py": "LEAST = 0\n\n\ndef greatest(a, b):\n    best = max(a, b)\n"
    "    return best if best > LEAST else LEAST\n",
    "tests/__init__.py": "",
    "tests/unit/uop/test_toy.py": "from tinycore.uop.toy import greatest\n\n"
    "def test_greatest():\n    assert (greatest(1, 2), greatest(-2, -1)) == (2, 0)\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with one module and its test."""
    found = tmp_path / "root"
    for name, text in TOY.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


@pytest.mark.slow
def test_a_fault_is_noticed_and_another_way_to_say_the_same_survives(
    root: Path, tmp_path: Path
) -> None:
    """Also a table's, for which the core is imported anew."""
    command = [sys.executable, "-c", DRIVER, str(root), str(tmp_path / "copy")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert {after: word for after, word, *_ in lines} == {
        "LEAST = 1": "at import",
        "LEAST = (-1)": "at import",
        "best = (max(b, a))": "survived",
        "best = min(a, b)": "noticed",
        "return best if best >= LEAST else LEAST": "survived",
        "return best if not (best > LEAST) else LEAST": "noticed",
        "return (best)": "noticed",
        "return (LEAST)": "noticed",
    }
    assert all("::test_greatest - " in by for _, word, by, _ in lines if word == "noticed")
    by_import = {after: word for after, _, _, word in lines}
    assert by_import["LEAST = 1"] == by_import["LEAST = (-1)"] == "noticed"
    assert by_import["best = (max(b, a))"] == "survived"
    assert "max(a, b)" in (tmp_path / "copy/tinycore/uop/toy.py").read_text()


COMMAND = """
import shutil, sys
from pathlib import Path
import tests.faults.__main__ as command

command.ROOT, command.EQUIVALENT = Path(sys.argv[1]), Path(sys.argv[2])
shutil.copytree(Path(command.__file__).parent, command.ROOT / "tests/faults")
sys.exit(command.main(["--seed", "2", "--folder", sys.argv[3], "--least", "100"]))
"""


@pytest.mark.slow
def test_the_command_finds_who_executes_a_line_and_reports(root: Path, tmp_path: Path) -> None:
    listed = tmp_path / "equivalent.toml"
    listed.write_text("change = []")
    words = [sys.executable, "-c", COMMAND, *map(str, (root, listed, tmp_path / "kept"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert "of the 3 that matter 1 were noticed, 33.3%" in done.stdout, done.stderr
    assert done.stdout.count("survived 1 of 1 tests") == 2
    assert done.returncode == 1


def test_the_tests_nearest_to_a_fault_run_first() -> None:
    names = ("golden/test_all.py", "unit/uop/test_text.py", "unit/uop/test_verify.py")
    trials = [Trial(f"tests/{name}::test", 0.1) for name in names]

    ranked = nearest_first(trials, "tinycore/uop/verify.py")

    assert [trial.name for trial in ranked] == [f"tests/{name}::test" for name in reversed(names)]


def of_part(part: str, before: str) -> tuple[str, str, str, str]:
    return f"tinycore/{part}/toy.py", "greatest", before, "pass"


def test_a_page_counts_what_was_noticed_before_and_since() -> None:
    keys = [of_part("uop", "a"), of_part("uop", "b"), of_part("lower", "c"), of_part("lower", "d")]
    verdicts = {keys[0]: Verdict("noticed", "x", 2, 1.0, 2)}
    verdicts |= {key: Verdict("survived", "", 9, 1.0, 4) for key in keys[1:]}
    names = "file", "scope", "before", "after"
    equivalents = Equivalents([dict(zip(names, keys[1], strict=True)) | {"why": "as before"}])
    answers = [dict(zip(names, keys[2], strict=True)) | {"test": "tests/test_toy.py::test"}]

    rows = rows_of(verdicts, equivalents, answers)

    assert [row.outcome for row in rows] == ["", "equivalent", "test", "open"]
    counted = table(rows, 10)
    assert "Of the 3 that matter the tests of that tree noticed 1, 33.3%" in counted
    assert "with the tests written since, 2, 66.7%. 6 of the 10 chosen are not judged." in counted
    assert "| uop | 2 | 1 | 1 | 1 | 1 |" in counted
    assert "| lower | 2 | 0 | 2 | 0 | 1 |" in counted
    assert "| `lower/toy.py`, `greatest` | `c` | `pass` | 4 of 9 | test: `tests/" in survivors(rows)


def test_every_survivor_that_a_test_notices_since_is_in_the_tree() -> None:
    """An entry whose line was rewritten goes, or says that the line was removed."""
    told = tomllib.loads(SURVIVORS.read_text("utf-8"))["survivor"]
    rows = rows_of(
        {key_of(a): Verdict("survived", "", 0, 0.0) for a in told}, Equivalents([]), told
    )

    assert rows
    assert not [row.key for row in rows if row.outcome == "open"]
    assert not [r.key for r in rows if r.outcome in ("test", "there") and not is_there(r)]


def key_of(answer: dict[str, str]) -> tuple[str, str, str, str]:
    return answer["file"], answer["scope"], answer["before"], answer["after"]


def is_there(row: Row) -> bool:
    """True if the lines of a fault and the test that notices it are in their files."""
    source = (ROOT / row.key[0]).read_text("utf-8")
    file, _, test = row.what.partition("::")
    tests = (ROOT / file).read_text("utf-8")
    lines = {line.strip() for line in source.splitlines()}
    return {line.strip() for line in row.key[2].splitlines()} <= lines and f"def {test}(" in tests
