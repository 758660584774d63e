"""Plans for graphics cards that are not there, judged by what their loops execute and move.

    python -m benchmarks.cards --output page.md [--card H200] [--only matmul]

A kernel is lowered for a card of which only the architecture is known. What a thread executes is
counted, the addresses of a few groups are computed, and the time that each part of the card would
take is set beside the least that the problem allows. Nothing runs on a card.
"""
