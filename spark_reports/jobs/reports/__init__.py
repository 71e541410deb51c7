"""The reports: each turns the facts of a day into the rows of its table."""
