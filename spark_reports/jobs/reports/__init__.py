"""Reports: each module computes the rows of its table from the facts of a day."""
