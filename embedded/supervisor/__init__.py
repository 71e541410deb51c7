"""A supervisor that runs many processes as one: `ProcessSpec` describes them, and `Supervisor` keeps and stops them.

Nothing in here imports Django or depends on the purpose of the processes; `embedded.stack` does.

See README.md, "Try it".
"""
