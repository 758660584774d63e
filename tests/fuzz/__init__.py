"""Random programs of whole tensors, checked against other libraries, or against themselves run in
another way: `python -m tests.fuzz.captures --help` and the like, from the root of the repository.

`runner.py` runs many of one kind and reduces those that fail; `tests/property` runs some.
"""
