"""Operators by subject. Each function takes a `Call` and is registered under its names."""
