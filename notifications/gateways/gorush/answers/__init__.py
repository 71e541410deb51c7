"""Answers of gorush: errors read by rules, entries of the feedback hook, and redaction of device data."""
