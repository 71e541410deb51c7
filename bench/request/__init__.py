"""What one request costs, step by step, in one process."""
