"""Run many processes as one: `ProcessSpec` describes them, and `Supervisor` keeps them alive and stops them in order.

Nothing in here knows Django or what the processes are for; `embedded.stack` does.

See README.md, "Try it".
"""
