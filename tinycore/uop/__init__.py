"""The graph that everything is made of: ops, nodes, patterns, rewriting, integer algebra.

Floor 1. The files, in the order in which a graph is made, changed and checked:

- `op.py`: the table of ops; `operators.py`: Python operators; `node.py`: `UOp`, the one node type,
  and the table of living nodes; `origins.py`: the methods and lines of the program that nodes
  are from; `ops.py`: the names of tinygrad
- `shape.py`, `size.py`, `bindings.py`: shapes, and sizes that a launch is given
- `movement.py`: axes through movement ops; `matrix.py`: matrix instructions as data;
  `instruction.py`: instructions of a plugin's own
- `pattern.py`, `matcher.py`, `rewrite.py`: rules, compiled to functions, and the driver that
  applies them
- `identities.py`, `logic.py`, `casts.py`, `sums.py`, `divmod.py`, `compare.py`: rules by subject;
  `symbolic.py`: their union, and simplification under a predicate
- `proportional.py`: sums that may be scaled to another maximum
- `product.py`, `softmax.py`: products of matrices and softmaxes, as nodes of a tensor graph
- `bounds.py`, `affine.py`, `evaluate.py`, `threefry.py`: ranges of values, strides, and values;
  `host_bytes.py`: values in NumPy's arrays, also of dtypes that NumPy lacks
- `stages.py`, `verify.py`, `verify_tensor.py`, `verify_linear.py`: legality at each stage
- `text.py`, `parse.py`: graphs as text, and back
"""
