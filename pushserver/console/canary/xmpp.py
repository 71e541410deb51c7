"""The canary of XMPP: every minute it registers a device of its own app, pushes to it, and unregisters it.

The connected component sends the canary's stanzas to itself. The XMPP server routes each stanza back to the component,
like the stanzas of other servers. So the canary needs no account, and shows that the XMPP server routes to us.

See docs/canary.md.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.console.canary import engine
from pushserver.console.canary.engine import Canary, Chain, Diagnosis, Link, milliseconds, wait_for
from pushserver.console.models import CanaryRun, XmppCause, XmppLink
from pushserver.console.notifications.removal import remove_requests
from registrations.models import RegistrationEvent, Route
from xmpp_bridge.codec.answers import write_values
from xmpp_bridge.codec.elements import FORM_TYPE, NS, write
from xmpp_bridge.component import read_fault
from xmpp_bridge.identity import canary_apps, client_keys, device_keys, issue
from xmpp_bridge.models import App, CanaryStanza, Device

DEVICE_ID = "canary"
REGISTER, UNREGISTER = "register-push-apns", "unregister-push-apns"
NO_COMPONENT = "XMPP_COMPONENT_JID and XMPP_COMPONENT_SECRET are not set: docs/xmpp.md says how."
# The text of the app, which the console shows while a run is under way.
TEXT = "Canary"


# The chain ------------------------------------------------------------------------------------------------------------
def chain(run: CanaryRun) -> Chain:
    """Yield the links. Each run has an account of its own, because the canary registers more often than one may.

    The account is at the component's own domain, from which only the component can send.
    """
    service, account = settings.XMPP_COMPONENT_JID, f"canary-{uuid4().hex}@{settings.XMPP_COMPONENT_JID}"
    fields = {"device-id": DEVICE_ID, "app": canary_apps()[0]}
    make_app()

    asked = write_command(REGISTER, fields | {"token": settings.CANARY_DRY_RUN_TOKENS[0]}, account=account)
    yield exchange(XmppLink.REGISTER, asked, lambda: find_device(account) is not None)
    device = find_device(account)
    assert device is not None  # noqa: S101 - the link before found it
    note_device(run, device)

    pushes, given_out = _pushes_from_now_on(device.pk), issue(device.pk, client_keys()[0])
    yield exchange(XmppLink.PUSH, write_push(given_out.node, given_out.secret, service=service), pushes.exists)
    yield engine.gateway(lambda: Attempt.objects.filter(notification__in=list(pushes.all())))

    asked = write_command(UNREGISTER, fields, account=account)
    yield exchange(XmppLink.UNREGISTER, asked, lambda: find_device(account) is None)


def exchange(link: XmppLink, write_it: Callable[[str], str], has_effect: Callable[[], bool]) -> Link:
    """Return the link of a stanza, written with its id, which the component sends to itself, and of its answer."""
    stanza = CanaryStanza(pk=uuid4().hex)

    def send() -> int:
        stanza.text, stanza.queued_at = write_it(stanza.pk), Now()
        stanza.save(force_insert=True)
        wait_for(stanza.refresh_from_db, lambda _: stanza.answered_at)
        taken = stanza.answered_at - stanza.sent_at if stanza.answered_at and stanza.sent_at else timedelta()
        return milliseconds(taken.total_seconds())

    return Link(link, send, lambda: diagnose(link, stanza, component=read_fault(), has_effect=has_effect()))


def find_device(account: str) -> Device | None:
    keys = device_keys(canary_apps()[0], account, DEVICE_ID)
    return Device.objects.select_related("route").filter(device_key__in=keys, state=Device.State.ACTIVE).first()


def _pushes_from_now_on(device: UUID) -> QuerySet[Notification]:
    """Return the pushes to a device that are stored from now on, by conditions that an index serves."""
    newest = Notification.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return Notification.objects.filter(public_key_hash=b"", pk__gt=newest, installation_id=str(device))


# The cause when a link breaks -----------------------------------------------------------------------------------------
# The facts are judged in the order of the chain, so that the diagnosis names the first fault and not its consequences.
def diagnose(link: XmppLink, stanza: CanaryStanza, *, component: str, has_effect: bool) -> Diagnosis | None:
    """Return why a stanza did not have its effect, or None if it had.

    ``component`` names the fault of the component's connection, and is empty when the component is connected.
    ``has_effect`` says whether the tables show that the component carried the stanza out.
    """
    if not stanza.sent_at:
        return Diagnosis(link, XmppCause.COMPONENT, component or "it is connected, but does not send queued stanzas")
    if stanza.error:
        cause = XmppCause.COMPONENT if stanza.is_own_error else XmppCause.XMPP_SERVER
        return Diagnosis(link, cause, f"refused: {stanza.error}")
    if not stanza.answered_at:
        return _unanswered(link, component, has_effect=has_effect)
    return None if has_effect else Diagnosis(link, XmppCause.COMPONENT, "it answers, but has stored nothing")


def _unanswered(link: XmppLink, component: str, *, has_effect: bool) -> Diagnosis:
    if has_effect:
        return Diagnosis(link, XmppCause.REPLY, "the component has carried out the stanza")
    if component:
        return Diagnosis(link, XmppCause.COMPONENT, component)
    return Diagnosis(link, XmppCause.XMPP_SERVER, "it took the stanza, but did not route it back")


# Its stanzas: commands of an app, and a push of its user's server -----------------------------------------------------
def write_command(node: str, fields: Mapping[str, str], *, account: str) -> Callable[[str], str]:
    """Return an ad-hoc command of the app of an account, with its form."""
    command = write("command", write_values(fields, "submit"), xmlns=NS.COMMANDS, node=node)
    service = account.partition("@")[2]
    return lambda stanza_id: write("iq", command, type="set", id=stanza_id, from_=f"{account}/canary", to=service)


def write_push(node: str, secret: str, *, service: str) -> Callable[[str], str]:
    """Return a push of XEP-0357, as a user's server sends it for a message whose text it withholds."""
    summary = write_values({FORM_TYPE: NS.PUSH_SUMMARY, "message-count": "1"}, "submit")
    item = write("item", write("notification", summary, xmlns=NS.PUSH))
    options = write_values({FORM_TYPE: NS.PUBLISH_OPTIONS, "secret": secret}, "submit")
    pubsub = write("pubsub", write("publish", item, node=node), write("publish-options", options), xmlns=NS.PUBSUB)
    return lambda stanza_id: write("iq", pubsub, type="set", id=stanza_id, from_=service, to=service)


# Its rows in the tables of real traffic: its app, its devices, their pushes and their history -------------------------
# All of them are found again even when a process dies during a run. Nobody else can register in the canary's app, and
# each run keeps the pseudonym under which its history is stored.
def make_app() -> None:
    """Make the app that the canary registers in."""
    own = {"app_topic": settings.CANARY_DRY_RUN_TOPIC, "takes_firebase": False, "text": TEXT}
    App.objects.create(slug=canary_apps()[0], created_at=timezone.now(), **own)


def note_device(run: CanaryRun, device: Device) -> None:
    """Keep the id and the pseudonym of the run's device, because unregistering forgets the pseudonym."""
    run.device = device.pk
    run.pseudonym = device.route.pseudonym if device.route else None
    run.save(update_fields=["device", "pseudonym"])


@transaction.atomic
def remove_traces() -> None:
    """Remove the rows that any run left. While a run is under way, only that run may call this."""
    devices = list(Device.objects.select_for_update().filter(app__slug__in=canary_apps()))
    routes = Route.objects.filter(pk__in=[device.route_id for device in devices if device.route_id])
    runs = canary.rows().filter(pseudonym__isnull=False)
    pseudonyms = {*routes.values_list("pseudonym", flat=True), *runs.values_list("pseudonym", flat=True)}
    RegistrationEvent.objects.filter(pseudonym__in=[each for each in pseudonyms if each]).delete()
    remove_requests(set(_requests_for(devices).values_list("pk", flat=True)))
    route_ids = list(routes.values_list("pk", flat=True))
    Device.objects.filter(pk__in=[device.pk for device in devices]).delete()
    Route.objects.filter(pk__in=route_ids).delete()
    App.objects.filter(slug__in=canary_apps()).delete()
    CanaryStanza.objects.all().delete()
    canary.rows().filter(device__isnull=False).update(device=None, pseudonym=None)


def _requests_for(devices: Sequence[Device]) -> QuerySet[NotificationRequest]:
    """Return the requests to push to these devices.

    They are searched among those received since the first device registered, because only that condition has an index.
    """
    since = min((device.registered_at for device in devices), default=timezone.now())
    names = [str(device.pk) for device in devices]
    return NotificationRequest.objects.filter(received_at__gte=since, notifications__installation_id__in=names)


canary = Canary(
    network=CanaryRun.Network.XMPP,
    name="xmpp_canary",
    chain=chain,
    remove_traces=remove_traces,
    longest=lambda: timedelta(seconds=len(XmppLink) * engine.ANSWER_SECONDS + 60),
    is_expected=lambda: bool(settings.CANARY_PERIOD_SECONDS and settings.XMPP_COMPONENT_JID),
    missing=lambda: "" if settings.XMPP_COMPONENT_JID else NO_COMPONENT,
)
