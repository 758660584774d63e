"""Common parts of the emulators of cards: memory whose accesses are checked, numbers, and faults.

The emulators themselves lie in the tests of their plugins; no device chooses one.
"""
