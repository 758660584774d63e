"""Lowering: from the graph of a kernel to the linear program that a renderer writes.

Floor 3'. The files, in the order in which a kernel passes them:

- `pipeline.py`: the list of passes
- `plan.py`: the plan of a kernel, of the cheapest proposals of all strategies
    - `kernel_facts.py`: the access table: loops, strides, footprints, reuse, reductions, work
    - `strategies/`: a file each proposes plans by these facts; `loops.py` and `grid.py` list them
    - `cost.py`: what a proposal costs on a machine (`Limits`)
    - `draft.py`, `borders.py`, `packing.py`, `threads.py`: the means of strategies
    - `plan_neighbors.py`: plans near a plan, which BEAM measures
- `tile.py`: the tile language, whose steps are in `steps/`; `loops.py` finds and
  exchanges loops, `legality.py` says whether a device can launch the result
- `tighten.py`: folds without the steps that a condition makes neutral, and fused rows without the
  columns that no row of a strip sees
- `fragments.py`: what each lane holds of the operands of a matrix unit
- `expand.py`, `merge_reductions.py`, `register_transpose.py`, `lanes.py`: unrolled loops, lanes
- `cooperative.py`: what the threads of a workgroup reduce and fill together
- `predicate.py`: gates of loads and stores
- `registers.py`: accumulators, `dims.py`: launch indices, `align.py`, `image_access.py`: accesses
- `dtypes.py`, `math.py`, `elementary.py`: what the target lacks
- `hints.py`: non-temporal stores and prefetching
- `linearize.py`: the order in which everything happens
"""
