"""Processes: how one starts, becomes ready, leads, and stops."""
