"""Use cases that register and unregister devices, for the ad-hoc commands of apps and for operators over HTTP.

An account registers its own devices: its server stamps the command with its address. Of the account, only a keyed hash
and the domain are stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import LiteralString, NamedTuple
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from kit.db.estimates import stored
from kit.db.statements import fetch
from kit.metrics.batches import count
from notifications.acceptance import acceptance
from registrations.messages import DeviceAddress, TokenType
from registrations.models import RegistrationEvent, Route
from registrations.quotas import parameters_of
from registrations.statements import DRAWN, MAY_GO
from xmpp_bridge.codec import answers
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.codec.jids import NOBODY, Jid, parse_jid
from xmpp_bridge.devices.commands import ACTIONS, Action, CommandRefused, form_fields, read_submission
from xmpp_bridge.identity import canary_apps, client_keys, device_keys, owner_keys, session_ids
from xmpp_bridge.messages import BRIDGE, Command
from xmpp_bridge.metrics import COMMANDS
from xmpp_bridge.models import App, Device
from xmpp_bridge.rules.decisions import PHASES, Domains, Refusal, choose_app
from xmpp_bridge.rules.limits import Limits

STORED_DEVICES: LiteralString = stored("xmpp_bridge_device")
_DRAW: LiteralString = f"""
    SELECT device.id FROM ({DRAWN}) AS drawn
    JOIN xmpp_bridge_device AS device ON device.route_id = drawn.id
    JOIN registrations_route AS route ON route.id = drawn.id
    WHERE device.state = '{Device.State.ACTIVE}' AND {MAY_GO}
    ORDER BY place DESC NULLS FIRST LIMIT %(number)s FOR UPDATE OF device, route SKIP LOCKED
"""
UNKNOWN_SESSION = "sessionid: not a session of this client and command"
APP_NOT_NAMED = "app: required, because there are several"
Kind = RegistrationEvent.Kind
State = Device.State


class Done(NamedTuple):
    """The result of a command. ``values`` holds secrets of the device, for its app alone."""

    values: Mapping[str, str]
    outcome: str
    device_id: UUID


@dataclass(frozen=True, slots=True)
class Asked:
    """A submitted form of an account. ``slug`` is the app for a form that names none."""

    action: Action
    account: Jid = field(repr=False)
    fields: Mapping[str, str] = field(repr=False)
    slug: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions of a command.

    ``domain`` is our own, ``max_devices`` the limit of an account's devices in an app. ``take_route`` charges a new
    device to the limits, and returns whether it is within them.
    """

    domain: str
    max_devices: int
    take_route: Callable[[], bool]


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

    def refuse(self, command: Command, refusal: Refusal) -> bytes:
        """Return the answer to a command that is not carried out."""
        refused = CommandRefused(refusal)
        count(COMMANDS, [(refused.outcome,)])
        return answers.write_error(command.origin, refused.error, by=self._domain)

    def _answer(self, command: Command, *, now: datetime) -> tuple[bytes, str]:
        origin, node = command.origin, command.node
        action = ACTIONS.get(node)
        if action is None:
            raise CommandRefused(Refusal.NOT_FOUND)
        account = self._authorise(command, now=now)
        sessions = session_ids(node, origin.sender)
        session = command.session or sessions[0]
        if session not in sessions:
            raise CommandRefused(Refusal.BAD_REQUEST, UNKNOWN_SESSION)
        if command.action == "cancel":
            return answers.write_command_canceled(origin, node, session), "canceled"
        if command.action not in PHASES:
            raise CommandRefused(Refusal.BAD_REQUEST)
        if command.fields is None:
            return self._form(command, action, session), "form"
        service = parse_jid(command.origin.service)
        asked = Asked(action, account, command.fields, service.local if service else "")
        with transaction.atomic():
            done = carry_out(asked, self._terms_for(account, now), now=now)
        return answers.write_command_result(origin, node, session, done.values), done.outcome

    def _authorise(self, command: Command, *, now: datetime) -> Jid:
        """Return the sender of a command: a client of an account, in a domain that is served.

        Raises CommandRefused.
        """
        sender = parse_jid(command.origin.sender) or NOBODY
        if not (sender.local and sender.resource and self._domains.serve(sender.domain)):
            raise CommandRefused(Refusal.FORBIDDEN)
        if not self._limits.take_command(owner_keys("", sender.bare)[0], sender.domain, now.timestamp()):
            raise CommandRefused(Refusal.BUSY)
        return sender

    def _form(self, command: Command, action: Action, session: str) -> bytes:
        slugs = [app.slug for app in _apps_for(action)]
        return answers.write_command_form(
            command.origin,
            command.node,
            session,
            title=action.name,
            instructions="The server of your account can read the values of this form.",
            fields=form_fields(action, slugs),
        )

    def _terms_for(self, account: Jid, now: datetime) -> Terms:
        def take_route() -> bool:
            return self._limits.take_route(account.domain, now.timestamp())

        return Terms(self._domain, self._limits.rates.devices_per_user, take_route)


def carry_out(asked: Asked, terms: Terms, *, now: datetime) -> Done:
    """Register or unregister a device, inside a transaction of the caller.

    Raises CommandRefused.
    """
    action, account = asked.action, asked.account
    submission = read_submission(action, asked.fields)
    app = _choose_app(action, submission.app or asked.slug, is_canary=account.domain == terms.domain)
    keys, owners = device_keys(app.slug, account.bare, submission.device_id), owner_keys(app.slug, account.bare)
    device = Device.objects.select_for_update().filter(device_key__in=keys, state=State.ACTIVE).first()
    if submission.address is None:
        return _unregister(action, device, now=now)
    outcome = "refreshed" if device else "registered"
    device = device or _create(app, account, owners, terms, now=now)
    device.device_key, device.owner_key, device.key_name = keys[0], owners[0], client_keys()[0].name
    _register(device, action, submission.address, now=now)
    credentials = issue(device.id, client_keys()[0])
    return Done({"jid": terms.domain, **asdict(credentials)}, outcome, device.id)


def _create(app: App, account: Jid, owners: Sequence[bytes], terms: Terms, *, now: datetime) -> Device:
    owned = Device.objects.filter(owner_key__in=owners, state=State.ACTIVE)
    is_below_limit = owned.count() < terms.max_devices or _end_longest_dead(owned, now=now)
    if not (is_below_limit and terms.take_route() and _find_place(now=now)):
        raise CommandRefused(Refusal.BUSY)
    return Device(app=app, domain=account.domain)


def _end_longest_dead(owned: QuerySet[Device], *, now: datetime) -> bool:
    """End the device whose route was disabled first, and return whether there was one."""
    dead = owned.filter(route__state=Route.State.DISABLED).order_by("route__disabled_at")
    device = dead.select_for_update(of=["self"], skip_locked=True).first()
    if device:
        end(device, State.EXPIRED, now=now)
    return device is not None


def _find_place(*, now: datetime) -> bool:
    """Remove the row of a device for a new one if the table is full, and return whether there is a place.

    The device that ended first goes, or one that a new one may replace.
    """
    [(devices,)] = fetch(STORED_DEVICES)
    if devices < settings.XMPP_MAX_DEVICES:
        return True
    ended = Device.objects.exclude(state=State.ACTIVE).filter(announced_from=None).order_by("ended_at")
    if device := ended.select_for_update(skip_locked=True).first():
        device.delete()
        return True
    drawn = [device_id for (device_id,) in fetch(_DRAW, parameters_of(BRIDGE, 1, now=now))]
    for device in Device.objects.filter(pk__in=drawn).select_related("route"):
        end(device, State.EXPIRED, now=now)
        device.delete()
    return bool(drawn)


def _apps_for(action: Action, *, is_canary: bool = False) -> list[App]:
    """Return the apps that a command may name. Only the canary may name its own app."""
    apps = App.objects.filter(is_retired=False).order_by("slug")
    apps = apps.filter(slug__in=canary_apps()) if is_canary else apps.exclude(slug__in=canary_apps())
    return list(apps.exclude(app_topic="") if action.token_type == TokenType.APN else apps.filter(takes_firebase=True))


def _choose_app(action: Action, named: str, *, is_canary: bool) -> App:
    """Return the app of this slug, or without a slug the only app there is.

    Raises CommandRefused.
    """
    apps = {app.slug: app for app in _apps_for(action, is_canary=is_canary)}
    slug = choose_app(named, apps)
    if isinstance(slug, Refusal):
        raise CommandRefused(slug, APP_NOT_NAMED if slug is Refusal.BAD_REQUEST else "")
    return apps[slug]


def _register(device: Device, action: Action, address: DeviceAddress, *, now: datetime) -> None:
    """Set the address of a device's route, which also enables a disabled route."""
    route = device.route or Route(generation=0, created_at=now)
    app_topic = device.app.app_topic if action.token_type == TokenType.APN else ""
    kind = _what_changed(route, action, app_topic, address)
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


def _what_changed(route: Route, action: Action, app_topic: str, address: DeviceAddress) -> Kind:
    """Return the kind of event that a registration is for a route. Call it before the route gets the new address."""
    if route.pseudonym is None:  # the route is new, or older than the history
        return Kind.REGISTERED
    is_same = route.is_at(action.token_type, app_topic, address.encode())
    return Kind.REFRESHED if is_same else Kind.TOKEN_CHANGED


def _record(route: Route, kind: Kind, *, now: datetime) -> None:
    if route.pseudonym:
        RegistrationEvent.about(route, kind, pseudonym=route.pseudonym, at=now).save()


def _unregister(action: Action, device: Device | None, *, now: datetime) -> Done:
    if device is None or (device.route and device.route.token_type != action.token_type):
        raise CommandRefused(Refusal.NOT_FOUND)
    end(device, State.UNREGISTERED, now=now)
    return Done({}, "unregistered", device.id)


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
