"""Assertions for tests of models, whose messages hold what a person needs to go on."""
