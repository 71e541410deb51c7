"""Announcements of disabled routes: messages to the users' servers that pushed there, before their next push.

XEP-0357 has no such message, so its servers get the error at their next push. So does a server that pushes in the name
of an account, because accounts are not stored.
"""

from typing import NamedTuple
from uuid import UUID, uuid4

from django.db import transaction

from kit.db.statements import fetch
from registrations.models import Route
from xmpp_bridge.codec import answers
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.identity import keys_named
from xmpp_bridge.messages import Origin, StanzaError
from xmpp_bridge.metrics import ANNOUNCED

# Ends announced at a time. The number is small, so that a wave of ends does not delay answers.
BATCH = 50


class Ended(NamedTuple):
    """A route that was disabled. If ``announced_from`` is None, its end cannot be announced."""

    route_id: int
    device_id: UUID | None
    domain: str | None
    announced_from: str | None
    key_name: bytes | None


_TAKE = f"""
    SELECT route.id, device.id, device.domain, device.announced_from, device.key_name
    FROM registrations_route AS route LEFT JOIN xmpp_bridge_device AS device ON device.route_id = route.id
    WHERE route.state = '{Route.State.DISABLED}' AND route.is_end_awaited
    ORDER BY route.id LIMIT %(limit)s FOR NO KEY UPDATE OF route SKIP LOCKED
"""


def find_ended(*, limit: int = BATCH) -> list[Ended]:
    """Return disabled routes whose end is not announced yet."""
    with transaction.atomic():
        return [Ended._make(row) for row in fetch(_TAKE, {"limit": limit})]


def write_ends(ended: list[Ended], *, domain: str) -> list[bytes]:
    """Return the announcements of the ends that can be announced. ``domain`` is our own."""
    return [_write(each, domain) for each in ended if each.device_id and each.announced_from is not None]


def _write(ended: Ended, domain: str) -> bytes:
    service = f"{ended.announced_from}@{domain}" if ended.announced_from else domain
    client = issue(ended.device_id or uuid4(), keys_named(ended.key_name)).client
    origin = Origin("message", uuid4().hex, ended.domain or "", service)
    return answers.write_error(origin, StanzaError("cancel", "gone", disabled_client=client), by=domain)


def note_announced(ended: list[Ended]) -> None:
    """Record that these ends were written to the connection. If one is lost, the next push gets the error."""
    if ended:
        disabled = Route.objects.filter(pk__in=[each.route_id for each in ended], state=Route.State.DISABLED)
        disabled.update(is_end_awaited=False)
        ANNOUNCED.inc(sum(each.announced_from is not None for each in ended))
