"""The one token bucket: arithmetic in `bucket`, the part of a process in `share`, what processes share in `shared`.

a limit of the whole server ──┬── a process's share of it, in its memory          (`bucket`)
                              └── what is beyond the share: rows in PostgreSQL    (`shared`)

See docs/limits.md.
"""
