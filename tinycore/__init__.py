"""A tensor framework for any accelerator: a minimal core, every backend a package of its own."""
