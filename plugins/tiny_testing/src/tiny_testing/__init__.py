"""The test kit: everything that tests of tinycore and of backends are made of."""
