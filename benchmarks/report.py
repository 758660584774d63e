"""The table, in Markdown: times, ratios to the best peer and to the machine's limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.case import Case, StartCase
from benchmarks.peers import OURS
from benchmarks.session import Outcome

__all__ = ["Limits", "Row", "markdown", "slower"]

_METHOD = """\
Ratios are what counts: times are of this machine, at this hour. Everything ran in turns
(A B C A B C ...), each peer in a process of its own with all processors. A time is the median in
milliseconds, ± half the distance between the quartiles; samples during which the system took a
processor away are left out when enough others remain, and a `~` says that they did not. Peers are
called as users call them, so most allocate their result. tinygrad runs under its JIT; `tinycore` is
a plain call, `tinycore-jit` a replay. Results are compared between peers.
`ours / best`: the better of our two times by the best peer's; below 1 we are faster.
`ours / limit`: by the least time in which the hardware, measured in the same turns, can read and
write the data or do the multiplications; data that fits in the caches may beat memory's limit."""


@dataclass(frozen=True)
class Limits:
    """The best rates measured in the turns of a case: bytes or operations per second."""

    read: float = 0.0
    triad: float = 0.0
    fma: float = 0.0

    @classmethod
    def best_of(cls, rates: Sequence[Mapping[str, Sequence[float]]]) -> Limits:
        """The highest of each kind: hardware is not faster than it is."""
        names = ("read", "triad", "fma")
        return cls(*(max((max(r[n]) for r in rates if r.get(n)), default=0.0) for n in names))

    def seconds(self, case: Case) -> float:
        """The least time for a case; 0 when nothing is known of it."""
        rate = self.triad if case.written_bytes else self.read
        moved = case.read_bytes + case.written_bytes
        memory = moved / rate if rate else 0.0
        return max(memory, case.flops / self.fma if self.fma else 0.0)


@dataclass(frozen=True)
class Row:
    """A case and what came of it."""

    case: Case | StartCase
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def best(self, *, ours: bool) -> tuple[str, float] | None:
        """The fastest of us, or of the others, and its seconds."""
        times = [
            (outcome.summary.median, peer)
            for peer, outcome in self.outcomes.items()
            if outcome.summary and (peer in OURS) is ours
        ]
        return min(times)[::-1] if times else None

    @property
    def ratio(self) -> float | None:
        """Our time by the best peer's."""
        ours, theirs = self.best(ours=True), self.best(ours=False)
        return ours[1] / theirs[1] if ours and theirs else None

    @property
    def against(self) -> str:
        """The ratio and the best peer; with a `~` when any time of the row was disturbed."""
        theirs = self.best(ours=False)
        if self.ratio is None or theirs is None:
            return ""
        summaries = [outcome.summary for outcome in self.outcomes.values()]
        disturbed = any(summary is not None and summary.disturbed for summary in summaries)
        return f"{'~' if disturbed else ''}{self.ratio:.2f} {theirs[0]}"

    @property
    def limit(self) -> float:
        """The least seconds that the hardware needs; 0 when nothing is known."""
        return self.limits.seconds(self.case) if isinstance(self.case, Case) else 0.0


def slower(rows: Sequence[Row]) -> list[Row]:
    """Cases in which a peer is faster, the worst first."""
    behind = [row for row in rows if (row.ratio or 0.0) > 1.0]
    return sorted(behind, key=lambda row: -(row.ratio or 0.0))


def markdown(rows: Sequence[Row], peers: Sequence[str], facts: Mapping[str, str]) -> str:
    """The whole report."""
    told = dict(facts) | {f"limit, {name}": value for name, value in _limits(rows)}
    listed = "\n".join(f"- {name}: {value}" for name, value in told.items())
    parts = ["# Benchmarks", _METHOD, listed, "\n".join(_table(rows, peers))]
    notes = list(_notes(rows))
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _limits(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Limits measured of the hardware, from the case where it was least to that where most."""
    named = {"read": "GB/s read", "triad": "GB/s, two arrays to a third", "fma": "GFLOP/s, float32"}
    for name, unit in named.items():
        rates = sorted(filter(None, (getattr(row.limits, name) for row in rows)))
        if rates:
            low, middle, high = rates[0] / 1e9, rates[len(rates) // 2] / 1e9, rates[-1] / 1e9
            yield name, f"{middle:.0f} {unit} ({low:.0f} to {high:.0f} from case to case)"


def _table(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[str]:
    head = ["case", *peers, "limit", "ours / best", "ours / limit"]
    cells = [_cells(row, peers) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    yield _line(head, widths)
    first, *rest = widths
    yield _line(["-" * first, *("-" * (width - 1) + ":" for width in rest)], widths)
    yield from (_line(row, widths) for row in cells)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)]) + " |"


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    ours, limit = row.best(ours=True), row.limit
    return [
        row.case.name,
        *(_time(row.outcomes.get(peer)) for peer in peers),
        figures(limit) if limit else "",
        row.against,
        f"{ours[1] / limit:.2f}" if ours and limit else "",
    ]


def _time(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if outcome.summary is None:
        return "fails"
    doubt = " (?)" if outcome.doubt else ""
    disturbed = "~" if outcome.summary.disturbed else ""
    time = figures(outcome.summary.median)
    return f"{disturbed}{time} ±{outcome.summary.spread:.0%}{doubt}"


def figures(seconds: float) -> str:
    """Milliseconds, with three digits that count."""
    milliseconds = seconds * 1e3
    decimals = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2
    if milliseconds < 1:
        decimals = 3 if milliseconds >= 0.1 else 4
    return f"{milliseconds:.{decimals}f}"


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        counts = {p: o.count for p, o in row.outcomes.items() if o.count is not None}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{peer} {count}" for peer, count in counts.items())
            yield f"{row.case.name}: kernels, or nodes: {told}"
        for peer, outcome in row.outcomes.items():
            if outcome.failure:
                yield f"{row.case.name}: {peer} fails: {outcome.failure}"
            if outcome.doubt:
                yield f"{row.case.name}: {peer} (?) {outcome.doubt}"
