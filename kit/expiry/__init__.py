"""Expiry of unused rows, with a guard against mass expiry. See `models`."""
