"""What reading from nodes and stores costs, and what the load generator needs."""
