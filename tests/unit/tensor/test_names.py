"""Names in the code of a captured function."""

from __future__ import annotations

import sys
import types

from tinycore.tensor.guards.names import Names


def test_libraries_that_code_imports_are_not_looked_into() -> None:
    def function() -> object:
        import json  # noqa: PLC0415

        import tests.unit.tensor.helpers  # noqa: PLC0415

        return json, tests

    names = Names("somewhere")
    function()  # what nobody has imported yet is not looked into either
    assert isinstance(function, types.FunctionType)
    names.add(function)

    assert names.imported() == (sys.modules["tests.unit.tensor.helpers"],)
