"""`manage.py demo`: run `up` with clients that register, query and notify all the time, so that every screen shows
activity. Where Prosody is installed, users of XMPP do the same.
"""

from dataclasses import replace

from django.conf import settings

from embedded.demo.addresses import DemoServer, demo_server
from embedded.demo.people import introduce, shown
from embedded.management.commands import up
from embedded.stack.addresses import Addresses
from embedded.stack.plan import Plan, manage
from embedded.supervisor.processes import ProcessSpec, StopOrder

STAGED = "A demonstration. Faults are staged, so that indicators are yellow on purpose:"
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
        of_xmpp = [XMPP_PEOPLE] if self.demo_server else []
        return [STAGED, *introduce(shown()), *of_xmpp, "Paste a chat key into the console's box, or see the page Find."]

    def afterwards(self) -> list[ProcessSpec]:
        """Return the process that publishes made-up reports, or none for a database of the operator's own."""
        is_embedded = "DATABASE_URL" in settings.EMBEDDED
        return [manage("made-up", "demo_reports", stop_order=StopOrder.WORKER)] if is_embedded else []

    def clients(self) -> list[ProcessSpec]:
        clients = [manage("clients", "demo_clients", stop_order=StopOrder.FRONT)]
        if server := self.demo_server:
            arguments = server.arguments()
            clients.append(manage("xmpp-clients", "xmpp_demo_clients", *arguments, stop_order=StopOrder.FRONT))
        return clients
