"""Export of the facts of closed days from PostgreSQL into the lake: pseudonymous, by table, in bounded memory.

See docs/reports.md.
"""
