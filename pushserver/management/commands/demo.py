"""`manage.py demo`: `up`, and clients that register, query and notify all the time, so that every screen shows life."""

from pushserver.management.commands import up
from pushserver.stack.plan import manage
from pushserver.supervisor.processes import ProcessSpec, Stage


class Command(up.Command):
    help = "Run the whole server and reference clients that keep it busy."

    def further_processes(self) -> list[ProcessSpec]:
        return [manage("clients", "demo_clients", stage=Stage.FRONT)]
