"""What tests of tinycore and of backends are made of."""
