"""Pages of the nightly reports. They read the result tables and never the tables of the server itself.

See docs/reports.md.
"""
