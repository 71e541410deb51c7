"""The whole server on one machine, as `manage.py up` and `manage.py demo` run it.

What runs is decided in `plan`, in which order it starts in `running`. `pushserver.supervisor` keeps
the processes.
"""
