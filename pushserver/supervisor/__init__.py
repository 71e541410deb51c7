"""Running many processes as one: described by `ProcessSpec`, kept alive and stopped in order by `Supervisor`.

Nothing in here knows Django or what the processes are for; `pushserver.management.commands.up` does.
"""
