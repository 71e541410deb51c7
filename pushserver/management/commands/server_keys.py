"""`manage.py server_keys`: print the keys of this server, each with the number of clients that depend on it.

A key may be taken out of OTHER_SERVER_PRIVATE_KEYS once no client depends on it. See
docs/backup.md.
"""

from typing import Any

from django.core.management.base import BaseCommand

from pushserver.console.part import KeyUse
from pushserver.console.parts import parts
from waku_bridge.codec.keys import chat_key
from waku_bridge.query_topics import server_identities, server_identity


class Command(BaseCommand):
    """Print a line for each identity and each kind of clients."""

    help = "print the keys of this server, each with the number of clients that depend on it"

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - the signature of a command
        """Print public keys only, so that people may paste the output anywhere."""
        names = [f"{chat_key(each.pub33)}  {_setting(each == server_identity())}" for each in server_identities()]
        for use in filter(None, (part.key_use() for part in parts())):
            self._print(use, names)

    def _print(self, use: KeyUse, names: list[str]) -> None:
        for key, name in zip(use.own, names, strict=True):
            self.stdout.write(f"{use.counts.get(key, 0):>9,} {use.kind}  {name}")
        if unknown := sum(count for key, count in use.counts.items() if key not in use.own):
            self.stdout.write(f"{unknown:>9,} {use.kind}  {use.others}")


def _setting(is_own: bool) -> str:
    return "SERVER_PRIVATE_KEY" if is_own else "OTHER_SERVER_PRIVATE_KEYS"
