"""The canary engine: a client that walks a chain of named links every minute, and reports the first broken one.

Each bridge has one canary, which uses the same networks and peers as real clients. It shares only settings and database
with the server: when an answer does not come, the canary looks for the cause in the database. Its rows are marked, left
out of reports, and removed after the run.

    runs.py      the columns of a run, which each bridge keeps in a table of its own
    engine.py    a run: its row, the walk over the links, the diagnosis, the result in the status cache
    command.py   a run on demand, with the result on a terminal

A bridge adds its links, the diagnosis of each link, and the removal of its rows.

See docs/canary.md.
"""
