"""`python -m tinycore.testing.programs`. Floor 6.

Worker processes do not import a package's `__main__`, so all they need is in `command.py`.
"""

from __future__ import annotations

import sys

from tinycore.testing.programs.command import main

if __name__ == "__main__":
    sys.exit(main())
