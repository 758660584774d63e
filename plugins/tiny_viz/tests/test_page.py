"""The page of a profile: who gets it, and in a real browser each of its views."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import sys
import threading
import tracemalloc
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from shutil import copyfile
from time import perf_counter
from typing import Any

import pytest
from browser import opened_browser
from programs import FAILING, GENERATION, HOSTILE_NAME, TRAINING, recorded

from tiny_viz import command, export, passes
from tiny_viz.export import write_trace
from tiny_viz.passes import difference
from tiny_viz.profile import profile
from tiny_viz.queries import Queries
from tiny_viz.recorder import Recorder
from tiny_viz.schedules import scheduled
from tiny_viz.server import Server, tell
from tiny_viz.store import LEVELS, Writer, connect
from tinycore import Context, Device, Tensor, TinyJit, nn
from tinycore.engine import plan_cache
from tinycore.engine.plan_cache import TunedPlan
from tinycore.errors import DeviceError, FileFormatError
from tinycore.lower.plan_neighbors import default

LOOKS = ("Timeline", "Kernels", "Lines", "Tensors", "Launches", "Memory", "Failures")
TABS = ("Overview", "Graph", "Passes", "Plans", "Source", "Assembly")
DECISIONS = ("Graph", "Storages", "Apart", "Launches", "Passes")


@contextmanager
def served(path: Path) -> Iterator[Server]:
    """A server of a profile, in a thread."""
    with Server(path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A profile of two kernels."""
    with Context(DEV="PYTHON"):
        a = Tensor.arange(20).reshape(4, 5).float().realize()
        with profile(tmp_path / "small.tinyviz") as found:
            a.pad((1, 1, 1, 1)).max_pool2d((2, 2)).realize()
            (a * 2).realize()
    return found.path


def test_lines_of_two_servers_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Namespace(write=written.append, flush=lambda: None))

    tell("shown at http://127.0.0.1:1/")

    assert written == ["shown at http://127.0.0.1:1/\n"]


def ask(server: Server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of a request."""
    port = server.server_address[1]
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def answer(server: Server, query: str) -> Any:
    """The result of a query."""
    status, _, body = ask(server, f"/{server.token}/api/{query}")
    assert status == 200, body
    return json.loads(body)


def test_a_client_without_the_token_gets_nothing(small: Path) -> None:
    with served(small) as server:
        for path in (
            "/",
            "/index.html",
            "/api/summary",
            "/x/api/summary",
            f"/{server.token[:-1]}/",
        ):
            status, _, body = ask(server, path)
            assert (status, body) == (403, b""), path
        status, _, body = ask(server, f"/{server.token}/", Host="rebound.example")
        assert (status, body) == (403, b"")
        assert server.server_address[0] == "127.0.0.1"


def test_every_answer_forbids_what_is_elsewhere(small: Path) -> None:
    with served(small) as server:
        for path in ("", "app.js", "api/summary", "api/absent", "../store.py", "vendor/"):
            _, headers, _ = ask(server, f"/{server.token}/{path}")
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert headers["Referrer-Policy"] == "no-referrer", "which would tell the token"


def test_files_beside_the_page_are_not_served(small: Path) -> None:
    with served(small) as server:
        for path in ("../store.py", "%2e%2e/store.py", "vendor/uPlot.LICENSE", "/etc/passwd"):
            assert ask(server, f"/{server.token}/{path}")[0] == 404


def test_two_programs_are_shown_at_the_same_time(small: Path, tmp_path: Path) -> None:
    with served(small) as one, served(small) as other:
        assert one.address != other.address
        assert ask(other, f"/{one.token}/")[0] == 403
        assert len(answer(one, "summary")["kernels"]) == len(answer(other, "summary")["kernels"])


def test_a_mistaken_query_is_answered(small: Path) -> None:
    with served(small) as server:
        for query in ("kernel?id=99", "kernel?id=x", "kernel", "timeline?from=1"):
            status, _, body = ask(server, f"/{server.token}/api/{query}")
            assert status == 400
            assert "error" in json.loads(body)


DAMAGES = {
    "UPDATE kernels SET name = x'ff00'": ("kernel?id=1", "summary"),
    "UPDATE kernels SET origins = '5'": ("summary",),
    "UPDATE graphs SET kernels = '[1]'": ("schedules", "schedule?id=1"),
    "UPDATE graphs SET kernels = printf('%.*c', 100000, '[')": ("schedules",),
    "UPDATE graphs SET varying = x'ff'": ("schedule?id=1",),
    "UPDATE texts SET content = x'ff'": ("nodes?id=1", "passes?id=1"),
    "UPDATE launches SET memory = x'010203'": ("graph",),
    "UPDATE launches SET memory = 'much'": ("graph",),
    "UPDATE kernels SET written = '7'": ("graph",),
    "INSERT OR REPLACE INTO rates VALUES ('PYTHON', 9e999, 1.0)": ("summary",),
}
"""Changes of a profile, and the queries that cannot be answered then."""


@pytest.mark.slow
def test_a_damaged_profile_is_told(small: Path, tmp_path: Path) -> None:
    everything = {"summary", "schedules", "failures", "nodes?id=1", "kernel?id=1", "graph"}
    with served(small) as server:
        for number, (damage, wrong) in enumerate(DAMAGES.items()):
            path = Path(copyfile(small, tmp_path / f"{number}.tinyviz"))
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(damage)
            server.queries.close()
            server.queries = Queries(path)
            for query in everything | {*wrong}:
                status, _, body = ask(server, f"/{server.token}/api/{query}")
                assert status == 400 or (status == 200 and query not in wrong), (damage, query)
                assert ("error" in json.loads(body)) == (status == 400)


@pytest.mark.parametrize(
    ("damage", "options"),
    [
        ("UPDATE kernels SET origins = '5'", {"text": True, "trace": None}),
        ("UPDATE kernels SET origins = '5'", {"text": False, "trace": Path("trace.json")}),
        ("UPDATE launches SET start = 'soon'", {"text": False, "trace": Path("trace.json")}),
    ],
)
def test_a_damaged_profile_is_told_as_text_and_trace(
    small: Path, monkeypatch: pytest.MonkeyPatch, damage: str, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(small.parent)
    with closing(sqlite3.connect(small)) as connection, connection:
        connection.execute(damage)
    with pytest.raises(FileFormatError, match=r"small\.tinyviz is damaged: TypeError"):
        command.run(Namespace(profile=small, **options))


def test_odd_requests_are_answered(small: Path) -> None:
    huge = "9" * 30
    with served(small) as server:
        for query in (
            f"kernel?id={huge}", f"passes?id={huge}", f"schedule?id={huge}", f"holders?at={huge}",
            f"graph?from={huge}", f"timeline?from=0&to={huge}", "timeline?from=0&to=9&pixels=0",
            f"kernel?id={'9' * 5000}", "kernel?id=%00", "file",
        ):  # fmt: skip
            status, _, body = ask(server, f"/{server.token}/api/{query}")
            assert status == 400, query
            assert json.loads(body)["error"]
        assert ask(server, "//[x")[0] == 403


def test_passes_show_what_changed_and_the_rules(small: Path) -> None:
    with served(small) as server:
        kernel = answer(server, "summary")["kernels"][0]["id"]
        found = answer(server, f"passes?id={kernel}")

    names = [step["name"] for step in found["passes"]]
    assert names[0] == "kernel"
    assert {"tile", "registers", "tidy"} <= set(names)
    changed = [step for step in found["passes"] if step["changed"]]
    lines = [line for step in changed for line in step["lines"]]
    assert any(kind == "-" and rule == "gated_twice" for kind, _, rule in lines)
    assert any(step["rules"] for step in found["passes"])
    assert "error" not in found


def test_every_stored_value_tells_why_and_where_it_is(small: Path) -> None:
    with served(small) as server:
        graph, _ = answer(server, "schedules")
        made = answer(server, f"schedule?id={graph['id']}")

    assert (graph["runs"], len(graph["kernels"])) == (1, 1)
    assert made["same"], "the kernels are those that ran"
    assert made["kernels"] == graph["kernels"]
    (stored,) = made["storages"]
    assert (stored["reason"], stored["level"]) == ("asked for", "memory, kept")
    assert stored["launch"] == 0
    assert "test_page.py:" in stored["origin"]
    storage = next(step for step in made["passes"] if step["name"] == "choose storage")
    assert any("is stored: asked for" in line for line in storage["decisions"])


@pytest.mark.slow
def test_a_profile_runs_no_code_of_its_own_or_of_its_folder(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("difflib", "elsewhere"):
        (tmp_path / f"{module}.py").write_text("open('taken', 'w').close()\nf = None\n")
    with closing(sqlite3.connect(small)) as connection, connection:
        connection.execute("UPDATE graphs SET policy = 'elsewhere:f' WHERE id = 1")
        connection.execute("UPDATE graphs SET policy = 'os:getcwd' WHERE id = 2")
    monkeypatch.chdir(tmp_path)
    with served(small) as server:
        refused = [answer(server, f"schedule?id={number}")["error"] for number in (1, 2)]
        kernel = answer(server, "summary")["kernels"][0]["id"]
        made = answer(server, f"passes?id={kernel}")

    assert "its policy is 'elsewhere:f'; known are " in refused[0]
    assert "its policy is 'os:getcwd'; known are " in refused[1]
    assert "error" not in made
    assert not (tmp_path / "taken").exists()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["PYTHON", "CPU:LLVM", "CPU:CLANG", "CL"])
def test_schedules_are_made_again_as_they_were(device: str, tmp_path: Path) -> None:
    if Device.plugins.find(device.partition(":")[0]) is None:
        pytest.skip(f"{device} is not installed")
    try:
        with Context(DEV=device):
            assert Device[Device.DEFAULT].capabilities
    except DeviceError as error:
        pytest.skip(str(error))
    with Context(DEV=device, TRAINING=1), profile(tmp_path / "some.tinyviz") as found:
        trained_and_attended()
    with closing(connect(found.path)) as connection:
        graphs = connection.execute(
            "SELECT content, policy, varying, kernels FROM graphs JOIN texts ON texts.id = graph"
        ).fetchall()
        texts = dict(connection.execute("SELECT id, content FROM texts"))
    reasons = set()
    for content, policy, varying, kernels in graphs:
        made = scheduled(content, policy, json.loads(varying))
        assert made["kernels"] == [texts[number] for number, *_ in json.loads(kernels)]
        assert all(stored["level"] for stored in made["storages"])
        reasons |= {stored["reason"] for stored in made["storages"]}
    assert {"asked for", "a reduction that several kernels, or repetitions, read"} <= reasons


def trained_and_attended() -> None:
    """Kernels with several reasons: a captured step, attention, a write in part, a sorted row."""
    layer, x = nn.Linear(8, 4), Tensor.rand(6, 8).realize()
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)

    @TinyJit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = layer(x).gelu().softmax().square().mean().backward()
        return loss.realize(*optimizer.schedule_step())

    for _ in range(3):
        step()
    q = x.reshape(2, 3, 8)
    q.scaled_dot_product_attention(q, q).realize()
    x[1:3] = 2
    (x.sort(-1)[0] + x.cumsum(-1)).realize()


def are_same(folder: Path, begun: dict[str, int], inside: dict[str, Any], factor: float) -> Any:
    """True if the passes of a kernel, run in a context within that of the recording, are its own.

    The factor makes it a kernel that no other test has compiled.
    """
    recorder = Recorder(folder / "one.tinyviz", lambda devices: [])
    with Context(DEV="CPU" if Device.plugins.find("CPU") else "PYTHON", CCACHE=0, **begun):
        x = Tensor.arange(64).reshape(8, 8).float().realize()
        recorder.start()
        with Context(**inside):
            ((x @ x) * factor).realize()
        assert recorder.stop()
    with closing(Queries(recorder.writer.path)) as queries:
        made = queries.passes({"id": "1"})
    assert "error" not in made
    return made["same"]


@pytest.mark.slow
def test_passes_are_made_again_under_the_settings_of_the_program(tmp_path: Path) -> None:
    for number, changed in enumerate(({"NOOPT": 1}, {"FLUSH_SUBNORMALS": 0})):
        assert are_same(tmp_path, changed, {}, 2.5 + number) is True
        (tmp_path / "one.tinyviz").unlink()


@pytest.mark.slow
def test_passes_are_made_again_under_the_settings_of_their_context(tmp_path: Path) -> None:
    assert are_same(tmp_path, {}, {"NOOPT": 1}, 4.5) is True


@pytest.mark.slow
def test_passes_have_the_plan_that_a_search_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "cache")
    monkeypatch.setenv("TINYCORE_CACHE_DIR", folder)  # of the process that makes them again
    with Context(DEV="CPU" if Device.plugins.find("CPU") else "PYTHON", CACHE_DIR=folder):
        device = Device[Device.DEFAULT]
        x = Tensor.arange(64).reshape(8, 8).float().realize()
        ast = ((x @ x) * 5.5).schedule()[-1].ast
        plain = default(ast, device.toolchain.renderer.limits)
        plan_cache.store_plan(ast, device, device.toolchain, TunedPlan(plain, 1, 2.0, 1.0))
    chosen: dict[str, Any] = {"TUNED": 1, "CCACHE": 1, "CACHE_DIR": folder}
    assert are_same(tmp_path, {}, chosen, 5.5) is True


@pytest.mark.slow
def test_passes_of_another_source_are_told(tmp_path: Path) -> None:
    with Context(DEV="PYTHON", CCACHE=0), profile(tmp_path / "one.tinyviz") as found:
        (Tensor([1.0, 2.0]) * 6.5).realize()
    with closing(sqlite3.connect(found.path)) as connection, connection:
        connection.execute(
            "UPDATE texts SET content = content || ' ' WHERE id IN (SELECT source FROM kernels)"
        )
    with closing(Queries(found.path)) as queries:
        kernels = [kernel["id"] for kernel in queries.summary({})["kernels"]]
        assert [queries.passes({"id": str(number)})["same"] for number in kernels] == [False]


@pytest.mark.slow
def test_passes_of_a_kernel_from_the_disk_cache_are_not_called_the_same(
    small: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(small)) as connection, connection:
        connection.execute("UPDATE kernels SET source = 0")
        told = "DEBUG=99\nCACHE_DIR=/absent\nNOOPT"
        connection.execute("UPDATE texts SET content = ? WHERE content LIKE '%NOOPT=%'", (told,))
    with served(small) as server:
        made = answer(server, "passes?id=1")

    assert "error" not in made, "no other variable is set"
    assert made["same"] is None


def test_a_difference_is_of_nodes_not_of_their_numbers() -> None:
    before = "%0 = CONST index [1]\n%1 = ADD index (%0, %0)"
    after = "%0 = CONST index [2]\n%1 = CONST index [1]\n%2 = ADD index (%1, %1)"

    assert [kind for kind, *_ in difference(before, after)] == ["+", " ", " "]


def test_differences_are_the_nodes_that_one_graph_has_alone() -> None:
    draw = Random(7)
    for _ in range(200):
        before, after = (
            [f"%{n} = {draw.choice('ABCDE')} (%{n})" for n in range(draw.randrange(30))]
            for _ in range(2)
        )
        found = difference("\n".join(before), "\n".join(after))
        for sign, lines, others in (("-", before, after), ("+", after, before)):
            words, other = (Counter(line.split()[2] for line in each) for each in (lines, others))
            told = Counter(line.split()[2] for kind, line, _ in found if kind == sign)
            assert told == words - other
        assert [line for kind, line, _ in found if kind != "-"] == after
        gone = [before.index(line) for kind, line, _ in found if kind == "-"]
        assert gone == sorted(gone)


def test_what_was_removed_is_shown_where_it_was() -> None:
    names = "ABCDEFGH"
    before = "\n".join(f"%{n} = {name}" for n, name in enumerate(names))
    after = "\n".join(f"%{n} = {name}" for n, name in enumerate("HABCEFG"))

    found = [kind + line[-1] for kind, line, _ in difference(before, after)]
    assert found == [" H", " A", " B", " C", "-D", " E", " F", " G"]


def test_a_difference_of_long_graphs_takes_no_time() -> None:
    one, other = (
        "\n".join(f"%{n} = {'ADD' if n % k else 'MUL'} (%{n})" for n in range(3000)) for k in (2, 3)
    )
    began = perf_counter()
    assert len(difference(one, other)) == 3500
    assert perf_counter() - began < 2


def test_what_takes_too_long_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MOST_SECONDS", 0.01)
    with served(small) as server:
        kernel = answer(server, "summary")["kernels"][0]["id"]
        for query in (f"passes?id={kernel}", "schedule?id=1"):
            assert "took more than 0.01 seconds" in answer(server, query)["error"]


def test_a_trace_for_perfetto_has_every_launch(small: Path, tmp_path: Path) -> None:
    count = write_trace(small, tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == count
    spans = [event for event in events if event["ph"] == "X" and "ops" in event["args"]]
    assert len(spans) == 2
    assert all(event["dur"] > 0 for event in spans)
    assert "test_page.py:" in spans[0]["args"]["where"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_a_timeline_of_many_launches_is_sent_in_parts(tmp_path: Path) -> None:
    count = 300_000
    writer = Writer(tmp_path / "many.tinyviz")
    about = ("CPU", "kernels", 1, 1, "[]", "[]", 0, 0, "[]", 0)
    writer.put("kernels", [(1, "short", *about), (2, "long", *about)])
    for start in range(0, count, 10_000):
        numbers = range(start, start + 10_000)
        writer.put("launches", [(n + 1, n * 1000, 500, 1 + n % 2, 1, b"") for n in numbers])
    writer.put("meta", [("nanoseconds", str(count * 1000))])
    writer.close()

    with closing(Queries(writer.path)) as queries:
        tracemalloc.start()
        for name in ("summary", "timeline", "memory", "graph", "holders", "schedules"):
            queries.known[name]({"from": "0", "to": str(count * 1000), "at": "5000000"})
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < writer.path.stat().st_size / 3, "what is opened is read piece by piece"
    with served(writer.path) as server:
        whole = answer(server, f"timeline?from=0&to={count * 1000}&pixels=1000")
        (lane,) = whole["lanes"]
        assert sum(span[3] for span in lane["spans"]) == count
        assert len(lane["spans"]) <= 2 ** max(LEVELS)
        near = answer(server, "timeline?from=5000&to=15000&pixels=1000")
        assert [span[0] for span in near["lanes"][0]["spans"]] == [*range(5000, 16000, 1000)]
        assert [kernel["launches"] for kernel in answer(server, "summary")["kernels"]] == [
            count // 2,
            count // 2,
        ]


def test_many_samples_are_thinned_over_the_whole_time(tmp_path: Path) -> None:
    count = 200_000
    writer = Writer(tmp_path / "many.tinyviz")
    writer.put("places", [(1, "add", "train.py", 5), (2, "mul", "train.py", 6)])
    writer.put("threads", [(1, "one"), (2, "other")])
    for start in range(0, count, 10_000):
        numbers = range(start, start + 10_000)
        writer.put("samples", [(n + 1, n * 10**7, 1 + n % 2, 1 + n % 2) for n in numbers])
    writer.close()

    with served(writer.path) as server:
        one, other = answer(server, f"timeline?from=0&to={count * 10**7}")["lanes"]
    for lane, name in ((one, "Python one"), (other, "Python other")):
        assert lane["name"] == name
        assert sum(span[3] for span in lane["spans"]) < 20_000
        assert lane["spans"][0][0] < count * 10**7 * 0.01
        end = max(span[0] + span[1] for span in lane["spans"])
        assert end > count * 10**7 * 0.99


def go(page: Any, view: str, **values: object) -> None:
    """Look at a view, once it is drawn."""
    page.evaluate("() => { document.getElementById('view').dataset.ready = ''; }")
    words = "".join(f"&{name}={value}" for name, value in values.items())
    page.evaluate(f"location.hash = 'view={view}{words}&at={page.evaluate('Date.now()')}'")
    page.wait_for_selector(f"#view[data-ready='{view}']")


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The page of a profile in a browser. Errors and whatever the policy blocks fail the test."""
    wrong: list[str] = []
    with served(path) as server, opened_browser() as browser:
        page = browser.new_page()
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else 0)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: wrong.append(r.url) if "//127.0.0.1:" not in r.url else 0)
        page.goto(server.address)
        page.wait_for_selector("#view[data-ready='Timeline']")
        yield page
    assert [text for text in wrong if not text.startswith(("data:", "blob:"))] == []


def wait_for_a_drawing(page: Any) -> None:
    """Wait until the canvas of a view has more than 20 colors: it is painted by a later frame."""
    page.wait_for_function(
        """() => { const canvas = document.querySelector('#view canvas');
        if (!canvas || !canvas.width || !canvas.height) return false;
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const colors = new Set();
        for (let n = 0; n < data.length; n += 4)
            colors.add(data[n] << 16 | data[n+1] << 8 | data[n+2]);
        return colors.size > 20; }""",
        polling=100,
    )


@pytest.mark.slow
def test_a_training_step_is_shown_in_every_view(tmp_path: Path) -> None:
    with opened(recorded(TRAINING, tmp_path)) as page:
        wait_for_a_drawing(page)
        for view in LOOKS:
            page.click(f"nav >> text={view}")
            page.wait_for_selector(f"#view[data-ready='{view}']")
        go(page, "Lines")
        hot = page.locator(".line.hot", has_text="first(images).relu()")
        hot.click()
        page.locator(".line.hot + div a").first.click()
        page.wait_for_selector("#view[data-ready='Kernel']")
        # the dearest kernel of that line comes first: of the layer, or of its gradient
        assert re.search(r"\b\w+ program\.py:\d+", page.inner_text("#view"))
        for tab in TABS:
            page.evaluate("() => { document.getElementById('view').dataset.ready = ''; }")
            page.click(f".tabs >> text={tab}")
            page.wait_for_selector("#view[data-ready='Kernel']")
            if tab == "Passes":
                assert page.locator(".split > *").count() == 2, "a remark is above them"
        look_at_the_graph_of_a_step(page)
        go(page, "Kernels")
        everything = page.locator("tbody tr").count()
        page.fill("#search", "program.py:14")
        page.wait_for_function(f"document.querySelectorAll('tbody tr').length < {everything}")
        assert page.locator("tbody tr").count() > 0
        go(page, "Launches", count=60)
        wait_for_a_drawing(page)
        go(page, "Memory")
        assert "In use at" in page.inner_text("#view")


def look_at_the_graph_of_a_step(page: Any) -> None:
    """Click through the largest graph of tensors, from a kernel and back to a line."""
    page.click("nav >> text=Tensors")
    page.wait_for_selector("#view[data-ready='Tensors']")
    nodes = [
        int(text.replace(",", "")) for text in page.locator("td:nth-child(3)").all_inner_texts()
    ]
    page.locator("tbody tr").nth(nodes.index(max(nodes))).click()
    page.wait_for_selector("#view[data-ready='Schedule']")
    wait_for_a_drawing(page)
    for tab in DECISIONS:
        page.evaluate("() => { document.getElementById('view').dataset.ready = ''; }")
        page.click(f".tabs >> text={tab}")
        page.wait_for_selector("#view[data-ready='Schedule']")
        assert "other kernels than those that ran" not in page.inner_text("#view")
        if tab == "Storages":
            assert "a reduction that several kernels, or repetitions, read" in page.inner_text(
                "#view"
            )
            assert "memory, temporary" in page.inner_text("#view")
    page.click(".tabs >> text=Launches")
    page.wait_for_selector("#view[data-ready='Schedule']")
    page.locator("tbody a").first.click()
    page.wait_for_selector("#view[data-ready='Kernel']")
    page.locator("dd a", has_text="graph ").first.click()
    page.wait_for_selector("#view[data-ready='Schedule']")


@pytest.mark.slow
def test_a_generation_of_twenty_tokens_is_shown(tmp_path: Path) -> None:
    for package in ("tiny_llm", "gguf", "tokenizers"):
        pytest.importorskip(package)
    if Device.plugins.find("CPU") is None:
        pytest.skip("takes minutes in the interpreter")
    with opened(recorded(GENERATION, tmp_path, device="CPU")) as page:
        for view in LOOKS:
            page.click(f"nav >> text={view}")
            page.wait_for_selector(f"#view[data-ready='{view}']")
        go(page, "Kernels")
        rows = page.locator("tbody tr", has_text="softmax decoder.py:")
        assert rows.count() > 0
        rows.first.click()
        page.wait_for_selector("#view[data-ready='Kernel']")
        for tab in TABS:
            page.evaluate("() => { document.getElementById('view').dataset.ready = ''; }")
            page.click(f".tabs >> text={tab}")
            page.wait_for_selector("#view[data-ready='Kernel']")
        page.evaluate("() => { document.getElementById('view').dataset.ready = ''; }")
        page.locator("dl a", has_text="softmax decoder.py:").first.click()
        page.wait_for_selector("#view[data-ready='Lines']")
        assert page.locator(".line.here", has_text="softmax").count() == 1
        go(page, "Launches", count=300)
        assert page.evaluate("state.graph.nodes.length") > 300
        wait_for_a_drawing(page)
        go(page, "Timeline")
        box = page.locator("#view canvas").bounding_box()
        page.mouse.move(box["x"] + 600, box["y"] + 45)
        for _ in range(5):
            page.mouse.wheel(0, -300)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 45)
        page.mouse.up()
        assert page.evaluate("state.timeline.to - state.timeline.from < state.timeline.end")


@pytest.mark.slow
def test_a_failed_kernel_is_shown_and_hostile_names_are_text(tmp_path: Path) -> None:
    with opened(recorded(FAILING, tmp_path / "failing", HOSTILE_NAME)) as page:
        page.click("nav >> text=Failures (1)")
        page.wait_for_selector("#view[data-ready='Failures']")
        shown = page.inner_text("#view")
        assert "CompileError" in shown
        assert "<script>document.title = 'taken'</script>" in shown
        assert HOSTILE_NAME in shown
        for view in LOOKS:
            go(page, view)
        go(page, "Lines")
        assert HOSTILE_NAME in page.inner_text("#view")
        assert page.title() != "taken"
        assert page.locator("img, #view script").count() == 0


@pytest.mark.slow
def test_ten_thousand_nodes_stay_fluid(tmp_path: Path) -> None:
    with Context(DEV="PYTHON"):
        a = Tensor([1.0]).realize()
        with profile(tmp_path / "one.tinyviz") as found:
            for _ in range(5_000):
                a = (a + 1).realize()
    with opened(found.path) as page:
        go(page, "Launches", count=5_000)
        assert page.evaluate("state.graph.nodes.length") >= 10_000
        page.evaluate("state.graph.scale = 0.05; state.graph.draw()")
        page.wait_for_timeout(200)
        times = page.evaluate(
            "Array.from({length: 9}, () => { state.graph.paint(); return state.graph.paintTime; })"
        )
        assert sorted(times)[4] < 200, "milliseconds for all of them, on a processor alone"


def test_a_trace_that_cannot_be_completed_leaves_the_former_one(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "trace.json"
    write_trace(small, target)
    before = target.read_bytes()

    def broken(connection: object) -> Iterator[dict[str, Any]]:
        yield {}
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "events", broken)
    with pytest.raises(KeyboardInterrupt):
        write_trace(small, target)

    assert target.read_bytes() == before
    assert [place.name for place in tmp_path.glob("*trace*")] == ["trace.json"]
