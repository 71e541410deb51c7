"""The canaries: clients of our own that walk a chain of named links every minute, and report the first broken one.

Each network has one, which uses the same peers as real clients. A canary shares only settings and database with the
server: when an answer does not come, it looks for the cause in the database. Its rows are marked, left out of reports,
and removed after the run.

    engine.py    a run: its row, the walk over the links, the result in the status cache
    waku.py      the chain of Waku      xmpp.py    the chain of XMPP

See docs/canary.md.
"""
