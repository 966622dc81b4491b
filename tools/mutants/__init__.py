"""Mutation testing of the rules: ``make mutants`` changes one thing in ``core`` at a time, and asks the tests."""
