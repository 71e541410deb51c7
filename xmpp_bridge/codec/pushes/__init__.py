"""Pushes of users' servers: Push 2.0 and XEP-0357, their forms, and the payloads encrypted for the device."""
