"""Accounts: users, passwords, second factors, sessions, and API tokens."""
