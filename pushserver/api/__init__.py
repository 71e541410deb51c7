"""The read-only REST API: what monitoring and support tools may know. It never tells a token, key or payload."""
