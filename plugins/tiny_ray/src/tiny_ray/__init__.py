"""Training with tinycore on Ray: its workers are a group, and its checkpoints tinycore's.

Ray Train places workers, gives them data, and starts them again where one dies. In the function
that it runs, `tiny_mpi.ranks()` names the devices of all workers, and `tiny_ray.training` has
`report` and `resumed`. Importing this module imports no Ray.
"""
