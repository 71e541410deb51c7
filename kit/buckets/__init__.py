"""The one token bucket: arithmetic in `bucket`, memory of a process in `store`, what processes share in `shared`.

a limit of the whole server ──┬── a process's share of it, in its memory          (`store`, pure)
                              └── what is beyond the share: rows in PostgreSQL    (`shared`)
"""
