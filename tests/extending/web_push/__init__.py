"""A gateway that only the tests know. It is an app like any other, and none outside this folder names it."""
