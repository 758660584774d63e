"""Rewrites of a graph by a rule set, to a fixpoint.

Floor 1. `rewrite` visits sources before users, without recursion, and each node once. Where a rule
fires, its result is visited in turn, until nothing changes any more: what comes out is a normal
form. That is a fact about the node, so it is remembered on it, one bit per rule set, and later
rewrites do not go there again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from tinycore.errors import VerifyError
from tinycore.trace import Trace
from tinycore.uop.node import UOp, interned, not_normal
from tinycore.uop.pattern import Matchers, Rule, RuleSet, Tell
from tinycore.uop.text import inline

trace: Final = Trace("rewrite")

observers: Final[list[Tell]] = []
"""The observers of every rule that fires."""

MAX_PENDING: Final = 100_000
"""Limit of pending results; only endless rewriting reaches it, never a real graph."""

MOST_SAMPLED: Final = 200
"""Pending results to inspect for the names of the rules that rewrite endlessly."""


def rebuilt(root: UOp, change: Callable[[UOp, UOp], UOp]) -> UOp:
    """The graph with `change(node, the node over changed sources)` in place of every node."""
    done: dict[UOp, UOp] = {}
    changed, get = done.keys(), done.get
    for old in root.toposort():
        src = old.src
        over = old if changed.isdisjoint(src) else old.with_src(tuple(map(get, src, src)))
        if (new := change(old, over)) is not old:
            done[old] = new
    return get(root, root)


def rewrite(root: UOp, rules: RuleSet, *, name: str = "") -> UOp:
    """The graph below `root` with `rules` applied until none applies anywhere.

    Sources are finished before the nodes that use them. `name` labels the trace. Raises
    VerifyError, naming the rules, when they go on forever.
    """
    bit = rules.bit
    if root._normal & bit and not observers:
        return root
    done: dict[UOp, UOp] = {}
    if observers or trace.on:
        recording = rules.recording(teller(name or rules.name))
        finish([root], {}, done, recording, rules)
        return done[root]
    matchers, covers = rules.matchers, rules.covers
    changed, get = done.keys(), done.get
    # Most nodes are changed by no rule: they cost this loop; `finish` is for what rules make.
    for node in not_normal(root, bit):
        if node in changed:  # reached before, from what a rule made
            continue
        src = node.src
        rebuilt = node
        if not changed.isdisjoint(src):
            rebuilt = interned(node.op, node.dtype, tuple(map(get, src, src)), node.arg)
            if rebuilt in changed:
                done[node] = done[rebuilt]
                continue
        matcher = matchers[rebuilt.op]
        if matcher is not None and not rebuilt._normal & covers[rebuilt.op]:
            new = matcher(rebuilt)
            if new is not None:
                again = [node] if rebuilt is node else [rebuilt, node]
                finish([*again, new], dict.fromkeys(again, new), done, matchers, rules)
                continue
        rebuilt._normal |= bit
        if rebuilt is not node:
            done[node] = rebuilt
    return get(root, root)


def finish(
    stack: list[UOp],
    pending: dict[UOp, UOp],
    done: dict[UOp, UOp],
    matchers: Matchers,
    rules: RuleSet,
) -> None:
    """Put the normal forms of all nodes of a stack into `done`, the last one first.

    `pending` has rewritten nodes, and the nodes whose normal form they take.
    """
    bit, known = rules.bit, rules.covers
    watched = matchers is not rules.matchers
    push, get = stack.append, done.get
    while stack:
        node = stack.pop()
        if node in done:
            continue
        if node in pending:
            finished = done.get(pending.pop(node))
            if finished is None:
                raise endless(rules, [node, *pending])
            done[node] = finished
            continue
        src = node.src
        for source in src:
            if not source._normal & bit and source not in done:
                break
        else:
            source = None
        if source is not None:
            push(node)
            stack += [s for s in src[::-1] if not s._normal & bit and s not in done]
            continue
        rebuilt = node
        if src and (new_src := tuple(map(get, src, src))) != src:
            rebuilt = interned(node.op, node.dtype, new_src, node.arg)
            if rebuilt in done:
                done[node] = done[rebuilt]
                continue
            if rebuilt in pending:
                raise endless(rules, list(pending))
        new = None
        if watched or not rebuilt._normal & known[rebuilt.op]:
            matcher = matchers[rebuilt.op]
            new = None if matcher is None else matcher(rebuilt)
        if new is None:
            rebuilt._normal |= bit
            done[node] = done[rebuilt] = rebuilt
        elif new in done:
            done[node] = done[rebuilt] = done[new]
        else:
            pending[node] = pending[rebuilt] = new
            if len(pending) > MAX_PENDING:
                raise endless(rules, list(pending))
            if rebuilt is not node:
                stack.append(rebuilt)
            stack += (node, new)


def endless(rules: RuleSet, pending: list[UOp]) -> VerifyError:
    """The error for rules that undo one another; names those that fire on the last nodes."""
    fired: Counter[str] = Counter()
    matchers = rules.recording(lambda rule, before, after: fired.update([rule.name]))
    for node in islice(reversed(pending), MOST_SAMPLED):
        if (matcher := matchers[node.op]) is not None:
            matcher(node)
    names = ", ".join(name for name, _ in fired.most_common(5))
    return VerifyError(
        f"rule set {rules.name!r} rewrites forever at `{inline(pending[-1])}`. "
        f"Rules involved: {names or 'unknown'}. One of them undoes another, or grows its own match."
    )


def teller(label: str) -> Tell:
    """A function that passes rule firings on to the observers and to the trace."""

    def tell(rule: Rule, before: UOp, after: UOp) -> None:
        for observer in observers:
            observer(rule, before, after)
        if trace.on:
            trace(f"{label:<20} {rule.name:<32} {inline(before)} -> {inline(after)}")

    return tell


@contextmanager
def observe(tell: Tell) -> Iterator[None]:
    """While inside, every rule that fires in any rewrite calls `tell(rule, before, after)`."""
    observers.append(tell)
    try:
        yield
    finally:
        observers.remove(tell)
