"""Processes: how one starts, becomes ready, leads, and stops. See docs/installation/README.md."""
