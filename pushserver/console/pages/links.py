"""Links between the pages of related rows. They are made from the columns of a row, without a query."""

from collections.abc import Iterable

from django.urls import reverse

from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.console.notifications.admin import notification_url, request_timeline_url, request_url, timeline_url
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import registration_url
from pushserver.console.toolkit.columns import hex_of
from pushserver.console.toolkit.related import Link, links_from, list_url
from pushserver.console.waku.admin import envelope_url
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.messages import BRIDGE as WAKU
from waku_bridge.messages import MessageType
from waku_bridge.models import InboundEnvelope, OutboundReply


def user_url(key_hash_hex: str) -> str:
    """Return the URL of the page of a user."""
    return reverse("user", args=[key_hash_hex])


@links_from.register(Registration)
def from_registration(registration: Registration) -> Iterable[Link]:
    key_hash = hex_of(registration.public_key_hash)
    recipient = f"{key_hash} {registration.installation_id}"
    yield Link("User", user_url(key_hash))
    yield Link("Notifications", list_url("notifications_notification", q=recipient))
    yield Link("Registrations of this key", list_url("registrations_registration", q=key_hash))
    yield Link("Query topic", list_url("registrations_topickey", q=key_hash))
    if registration.pseudonym:
        yield Link("Registration events", list_url("registrations_registrationevent", q=str(registration.pseudonym)))


@links_from.register(Route)
def from_route(route: Route) -> Iterable[Link]:
    yield Link("Notifications", list_url("notifications_notification", route__id__exact=str(route.pk)))


@links_from.register(Grant)
def from_grant(grant: Grant) -> Iterable[Link]:
    yield Link("Registration", registration_url(grant.registration_id))


@links_from.register(RegistrationEvent)
def from_event(event: RegistrationEvent) -> Iterable[Link]:
    yield Link("All of this installation", list_url("registrations_registrationevent", q=str(event.pseudonym)))


@links_from.register(TopicKey)
def from_topic_key(topic_key: TopicKey) -> Iterable[Link]:
    yield Link("Registrations", list_url("registrations_registration", q=topic_key.name))


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


@links_from.register(Attempt)
def from_attempt(attempt: Attempt) -> Iterable[Link]:
    yield Link("Timeline", timeline_url(attempt.notification_id))
    yield Link("Notification", notification_url(attempt.notification_id))


@links_from.register(InboundEnvelope)
def from_envelope(envelope: InboundEnvelope) -> Iterable[Link]:
    yield Link("Reply", list_url("waku_bridge_outboundreply", q=hex_of(envelope.hash)))
    if envelope.message_type == MessageType.REQUEST:
        yield Link("Request", list_url("notifications_notificationrequest", q=hex_of(envelope.message_id)))


@links_from.register(OutboundReply)
def from_reply(reply: OutboundReply) -> Iterable[Link]:
    yield Link("Envelope", envelope_url(reply.envelope_hash))
