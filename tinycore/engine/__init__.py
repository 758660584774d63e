"""The engine: compiles scheduled kernels, runs them, captures and replays whole steps.

Floor 4. The files, in the order in which a step passes them:

- `engine.py`: `Engine`, what the frontend asks for
- `compile.py`: programs of kernels; `program_cache.py`: those on disk; `rule_hooks.py`: rules of
  plugins
- `run.py`, `transactions.py`: launches, and runs of writes that happen once or not at all
- `counters.py`, `estimate.py`: totals of launches, work and time
- `captured_step.py`, `device_graph.py`: captured steps
- `export.py`: models for files
- `search.py`, `candidate_runner.py`, `search_worker.py`, `trial.py`, `plan_cache.py`: BEAM
"""
