"""Tests of what backends are tested with."""
