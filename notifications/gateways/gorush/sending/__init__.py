"""Sending: from a push to the request that gorush takes, and to the result that its answer means."""
