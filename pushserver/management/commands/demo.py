"""`manage.py demo`: run `up` with clients that register, query and notify all the time, so that every screen shows
activity. Where there is a Prosody, users of XMPP do the same.
"""

import os
import subprocess
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from pushserver.data_dir import refuse_data_of_another_account, usable
from pushserver.embedded import prosody
from pushserver.embedded.parts import EmbeddedPart
from pushserver.embedded.town import Town
from pushserver.management.commands import up
from pushserver.stack.children import read_settings_again
from pushserver.stack.plan import manage
from pushserver.supervisor.processes import PROJECT, ProcessSpec, Stage
from waku_bridge.client.demo.cast import SEED, cast, introduce

STAGED = "A demonstration. Faults are staged, so that indicators are yellow on purpose:"

XMPP_PEOPLE = (
    "Through XMPP: Juliet and Romeo write to each other, and a server pushes to Benvolio, Mercutio and Rosaline. "
    "Rosaline has a STAGED FAULT: the token is dead."
)


class Command(up.Command):
    help = "Run the whole server and reference clients that keep it busy."

    town: Town | None = None

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--xmpp", action="store_true", help="install Prosody if there is none (Debian, as root)")

    def handle(self, *args: Any, **options: Any) -> None:
        os.environ["DEMONSTRATION"] = "1"  # pages say so
        read_settings_again()
        if options["xmpp"]:
            subprocess.run([PROJECT / "requirements" / "system.sh", "prosody"], check=False)
        # An operator's own component is left alone: the demonstration would register devices with it.
        if prosody.is_installed() and not settings.XMPP_COMPONENT_JID:
            refuse_data_of_another_account(settings.DATA_DIR)
            with usable(settings.DATA_DIR):
                settings.DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.town = Town.settle(settings.DATA_DIR)
            os.environ |= self.town.environment()
            read_settings_again()
        super().handle(*args, **options)

    def notes(self) -> list[str]:
        """Return who the people of the demonstration are. They are made up, so that their keys may be shown."""
        people = list(introduce(cast(SEED, version=0)))
        of_xmpp = [XMPP_PEOPLE] if self.town else []
        return [STAGED, *people, *of_xmpp, "Paste a chat key into the console's box, or see the page Find."]

    def further_parts(self) -> list[EmbeddedPart]:
        return [self.town.part()] if self.town else []

    def further_processes(self) -> list[ProcessSpec]:
        clients = [manage("clients", "demo_clients", stage=Stage.FRONT)]
        if self.town:
            clients.append(manage("xmpp-clients", "xmpp_demo_clients", *self.town.arguments(), stage=Stage.FRONT))
        return clients
