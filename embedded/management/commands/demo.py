"""`manage.py demo`: run `up` with clients that register, query and notify all the time, so that every screen shows
activity. Where Prosody is installed, a server of XMPP users notifies as well.
"""

from dataclasses import replace

from django.conf import settings

from embedded.demo.addresses import arguments_of, demo_server, part_of
from embedded.demo.people import Person, shown
from embedded.management.commands import up
from embedded.stack.plan import Plan, manage
from embedded.supervisor.processes import StopOrder

STAGED = "A demonstration. Faults are staged, so that indicators are yellow on purpose:"
XMPP_PEOPLE = (
    "Through XMPP: a server pushes to Benvolio, Mercutio and Rosaline. Rosaline has a STAGED FAULT: the token is dead."
)
PASTE = "Paste a chat key into the console's box, or see the page Find."


class Command(up.Command):
    help = "Run the whole server and reference clients that keep it busy."

    def plan(self, cpus: int) -> Plan:
        """Return the plan of `manage.py up` with clients, and Prosody where it is installed."""
        server = demo_server(settings.DATA_DIR) if "XMPP_COMPONENT_JID" in settings.EMBEDDED else None
        arguments, parts, note = (arguments_of(server), [part_of(server)], [XMPP_PEOPLE]) if server else ([], [], [])
        plan = super().plan(cpus)
        return replace(
            plan,
            embedded=[*plan.embedded, *parts],
            services=[*plan.services, manage("clients", "demo_clients", *arguments, stop_order=StopOrder.FRONT)],
            notes=[STAGED, *map(introduction, shown()), *note, PASTE],
        )


def introduction(person: Person) -> str:
    """Return a line about a person. All are made up, so their keys may be shown."""
    staged = f" STAGED FAULT: {person.fault}." if person.fault else ""
    return f"{person.name} ({person.device}): {person.purpose}.{staged} Chat key: {person.chat_key}"
