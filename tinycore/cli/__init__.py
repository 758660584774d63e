"""The `tinycore` command: one file per subcommand, each with `add` and `run`.

Floor 6, on the public API.
"""
