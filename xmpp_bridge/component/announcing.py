"""Announcements of ends: messages to the users' servers that pushed to a device, before their next push.

A disabled route waits for its announcement by `is_end_awaited`, and a device that ended by `announced_from`.

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
from xmpp_bridge.models import Device

# Ends announced at a time. The number is small, so that a wave of ends does not delay answers.
BATCH = 50


class Ended(NamedTuple):
    """A disabled route, or without ``route_id`` a device that ended.

    If ``announced_from`` is None, the end cannot be announced.
    """

    route_id: int | None
    device_id: UUID | None
    domain: str | None
    announced_from: str | None
    key_name: bytes | None


_TAKE_ROUTES = f"""
    SELECT route.id, device.id, device.domain, device.announced_from, device.key_name
    FROM registrations_route AS route LEFT JOIN xmpp_bridge_device AS device ON device.route_id = route.id
    WHERE route.state = '{Route.State.DISABLED}' AND route.is_end_awaited
    ORDER BY route.id LIMIT %(limit)s FOR NO KEY UPDATE OF route SKIP LOCKED
"""


_TAKE_DEVICES = f"""
    SELECT NULL, id, domain, announced_from, key_name FROM xmpp_bridge_device
    WHERE state <> '{Device.State.ACTIVE}' AND announced_from IS NOT NULL
    ORDER BY ended_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""


def find_ended(*, limit: int = BATCH) -> list[Ended]:
    """Return disabled routes and ended devices whose end is not announced yet, at most ``limit`` of each."""
    with transaction.atomic():
        return [Ended._make(row) for sql in (_TAKE_ROUTES, _TAKE_DEVICES) for row in fetch(sql, {"limit": limit})]


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
        routes = [each.route_id for each in ended if each.route_id]
        Route.objects.filter(pk__in=routes, state=Route.State.DISABLED).update(is_end_awaited=False)
        devices = [each.device_id for each in ended if each.device_id and not each.route_id]
        Device.objects.filter(pk__in=devices).exclude(state=Device.State.ACTIVE).update(announced_from=None)
        ANNOUNCED.inc(sum(each.announced_from is not None for each in ended))
