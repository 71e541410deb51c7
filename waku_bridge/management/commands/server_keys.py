"""`manage.py server_keys`: by which keys clients know this server, and how many know it by which.

A key may be taken out of OTHER_SERVER_PRIVATE_KEYS once no installation depends on it. See docs/security.md.
"""

from typing import Any

from django.core.management.base import BaseCommand

from registrations.lookup import count_by_newest_grant
from waku_bridge.codec.keys import chat_key
from waku_bridge.identity import server_identities, server_identity


class Command(BaseCommand):
    """Print a line for each identity."""

    help = "show by which keys clients know this server, and how many installations depend on each"

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - the signature of a command
        """Print the public keys only: this output may be pasted anywhere."""
        counts = count_by_newest_grant()
        for identity in server_identities():
            name = "SERVER_PRIVATE_KEY" if identity == server_identity() else "OTHER_SERVER_PRIVATE_KEYS"
            self.stdout.write(f"{counts.pop(identity.pub33, 0):>9,} installations  {chat_key(identity.pub33)}  {name}")
        if unknown := sum(counts.values()):
            self.stdout.write(f"{unknown:>9,} installations  have granted none of these: nobody finds them")
