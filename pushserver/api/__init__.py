"""The REST API, read-only: what monitoring and support tools may know, and never a token, key or payload."""
