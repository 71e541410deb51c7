"""The client that registers: its registrations, its advertisements, and its file."""
