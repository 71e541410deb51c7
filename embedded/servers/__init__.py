"""PostgreSQL and Valkey from wheels, for machines that have neither: real servers with real files in DATA_DIR.

Each module describes how one server is prepared, started, recognised as ready and reached. None of them keeps a
process. The supervisor and the test session do, from the same `ProcessSpec`.

See README.md, "Try it".
"""
