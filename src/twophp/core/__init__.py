"""The rules: pure functions over frozen values. No I/O, no clock, no randomness, no driver."""
