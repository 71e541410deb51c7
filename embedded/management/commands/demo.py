"""`manage.py demo`: run `up` with clients that register, query and notify all the time, so that every screen shows
activity. Where Prosody is installed, users of XMPP do the same.
"""

from dataclasses import replace

from django.conf import settings

from embedded.demo.addresses import arguments_of, demo_server, part_of
from embedded.demo.people import introduce, shown
from embedded.management.commands import up
from embedded.stack.plan import Plan, manage
from embedded.supervisor.processes import StopOrder

STAGED = "A demonstration. Faults are staged, so that indicators are yellow on purpose:"
XMPP_PEOPLE = (
    "Through XMPP: Juliet and Romeo write to each other, and a server pushes to Benvolio, Mercutio and Rosaline. "
    "Rosaline has a STAGED FAULT: the token is dead."
)


class Command(up.Command):
    help = "Run the whole server and reference clients that keep it busy."

    def plan(self, cpus: int) -> Plan:
        """Return the plan of `manage.py up` with clients, and Prosody where it is installed."""
        server = demo_server(settings.DATA_DIR) if "XMPP_COMPONENT_JID" in settings.EMBEDDED else None
        arguments = arguments_of(server) if server else []
        plan = super().plan(cpus)
        return replace(
            plan,
            embedded=[*plan.embedded, *([part_of(server)] if server else [])],
            services=[*plan.services, manage("clients", "demo_clients", *arguments, stop_order=StopOrder.FRONT)],
            notes=self.notes(),
        )

    def notes(self) -> list[str]:
        """Return lines about the people of the demonstration. They are made up, so their keys may be shown."""
        of_xmpp = [XMPP_PEOPLE] if "XMPP_COMPONENT_JID" in settings.EMBEDDED else []
        return [STAGED, *introduce(shown()), *of_xmpp, "Paste a chat key into the console's box, or see the page Find."]
