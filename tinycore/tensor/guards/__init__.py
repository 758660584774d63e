"""Guards: what a captured function finds around it, compared before each replay.

Floor 5. `environment.py` walks everything that the code of a function can reach, led by the names
in that code (`names.py`); `readers.py` reads each container; `guard.py` compares what is read with
what was there at the capture; `keys.py` makes Python values comparable.

The rest of captures asks an `Environment` for a `walk`: what the function reaches, what of it has
changed since, and a `Guard`. Before a replay it asks whether the guard `holds`, and lets it `put`
tensors where the function leaves them. Nothing else knows of byte code, closures or attributes.
See docs/decisions/0028-captures.md.
"""
