"""The canary engine: a client of our own walks a chain of named links every minute, and says which one is broken.

Each bridge has one canary. It goes through all that real messages go through, beside the server: the two share settings
and database only, where the canary looks for the reason when an answer does not come. What it leaves in the tables is
marked, left out of reports, and removed when the run is over.

    runs.py      the columns of a run, which each bridge keeps in a table of its own
    engine.py    a run: its row, the walk over the links, the diagnosis, the result in the status cache
    command.py   a run on demand, and its links on a terminal

A bridge adds its links, what a link that breaks means, and how its traces are removed.

See docs/canary.md.
"""
