"""Mutation testing: put small faults into the core, one at a time, and see whether a test fails.

`python -m tests.faults --seed 1 --count 200` chooses lines of the core at random, changes each in
a copy of the tree, and runs the tests that execute it, the fastest first, until one fails.
`choosing` makes faults, `collecting` finds which test executes which line, `judging` runs tests.
`equivalent.toml` names changes that are no faults, and why.
"""
