"""Operator actions on devices of XMPP. Each is safe to repeat, and safe for two operators at once."""

from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.db import Error, transaction

from kit.db.reasons import is_conflict
from pushserver.console.notifications import operator_actions
from registrations.models import Route
from xmpp_bridge.commands import ACTIONS, CommandRefused
from xmpp_bridge.devices import Done, carry_out, end
from xmpp_bridge.messages import Errors, parse_jid
from xmpp_bridge.models import Device
from xmpp_bridge.rules import Domains

log = structlog.get_logger(__name__)
State = Device.State
# Another process may register the same device at the same moment. It has committed by the time that our insert fails.
ATTEMPTS = 3
NO_ACCOUNT = "account: the address of an account, without a resource"


def command(node: str, account: str, fields: Mapping[str, str], *, now: datetime) -> Done:
    """Carry out a command for an account as if its app had sent it, and return its result.

    ``node`` is a key of `commands.ACTIONS`. The account is not verified: the operator is responsible for it. Of the
    limits, only those of devices apply: of one account, and in all.

    Raises CommandRefused.
    """
    owner = parse_jid(account)
    if owner is None or not owner.local or owner.resource:
        raise CommandRefused(Errors.BAD_REQUEST, NO_ACCOUNT)
    if not Domains(settings.XMPP_DENIED_DOMAINS, settings.XMPP_ALLOWED_DOMAINS).serve(owner.domain):
        raise CommandRefused(Errors.FORBIDDEN)
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            with transaction.atomic():
                return carry_out(ACTIONS[node], owner, fields, domain=settings.XMPP_COMPONENT_JID, now=now)
        except Error as error:
            if not attempts_left or not is_conflict(error):
                raise
            log.info("command_collided")
    raise AssertionError  # the last attempt returned or raised


@transaction.atomic
def remove(device_ids: Collection[UUID], *, now: datetime) -> int:
    """End these devices as if their apps had unregistered them, and return how many ended.

    Their addresses are forgotten, and their waiting notifications are withdrawn. Later pushes to them get an error.
    """
    active = Device.objects.filter(pk__in=device_ids, state=State.ACTIVE)
    devices = list(active.select_related("route").order_by("pk").select_for_update(of=("self",)))
    for device in devices:
        end(device, State.UNREGISTERED, now=now)
    log.info("devices_removed_on_demand", count=len(devices))
    return len(devices)


def disable(device_ids: Collection[UUID], *, now: datetime) -> int:
    """Disable the routes of these devices until an operator enables them or their apps register again.

    Return how many routes were disabled.
    """
    return operator_actions.disable_routes(_routes_of(device_ids), now=now)


@transaction.atomic
def enable(device_ids: Collection[UUID], *, now: datetime) -> int:
    """Enable the routes of these devices, and return how many. A later end of theirs is announced once more."""
    route_ids = _routes_of(device_ids)
    count = operator_actions.enable_routes(route_ids, now=now)
    Route.objects.filter(pk__in=route_ids, state=Route.State.ACTIVE).update(is_end_awaited=True)
    return count


def _routes_of(device_ids: Collection[UUID]) -> list[int]:
    devices = Device.objects.filter(pk__in=device_ids, route__isnull=False)
    return list(devices.values_list("route_id", flat=True))
