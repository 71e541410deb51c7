"""Announcing ends: the server that pushes to a route that has been disabled is told so without having asked.

XEP-0357 has no way to say it, so its servers learn it at their next push; so does a server that pushes in the name of
an account, as accounts are not stored.
"""

from datetime import datetime
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

# So many in one go: a wave of them must not delay answers.
BATCH = 50


class Ended(NamedTuple):
    """A route that was disabled. Without ``announced_from`` nobody can be told."""

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
    """Return routes that were disabled and whose end was not announced yet."""
    with transaction.atomic():
        return [Ended._make(row) for row in fetch(_TAKE, {"limit": limit})]


def write_ends(ended: list[Ended], *, domain: str) -> list[bytes]:
    """Return the announcements of those that can be announced. ``domain`` is our own."""
    return [_write(each, domain) for each in ended if each.device_id and each.announced_from is not None]


def _write(ended: Ended, domain: str) -> bytes:
    service = f"{ended.announced_from}@{domain}" if ended.announced_from else domain
    client = issue(ended.device_id or uuid4(), keys_named(ended.key_name)).client
    origin = Origin("message", uuid4().hex, ended.domain or "", service)
    return answers.write_error(origin, StanzaError("cancel", "gone", disabled_client=client), by=domain)


def note_announced(ended: list[Ended], *, now: datetime) -> None:  # noqa: ARG001 - the signature of what writes
    """Note that these ends were handed to the connection. What is lost with it is told at the next push."""
    if ended:
        disabled = Route.objects.filter(pk__in=[each.route_id for each in ended], state=Route.State.DISABLED)
        disabled.update(is_end_awaited=False)
        ANNOUNCED.inc(sum(each.announced_from is not None for each in ended))
