"""`manage.py server_keys`: by which keys clients know this server, and how many know it by which.

A key may be taken out of OTHER_SERVER_PRIVATE_KEYS once neither an installation nor a device of XMPP depends on it. See
docs/security.md.
"""

from typing import Any

from django.core.management.base import BaseCommand

from registrations.lookup import count_by_newest_grant
from waku_bridge.codec.keys import chat_key
from waku_bridge.identity import server_identities, server_identity
from xmpp_bridge.devices.lookup import count_by_key
from xmpp_bridge.identity import client_keys


class Command(BaseCommand):
    """Print a line for each identity, and another where there are devices of XMPP."""

    help = "show by which keys clients know this server, and how many installations and XMPP devices depend on each"

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - the signature of a command
        """Print the public keys only: this output may be pasted anywhere."""
        names = [f"{chat_key(each.pub33)}  {_setting(each == server_identity())}" for each in server_identities()]
        own = [identity.pub33 for identity in server_identities()]
        self._print(
            "installations", count_by_newest_grant(), own, names, "have granted none of these: nobody finds them"
        )
        if devices := count_by_key():
            own = [keys.name for keys in client_keys()]
            self._print("XMPP devices", devices, own, names, "were registered with none of these: no push reaches them")

    def _print(self, kind: str, counts: dict[bytes, int], own: list[bytes], names: list[str], others: str) -> None:
        for key, name in zip(own, names, strict=True):
            self.stdout.write(f"{counts.pop(key, 0):>9,} {kind}  {name}")
        if unknown := sum(counts.values()):
            self.stdout.write(f"{unknown:>9,} {kind}  {others}")


def _setting(is_own: bool) -> str:
    return "SERVER_PRIVATE_KEY" if is_own else "OTHER_SERVER_PRIVATE_KEYS"
