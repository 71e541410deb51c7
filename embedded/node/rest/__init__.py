"""The REST API of the development node: one module for each group of its endpoints."""
