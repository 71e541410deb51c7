"""Devices: registered by the ad-hoc commands of apps or by operators over HTTP, ended, announced and removed.

An account registers its own devices: its server stamps the command with its address. Of the account, only a keyed hash
and the domain are stored. See docs/xmpp.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from kit.db.base import fetch
from kit.db.partitions import delete_in_chunks
from kit.expiry.models import may_end
from kit.telemetry import count
from notifications.acceptance import acceptance
from registrations.messages import DeviceAddress, TokenType
from registrations.models import RegistrationEvent, Route
from registrations.quotas import parameters_of
from xmpp_bridge import commands, statements
from xmpp_bridge.codec import answers
from xmpp_bridge.commands import Action, CommandRefused
from xmpp_bridge.identity import canary_apps, client_keys, device_keys, issue, keys_named, owner_keys, session_ids
from xmpp_bridge.limits import RATES, Limits
from xmpp_bridge.messages import BRIDGE, NOBODY, Command, Errors, Jid, Origin, StanzaError, parse_jid
from xmpp_bridge.metrics import ANNOUNCED, COMMANDS
from xmpp_bridge.models import App, Device
from xmpp_bridge.rules import Domains

# Devices that one step of the retention ends.
CHUNK = 200
# Ends announced at a time. The number is small, so that a wave of ends does not delay answers.
BATCH = 50
UNKNOWN_SESSION = "sessionid: not a session of this client and command"
APP_NOT_NAMED = "app: required, because there are several"
INSTRUCTIONS = "The server of your account can read the values of this form."
Kind = RegistrationEvent.Kind
State = Device.State


class Done(NamedTuple):
    """The result of a command. ``values`` holds secrets of the device, for its app alone."""

    values: Mapping[str, str]
    outcome: str
    device_id: UUID


class Registering:
    """Execution of commands in the connected process, which keeps the limits. ``domain`` is our own."""

    def __init__(self, domain: str, limits: Limits, domains: Domains) -> None:
        self._domain = domain
        self._limits = limits
        self._domains = domains

    def answer(self, command: Command, *, now: datetime) -> bytes:
        """Carry out one command in a transaction of its own, and return its answer.

        A command beyond a limit is refused without a transaction. Raises the errors of the database. Nothing is stored
        or charged then.
        """
        try:
            answer, outcome = self._answer(command, now=now)
        except CommandRefused as refused:
            answer, outcome = answers.write_error(command.origin, refused.error, by=self._domain), refused.outcome
        except BaseException:
            self._limits.take_back()
            raise
        self._limits.keep()
        count(COMMANDS, [(outcome,)])
        return answer

    def refuse(self, command: Command, error: StanzaError) -> bytes:
        """Return the answer to a command that is not carried out."""
        refused = CommandRefused(error)
        count(COMMANDS, [(refused.outcome,)])
        return answers.write_error(command.origin, refused.error, by=self._domain)

    def _answer(self, command: Command, *, now: datetime) -> tuple[bytes, str]:
        origin, node = command.origin, command.node
        action = commands.ACTIONS.get(node)
        if action is None:
            raise CommandRefused(Errors.NOT_FOUND)
        account = self._authorise(command, now=now)
        sessions = session_ids(node, origin.sender)
        session = command.session or sessions[0]
        if session not in sessions:
            raise CommandRefused(Errors.BAD_REQUEST, UNKNOWN_SESSION)
        if command.action == "cancel":
            return answers.write_command(origin, node, session, "canceled"), "canceled"
        if command.action not in commands.PHASES:
            raise CommandRefused(Errors.BAD_REQUEST)
        if command.fields is None:
            fields = commands.form_fields(action, [app.slug for app in _apps_for(action)])
            form = answers.write_form(action.name, INSTRUCTIONS, fields)
            return answers.write_command(origin, node, session, "executing", form), "form"
        done = self._carry_out(action, account, command, now=now)
        values = answers.write_values(done.values, "result") if done.values else ""
        return answers.write_command(origin, node, session, "completed", values), done.outcome

    def _carry_out(self, action: Action, account: Jid, command: Command, *, now: datetime) -> Done:
        service = parse_jid(command.origin.service) or NOBODY
        fields = dict(command.fields or {})
        fields["app"] = fields.get("app") or service.local
        with transaction.atomic():
            return carry_out(action, account, fields, domain=self._domain, limits=self._limits, now=now)

    def _authorise(self, command: Command, *, now: datetime) -> Jid:
        """Return the sender of a command: a client of an account, in a domain that is served.

        Raises CommandRefused.
        """
        sender = parse_jid(command.origin.sender) or NOBODY
        if not (sender.local and sender.resource and self._domains.serve(sender.domain)):
            raise CommandRefused(Errors.FORBIDDEN)
        if not self._limits.take_command(owner_keys("", sender.bare)[0], sender.domain, now.timestamp()):
            raise CommandRefused(Errors.BUSY)
        return sender


def carry_out(
    action: Action,
    account: Jid,
    fields: Mapping[str, str],
    *,
    domain: str,
    limits: Limits | None = None,
    now: datetime,
) -> Done:
    """Register or unregister a device of an account by a submitted form, inside a transaction of the caller.

    ``domain`` is our own. ``limits`` charge a new device to its domain, unless an operator registers it.

    Raises CommandRefused.
    """
    address = commands.read_address(action, fields) if action.is_registration else None
    device_id = commands.read_device_id(fields)
    app = _choose_app(action, fields.get("app", ""), is_canary=account.domain == domain)
    keys, owners = device_keys(app.slug, account.bare, device_id), owner_keys(app.slug, account.bare)
    device = Device.objects.select_for_update().filter(device_key__in=keys, state=State.ACTIVE).first()
    if address is None:
        if device is None or (device.route and device.route.token_type != action.token_type):
            raise CommandRefused(Errors.NOT_FOUND)
        end(device, State.UNREGISTERED, now=now)
        return Done({}, "unregistered", device.id)
    outcome = "refreshed" if device else "registered"
    if not device:
        has_place = _has_place_in_account(owners, (limits.rates if limits else RATES).devices_per_user, now=now)
        is_charged = has_place and (limits is None or limits.take_route(account.domain, now.timestamp()))
        if not (is_charged and _has_place_in_all(now=now)):
            raise CommandRefused(Errors.BUSY)
        device = Device(app=app, domain=account.domain)
    device.device_key, device.owner_key, device.key_name = keys[0], owners[0], client_keys()[0].name
    _register(device, action, address, now=now)
    return Done({"jid": domain, **asdict(issue(device.id, client_keys()[0]))}, outcome, device.id)


def _choose_app(action: Action, slug: str, *, is_canary: bool) -> App:
    """Return the app of this slug, or without a slug the only app there is.

    Raises CommandRefused.
    """
    apps = {app.slug: app for app in _apps_for(action, is_canary=is_canary)}
    if not slug and len(apps) > 1:
        raise CommandRefused(Errors.BAD_REQUEST, APP_NOT_NAMED)
    app = apps.get(slug or next(iter(apps), ""))
    if app is None:
        raise CommandRefused(Errors.NOT_FOUND)
    return app


def _apps_for(action: Action, *, is_canary: bool = False) -> list[App]:
    """Return the apps that a command may name. Only the canary may name its own app."""
    apps = App.objects.filter(is_retired=False).order_by("slug")
    apps = apps.filter(slug__in=canary_apps()) if is_canary else apps.exclude(slug__in=canary_apps())
    return list(apps.exclude(app_topic="") if action.token_type == TokenType.APN else apps.filter(takes_firebase=True))


def _has_place_in_account(owners: Sequence[bytes], limit: int, *, now: datetime) -> bool:
    """Return whether an account may have one more device. At its limit, the one whose route was disabled first ends."""
    owned = Device.objects.filter(owner_key__in=owners, state=State.ACTIVE)
    if owned.count() < limit:
        return True
    dead = owned.filter(route__state=Route.State.DISABLED).order_by("route__disabled_at")
    device = dead.select_for_update(of=["self"], skip_locked=True).first()
    if device:
        end(device, State.EXPIRED, now=now)
    return device is not None


def _has_place_in_all(*, now: datetime) -> bool:
    """Return whether the table has a place for a new device. If it is full, the row of another device is removed.

    The device that ended first goes, or one that a new one may replace.
    """
    [(devices,)] = fetch(statements.STORED_DEVICES)
    if devices < settings.XMPP_MAX_DEVICES:
        return True
    ended = Device.objects.exclude(state=State.ACTIVE).filter(announced_from=None).order_by("ended_at")
    if device := ended.select_for_update(skip_locked=True).first():
        device.delete()
        return True
    drawn = fetch(statements.DRAW_DEVICES, parameters_of(BRIDGE, 1, now=now))
    for device in Device.objects.filter(pk__in=[device_id for (device_id,) in drawn]).select_related("route"):
        end(device, State.EXPIRED, now=now)
        device.delete()
    return bool(drawn)


def _register(device: Device, action: Action, address: DeviceAddress, *, now: datetime) -> None:
    """Set the address of a device's route, which also enables a disabled route."""
    route = device.route or Route(generation=0, created_at=now)
    app_topic = device.app.app_topic if action.token_type == TokenType.APN else ""
    if route.pseudonym is None:  # the route is new, or older than the history
        kind = Kind.REGISTERED
    else:
        is_same = route.is_at(action.token_type, app_topic, address.encode())
        kind = Kind.REFRESHED if is_same else Kind.TOKEN_CHANGED
    was_active = route.state == Route.State.ACTIVE
    route.set_address(settings.XMPP_GATEWAY, action.token_type, app_topic, address.encode())
    route.is_end_awaited = True
    route.bridge = BRIDGE
    route.pseudonym = route.pseudonym or uuid4()
    route.save()
    # Reports count the registrations that are active on a day, so one refresh a day is enough.
    if kind is not Kind.REFRESHED or not was_active or device.registered_at.date() < now.date():
        _record(route, kind, now=now)
    device.route = route
    device.registered_at = now
    device.save()


def _record(route: Route, kind: Kind, *, now: datetime) -> None:
    if route.pseudonym:
        RegistrationEvent.about(route, kind, pseudonym=route.pseudonym, at=now).save()


# The end of a device --------------------------------------------------------------------------------------------------


def end(device: Device, state: Device.State, *, now: datetime) -> None:
    """End a device: delete its route and withdraw its notifications, inside a transaction of the caller.

    The row of the device stays, so that later pushes to it get the error that it is gone. It keeps the address from
    which the end is announced, until that is done.
    """
    route, device.route = device.route, None
    device.state, device.ended_at = state, now
    if route and route.state == Route.State.DISABLED and not route.is_end_awaited:
        device.announced_from = None
    device.save()
    if route:
        acceptance.withdraw([route.pk], now=now)
        _record(route, Kind.EXPIRED if state == State.EXPIRED else Kind.UNREGISTERED, now=now)
        route.delete()


def expire(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """End devices that were neither pushed to nor registered again for ``keep``. Yield how many each step ended.

    If they are more than may end without an operator's permission, none ends (`kit.expiry`).
    """
    unused = Q(registered_at__lt=now - keep) & (Q(pushed_at__isnull=True) | Q(pushed_at__lt=now - keep))
    devices = Device.objects.filter(unused, state=State.ACTIVE)
    if not may_end("devices", devices.count(), Device.objects.filter(state=State.ACTIVE).count(), now=now):
        return
    while True:
        with transaction.atomic():
            chunk = list(devices.order_by("registered_at").select_for_update(skip_locked=True)[:CHUNK])
            for device in chunk:
                end(device, State.EXPIRED, now=now)
        if not chunk:
            return
        yield len(chunk)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Delete the rows of devices that ended ``keep`` ago. Yield how many each step deleted."""
    ended = Device.objects.filter(ended_at__lt=now - keep).exclude(state=State.ACTIVE)
    return delete_in_chunks(ended.order_by("ended_at"))


# Announcements of ends: messages to the users' servers that pushed to a device, before their next push. XEP-0357 has no
# such message, so its servers get the error at their next push. So does a server that pushes in the name of an account,
# because accounts are not stored.


class Ended(NamedTuple):
    """A disabled route whose end is awaited, or without ``route_id`` a device that ended.

    If ``announced_from`` is None, the end cannot be announced.
    """

    route_id: int | None
    device_id: UUID | None
    domain: str | None
    announced_from: str | None
    key_name: bytes | None


def find_ended() -> list[Ended]:
    """Return disabled routes and ended devices whose end is not announced yet, at most `BATCH` of each."""
    with transaction.atomic():
        both = (statements.DISABLED_ROUTES, statements.ENDED_DEVICES)
        return [Ended._make(row) for sql in both for row in fetch(sql, {"limit": BATCH})]


def write_ends(ended: list[Ended], *, domain: str) -> list[bytes]:
    """Return the announcements of the ends that can be announced. ``domain`` is our own."""
    written = []
    for each in ended:
        if each.device_id and each.announced_from is not None:
            service = f"{each.announced_from}@{domain}" if each.announced_from else domain
            client = issue(each.device_id, keys_named(each.key_name)).client
            gone = StanzaError("cancel", "gone", disabled_client=client)
            origin = Origin("message", uuid4().hex, each.domain or "", service)
            written.append(answers.write_error(origin, gone, by=domain))
    return written


def note_announced(ended: list[Ended]) -> None:
    """Record that these ends were written to the connection. If one is lost, the next push gets the error."""
    if ended:
        routes = [each.route_id for each in ended if each.route_id]
        Route.objects.filter(pk__in=routes, state=Route.State.DISABLED).update(is_end_awaited=False)
        devices = [each.device_id for each in ended if each.device_id and not each.route_id]
        Device.objects.filter(pk__in=devices).exclude(state=Device.State.ACTIVE).update(announced_from=None)
        ANNOUNCED.inc(sum(each.announced_from is not None for each in ended))
