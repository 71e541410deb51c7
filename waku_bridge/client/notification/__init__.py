"""The side that notifies: queries, what it learns from answers, and requests."""
