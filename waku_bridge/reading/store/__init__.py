"""Readers of the stores of nodes: they bring messages that the live path missed, and the past of new topics."""
