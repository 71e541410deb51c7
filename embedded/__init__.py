"""Embedded parts: everything that `make run` and `make up` need beyond the server. The server imports nothing of it.

`supervisor` runs processes, `servers` are PostgreSQL, Valkey and Prosody, and `stack` puts the server together. `node`
and `gorush` are the development node and gorush, which share `dev_server`. `demo` and `load` make activity.

See README.md, "Try it".
"""
