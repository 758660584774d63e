"""The two devices that come with the core: PYTHON, which interprets, and NULL, which runs nothing.

They are declared by entry points and use the stable face of the core only, as any plugin does.
"""
