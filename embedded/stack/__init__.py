"""The whole server on one machine, as `manage.py up` and `manage.py demo` run it.

`plan` decides what runs and `running` in which order it starts. `embedded.supervisor` keeps the processes.

See README.md, "Try it".
"""
