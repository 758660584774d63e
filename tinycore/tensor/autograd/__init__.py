"""Gradients: reverse-mode differentiation of graphs, through writes and through computed memory.

Floor 5. The files, from the rules to what they need of the past:

- rules: `grad.py` (a rule for each op, and what a gradient goes to), `softmax_products.py`
  (attention as a whole)
- memory over time: `versions.py` (and the node that each was computed by), `history.py` (which
  memory keeps it, and which derivatives are refused)

**A derivative is a graph.** A rule gets a node and the gradient of its value, and makes those of
its sources of nodes again: derivatives are scheduled, fused and differentiated like anything else.
`backward` visits the graph in reverse and adds up what arrives at leaves that ask for a gradient.

**A leaf is a version of memory, not an address.** A run that writes in place ends with the next
version of its memory (`versions.py`), which is another BUFFER with the same home. A graph made
before goes on reading the former version. A derivative that only passes through that is right; one
that needs its content, which is gone, is refused by name (`history.check`).

**Computing a value does not end its gradient**, unless `realize` is called on it by name. Memory
that a run computed on the way to something else knows the node that it was computed by
(`versions.Made`), and walks go on below it. Where a gradient does end, memory remembers which
sources it would have gone to (`grad.end_at`), so that a later `backward` that wants one
of them raises GradientError rather than leave it without a gradient.

**Two equal values may be two leaves.** A computed tensor that asks for a gradient becomes an OWN,
a node with a number, so that it does not share the gradient of a value that happens to be equal.
"""
