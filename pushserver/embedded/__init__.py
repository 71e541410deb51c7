"""PostgreSQL and Valkey from wheels, for machines that have neither: real servers, real files, kept in DATA_DIR.

A module here says how one server is prepared, started, recognised as ready and reached. It never keeps a process: the
supervisor and the test session do, from the same `ProcessSpec`.
"""
