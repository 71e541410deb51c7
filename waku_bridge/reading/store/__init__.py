"""Reading the stores of nodes: what was missed live, and the past of new topics."""
