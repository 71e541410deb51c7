"""Token buckets: the arithmetic in `bucket`, a process's share of a limit in `share`, buckets of all in `shared`.

a limit of the whole server ──┬── a process's share of it, in its memory            (`bucket`)
                              └── all spending beyond that share, in PostgreSQL     (`shared`)

See docs/limits.md.
"""
