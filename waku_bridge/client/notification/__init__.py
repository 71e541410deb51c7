"""The client that notifies: its queries, its directory of destinations, and its requests."""
