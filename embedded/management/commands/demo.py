"""`manage.py demo`: run `up` with clients that register, query and notify all the time, so that every screen shows
activity. Where Prosody is installed, users of XMPP do the same.
"""

import os
import sys
from dataclasses import replace
from signal import SIGTERM, signal

from django.conf import settings

from embedded.demo.addresses import demo_server
from embedded.demo.people import SEED, introduce, make_people
from embedded.demo.xmpp import DemoServer
from embedded.management.commands import up
from embedded.stack.addresses import Addresses
from embedded.stack.plan import REPORTS_STOP_SECONDS, Plan, manage
from embedded.supervisor.processes import ProcessSpec, StopOrder

STAGED = "A demonstration. Faults are staged, so that indicators are yellow on purpose:"

# The process that makes up reports runs at low priority.
NICENESS = 5

XMPP_PEOPLE = (
    "Through XMPP: Juliet and Romeo write to each other, and a server pushes to Benvolio, Mercutio and Rosaline. "
    "Rosaline has a STAGED FAULT: the token is dead."
)


class Command(up.Command):
    help = "Run the whole server and reference clients that keep it busy."

    @property
    def demo_server(self) -> DemoServer | None:
        """Return the XMPP server, or None where an operator has a component, or no Prosody is installed."""
        return demo_server(settings.DATA_DIR) if "XMPP_COMPONENT_JID" in settings.EMBEDDED else None

    def plan(self, here: Addresses, *, cpus: int) -> Plan:
        """Return the plan of `manage.py up` with clients, made-up reports, and Prosody where it is installed."""
        plan = super().plan(here, cpus=cpus)
        return replace(
            plan,
            embedded=[*plan.embedded, *([self.demo_server.part()] if self.demo_server else [])],
            services=[*plan.services, *self.clients()],
            notes=self.notes(),
            afterwards=self.afterwards(),
        )

    def notes(self) -> list[str]:
        """Return lines about the people of the demonstration. They are made up, so their keys may be shown."""
        people = list(introduce(make_people(SEED, version=0)))
        of_xmpp = [XMPP_PEOPLE] if self.demo_server else []
        return [STAGED, *people, *of_xmpp, "Paste a chat key into the console's box, or see the page Find."]

    def afterwards(self) -> list[ProcessSpec]:
        """Return the process that makes up reports, or none for a database of the operator's own."""
        if "DATABASE_URL" not in settings.EMBEDDED:
            return []
        made_up = manage("made-up", "demo_reports", stop_order=StopOrder.WORKER)
        return [replace(made_up, stop_seconds=REPORTS_STOP_SECONDS, prepare=_give_way)]

    def clients(self) -> list[ProcessSpec]:
        clients = [manage("clients", "demo_clients", stop_order=StopOrder.FRONT)]
        if self.demo_server:
            clients.append(
                manage("xmpp-clients", "xmpp_demo_clients", *self.demo_server.arguments(), stop_order=StopOrder.FRONT)
            )
        return clients


def _give_way() -> None:
    """Lower the priority of this process, and make it end Spark, too, when it is stopped."""
    os.nice(NICENESS)
    signal(SIGTERM, lambda *_: sys.exit(0))
