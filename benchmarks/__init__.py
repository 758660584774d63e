"""Speed of tinycore beside the peers that are installed and the limits of the machine.

`python benchmarks/run.py` measures, checks that all agree, and prints a table. `cases/` says what
is measured; `peers.py` how each peer is driven; `worker.py` is the process in which one peer runs
one case; `session.py` takes turns between them. `limits.py` measures the hardware.
"""
