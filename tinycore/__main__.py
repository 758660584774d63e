"""`python -m tinycore`: the same as the `tinycore` command."""

import sys

from tinycore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
