"""Tests of layers, optimizers, state, data sets and file formats."""
