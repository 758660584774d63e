"""The methods of `Tensor`, a file for each subject. They build nodes, and compute nothing.

Floor 5. The files, by subject:

- making: `data.py`, `creation.py`, `random.py`, `stream.py`
- elements: `operands.py`, `elementwise.py`, `remainder.py`, `functions.py`, `special.py`,
  `powers.py`, `activations.py`, `templates.py` (nodes of methods by shapes)
- shapes: `movement.py`, `joining.py`, `indexing.py`, `selection.py`, `inplace.py`
- folds: `reduce.py`, `scan.py`, `prefix_scan.py`, `sorting.py`
- products: `linalg.py`, `windows.py`, `attention.py`, `losses.py`, `composed.py`
- images, many devices, kernels by hand: `image_products.py`, `pixels.py`, `multi.py`, `custom.py`,
  `placeholder.py`

**A file is a class that inherits from the one before** (`core.py` lists the order); the last of
them is `Tensor`. A method may use those of its own file and of the files below, so that there is an
order in which they can be read, and no circle. See
docs/decisions/0015-one-tensor-class-in-a-chain.md.

**A method does four things**: it checks its arguments (types by its annotations, in
`signatures.py`; shapes, devices and dtypes in `checks.py` and `operands.py`), promotes and
broadcasts its operands, builds nodes by `graph.py`, and wraps the result. An error names the values
and what to do, and its traceback ends at the line of the caller.

**Methods are written by other methods** wherever the graph comes out the same. A sum of squares is
`(x * x).sum()`; the scheduler finds that it is one kernel. What needs an algorithm (sorts, prefix
scans, random bits) says in its file which one.

**Calls alike are traced once.** A method that is `templated` depends on shapes, dtypes and plain
arguments alone. From its third call with operands alike on its nodes are made from a list, without
checks and tensors in between.
"""
