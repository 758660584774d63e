"""Mutation testing: put small faults into the core, one at a time, and see whether a test fails.

`python -m tests.faults --seed 1 --count 200` chooses lines of the core at random, changes each, and
runs the tests that execute it, the nearest and fastest first, until one fails. `choosing` makes
faults, `patching` puts them into functions of a process, `hosting` collects tests once and runs
them in forks, `collecting` keeps which test executes which fault, `judging` chooses and judges.
`equivalent.toml` names changes that are no faults, and why.
"""
