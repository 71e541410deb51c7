"""Sending: from a push to gorush's request, and from its answer to a result."""
