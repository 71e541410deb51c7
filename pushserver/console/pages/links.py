"""What the page of a row says of others: links, and whether a user can be reached, or since when, by whom and why not.

Links are made from the columns of a row, without a query.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html

from kit.db.clock import HOUR
from notifications.messages import AppKey, app_key
from notifications.models import Attempt, Channel, Halt, Notification, NotificationRequest
from notifications.queues.breakers import BY_OPERATOR, FAILING
from pushserver.console.notifications.admin import notification_url, request_timeline_url, request_url, timeline_url
from pushserver.console.notifications.channels import halted_apps
from pushserver.console.pages import labels
from pushserver.console.pages.story import A_MOMENT
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import registration_url
from pushserver.console.toolkit.columns import hex_of
from pushserver.console.toolkit.labels import Family
from pushserver.console.toolkit.related import (
    FirstLine,
    Link,
    acted_on_through,
    changes_of,
    first_line_of,
    links_from,
    list_url,
    reason_of,
)
from pushserver.console.toolkit.times import coarse, relative
from pushserver.console.waku.admin import envelope_url
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.messages import BRIDGE as WAKU
from waku_bridge.messages import MessageType
from waku_bridge.models import InboundEnvelope, OutboundReply

NOBODY = FirstLine(labels.UNREACHABLE, Family.CAUTION)
Halted = Mapping[AppKey, Halt]


# Links ----------------------------------------------------------------------------------------------------------------


def user_url(key_hash_hex: str) -> str:
    """Return the URL of the page of a user."""
    return reverse("user", args=[key_hash_hex])


EVENTS = "registrations_registrationevent"
LINKS: dict[type[Model], Callable[[Any], Iterable[Link]]] = {
    Route: lambda row: [Link("Notifications", list_url("notifications_notification", route__id__exact=str(row.pk)))],
    Grant: lambda row: [Link("Registration", registration_url(row.registration_id))],
    RegistrationEvent: lambda row: [Link("All of this installation", list_url(EVENTS, q=str(row.pseudonym)))],
    TopicKey: lambda row: [Link("Registrations", list_url("registrations_registration", q=row.name))],
    Attempt: lambda row: [
        Link("Timeline", timeline_url(row.notification_id)),
        Link("Notification", notification_url(row.notification_id)),
    ],
    OutboundReply: lambda row: [Link("Envelope", envelope_url(row.envelope_hash))],
}
for _model, _links in LINKS.items():
    links_from.register(_model, _links)


@links_from.register(Registration)
def from_registration(registration: Registration) -> Iterable[Link]:
    key_hash = hex_of(registration.public_key_hash)
    recipient = f"{key_hash} {registration.installation_id}"
    yield Link("User", user_url(key_hash))
    yield Link("Notifications", list_url("notifications_notification", q=recipient))
    yield Link("Registrations of this key", list_url("registrations_registration", q=key_hash))
    yield Link("Query topic", list_url("registrations_topickey", q=key_hash))
    if registration.pseudonym:
        yield Link("Registration events", list_url(EVENTS, q=str(registration.pseudonym)))


@links_from.register(NotificationRequest)
def from_request(request: NotificationRequest) -> Iterable[Link]:
    yield Link("Timeline", request_timeline_url(request.pk))
    yield Link("Notifications", list_url("notifications_notification", request__id__exact=str(request.pk)))
    if request.bridge == WAKU:
        yield Link("Envelope", envelope_url(request.source_key))
        yield Link("Reply", list_url("waku_bridge_outboundreply", q=hex_of(request.source_key)))


@links_from.register(Notification)
def from_notification(notification: Notification) -> Iterable[Link]:
    recipient = f"{hex_of(notification.public_key_hash)} {notification.installation_id}"
    yield Link("Timeline", timeline_url(notification.pk))
    yield from links_to_recipient(notification)
    yield Link("Request", request_url(notification.request_id))
    yield Link("Attempts", list_url("notifications_attempt", notification__id__exact=str(notification.pk)))
    if notification.public_key_hash:
        yield Link("Registration", list_url("registrations_registration", q=recipient))


def links_to_recipient(notification: Notification) -> Iterable[Link]:
    """Yield the link to the recipient of a notification: to the user, or to the row of a bridge that owns the route."""
    if notification.public_key_hash:
        yield Link("User", user_url(hex_of(notification.public_key_hash)))
    for owner in filter(None, (part.owner_of(notification) for part in parts())):
        opts = owner._meta  # noqa: SLF001 - documented
        yield Link(str(opts.verbose_name), reverse(f"admin:{opts.app_label}_{opts.model_name}_change", args=[owner.pk]))


@links_from.register(InboundEnvelope)
def from_envelope(envelope: InboundEnvelope) -> Iterable[Link]:
    yield Link("Reply", list_url("waku_bridge_outboundreply", q=hex_of(envelope.hash)))
    if envelope.message_type == MessageType.REQUEST:
        yield Link("Request", list_url("notifications_notificationrequest", q=hex_of(envelope.message_id)))


# Whether a user can be reached ----------------------------------------------------------------------------------------


def reach_of(registrations: Sequence[Registration]) -> list[FirstLine]:
    """Return whether each of these registrations can be reached, with two queries for all of them."""
    entries = _disablings(Registration, {str(row.pk): row.route for row in registrations})
    halted = halted_apps()
    return [_of_registration(row, entries.get(str(row.pk)), halted) for row in registrations]


@first_line_of.register(Registration)
def reach_of_registration(registration: Registration) -> FirstLine:
    return reach_of([registration])[0]


def reach_of_owner(owner: Any) -> FirstLine:
    """Return whether a row that owns a route, but is no registration, can be reached."""
    if owner.route is None:
        return FirstLine(format_html("Cannot be reached: {} {}.", owner.state, _ago(owner.ended_at)), Family.QUIET)
    entries = _disablings(type(owner), {str(owner.pk): owner.route})
    return _of_route(owner.route, entries.get(str(owner.pk)), halted_apps())


def owners() -> list[type[Model]]:
    """Return the models other than registrations whose rows own a route."""
    return [model for part in parts() for model in part.owners]


for _model in owners():
    first_line_of.register(_model, reach_of_owner)


@acted_on_through.register(Route)
def owners_of_route(route: Route) -> dict[type[Model], list[str]]:
    """Return the ids of the registrations and other owners of a route, by model."""
    models: list[type[Model]] = [Registration, *owners()]
    return {
        model: [str(pk) for pk in model._default_manager.filter(route=route).values_list("pk", flat=True)]  # noqa: SLF001 - documented
        for model in models
    }


@first_line_of.register(Route)
def reach_of_route(route: Route) -> FirstLine:
    found = [_disablings(model, dict.fromkeys(ids, route)) for model, ids in owners_of_route(route).items()]
    entries = [entry for own in found for entry in own.values()]
    return _of_route(route, entries[0] if entries else None, halted_apps())


def _disablings(model: type[Model], routes: Mapping[str, Route | None]) -> dict[str, LogEntry]:
    """Return the log entries by which operators disabled the routes of these rows: those of the same moment."""
    at = {
        name: route.disabled_at
        for name, route in routes.items()
        if route and route.disabled_at and route.disabled_reason == BY_OPERATOR
    }
    if not at:
        return {}
    entries = changes_of(model, at, since=min(at.values()) - A_MOMENT)
    near = (entry for entry in entries if abs(entry.action_time - at[str(entry.object_id)]) < A_MOMENT)
    return {str(entry.object_id): entry for entry in near}


def _of_registration(registration: Registration, entry: LogEntry | None, halted: Halted) -> FirstLine:
    if registration.route is None:
        return FirstLine(
            format_html("Cannot be reached: it unregistered {}.", _ago(registration.updated_at)), Family.QUIET
        )
    if registration.route.state == Route.State.ACTIVE and not registration.enabled:
        return FirstLine(labels.SWITCHED_OFF, Family.QUIET)
    return _of_route(registration.route, entry, halted)


def _of_route(route: Route, entry: LogEntry | None, halted: Halted) -> FirstLine:
    if route.state == Route.State.DISABLED:
        return FirstLine(format_html("Cannot be reached: {}", _why_disabled(route, entry)), Family.CAUTION)
    app = app_key(route.token_type, route.app_topic)
    if app in halted:
        return FirstLine(_why_waiting(app, halted[app]), Family.CAUTION)
    if route.failing_since:
        return FirstLine(
            format_html("Pushes fail: the first failure was {}.", relative(route.failing_since)), Family.CAUTION
        )
    if route.is_proven and route.last_success_at:
        known = format_html("Can be reached: something was delivered {}.", coarse(route.last_success_at, HOUR))
        return FirstLine(known, Family.GOOD)
    return FirstLine(labels.UNPROVEN, Family.WAITING)


def _why_disabled(route: Route, entry: LogEntry | None) -> str:
    ago = _ago(route.disabled_at)
    if route.disabled_reason == BY_OPERATOR:
        who = entry.user.get_username() if entry else "an operator"
        return format_html("disabled by {} {}{}", who, ago, f": {reason_of(entry)}" if entry else ".")
    if route.disabled_reason == FAILING:
        return format_html("disabled {}, because every push had failed for too long.", ago)
    return format_html("disabled {}, because its token is dead ({}).", ago, route.disabled_reason)


def _why_waiting(app: AppKey, halt: Halt) -> str:
    by = f" by {halt.by}" if halt.by else ""
    channel, ago = Channel(**app._asdict()), relative(halt.since)
    return format_html("Pushes wait: app {} {}{} {}: {}", channel, halt.kind, by, ago, halt.reason)


def _ago(at: datetime | None) -> str:
    return relative(at) if at else "some time ago"
