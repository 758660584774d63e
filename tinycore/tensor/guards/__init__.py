"""Guards: what a captured function finds around it, compared before each replay.

Floor 5. A guard is a table (`guard.py`). A row is a container: where it is found among the values
of an earlier row, how its values are read, and what is expected of each (`Role`). `readers.py` has
the ways of reading, by class; `environment.py` makes the rows, for all that the code of a function
can reach, led by the names in that code (`names.py`).

The rest of captures asks an `Environment` for a `walk`: what the function reaches, what of it has
changed since, and a `Guard`. Before a replay it asks whether the guard `holds`, and lets it `put`
tensors where the function leaves them. Nothing else knows of byte code, closures or attributes.
See docs/decisions/0028-captures.md.
"""
