"""The canary of XMPP: every minute it registers a device of its own app, pushes to it, and unregisters it.

The connected component sends the canary's stanzas to itself. The XMPP server routes each stanza back to the component,
like the stanzas of other servers. So the canary needs no account, and shows that the XMPP server routes to us.

See docs/canary.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.console.canary.engine import ANSWER_SECONDS, Canary, ChainBroken, Diagnosis, Links, wait_for
from pushserver.console.canary.push import Push, find_push, push_trouble
from pushserver.console.notifications.removal import remove_requests
from pushserver.console.xmpp.models import CanaryRun
from registrations.models import RegistrationEvent, Route
from xmpp_bridge.codec.answers import write_values
from xmpp_bridge.codec.elements import FORM_TYPE, NS, write
from xmpp_bridge.component import read_fault
from xmpp_bridge.identity import canary_apps, client_keys, device_keys, issue
from xmpp_bridge.models import App, CanaryStanza, Device

Link: TypeAlias = CanaryRun.Link
Cause: TypeAlias = CanaryRun.Cause
DEVICE_ID = "canary"
REGISTER, UNREGISTER = "register-push-apns", "unregister-push-apns"
# The text of the app, which the console shows while a run is under way.
TEXT = "Canary"


# The chain, link by link ----------------------------------------------------------------------------------------------
class XmppCanary(Canary[CanaryRun]):
    name = "xmpp_canary"

    def rows(self) -> QuerySet[CanaryRun]:
        return CanaryRun.objects.all()

    def links(self, run: CanaryRun) -> Links:
        make_app()
        yield from walk(Talk(settings.XMPP_COMPONENT_JID), run)

    def remove_traces(self) -> None:
        remove_traces()

    def longest(self) -> timedelta:
        return timedelta(seconds=len(Link) * ANSWER_SECONDS + 60)

    def is_expected(self) -> bool:
        return bool(settings.CANARY_PERIOD_SECONDS and settings.XMPP_COMPONENT_JID)


@dataclass(slots=True)
class Talk:
    """Sender of the canary's stanzas, under an account at the component's own ``domain``.

    Only the component can send from that domain. Each run has an account of its own, because the canary registers more
    often than one account may.
    """

    domain: str
    name: str = field(default_factory=lambda: f"canary-{uuid4().hex}")

    @property
    def account(self) -> str:
        return f"{self.name}@{self.domain}"

    def command(self, link: Link, node: str, has_effect: Callable[[], bool]) -> int:
        """Send a command of the app, see `send`."""
        fields = {"device-id": DEVICE_ID, "app": canary_apps()[0]}
        if node == REGISTER:
            fields["token"] = settings.CANARY_DRY_RUN_TOKENS[0]
        stanza_id = uuid4().hex
        text = write_command(stanza_id, node, fields, account=self.account, service=self.domain)
        return self.send(link, stanza_id, text, has_effect)

    def push(self, device: UUID, pushes: QuerySet[Notification]) -> int:
        """Send a push to the device, see `send`."""
        given_out, stanza_id = issue(device, client_keys()[0]), uuid4().hex
        text = write_push(stanza_id, given_out.node, given_out.secret, server=self.domain, service=self.domain)
        return self.send(Link.PUSH, stanza_id, text, pushes.exists)

    def send(self, link: Link, stanza_id: str, text: str, has_effect: Callable[[], bool]) -> int:
        """Have the component send a stanza to itself, and return how many milliseconds the answer took.

        Raises ChainBroken.
        """
        CanaryStanza.objects.create(pk=stanza_id, text=text, queued_at=Now())
        found = wait_for(
            lambda: CanaryStanza.objects.get(pk=stanza_id),
            lambda row: row.answered_at is not None,
            seconds=ANSWER_SECONDS,
        )
        if trouble := diagnose(link, found, component=read_fault(), has_effect=has_effect()):
            raise ChainBroken(trouble)
        assert found.sent_at is not None  # noqa: S101 - it was answered
        assert found.answered_at is not None  # noqa: S101 - as above
        return round((found.answered_at - found.sent_at).total_seconds() * 1000)

    def find_device(self) -> Device | None:
        keys = device_keys(canary_apps()[0], self.account, DEVICE_ID)
        return Device.objects.select_related("route").filter(device_key__in=keys, state=Device.State.ACTIVE).first()

    def wait_for_gateway(self, pushes: QuerySet[Notification]) -> int:
        """Return how many milliseconds the gateway took, once it has answered.

        Raises ChainBroken.
        """

        def find() -> Push:
            return find_push(Attempt.objects.filter(notification__in=list(pushes.all())))

        push = wait_for(find, lambda found: found.outcome, seconds=ANSWER_SECONDS)
        if trouble := diagnose_push(push):
            raise ChainBroken(trouble)
        return push.latency_ms or 0


def walk(talk: Talk, run: CanaryRun) -> Links:
    """Yield each link of the chain once it holds, with the milliseconds that it took.

    Raises ChainBroken.
    """
    yield Link.REGISTER, talk.command(Link.REGISTER, REGISTER, lambda: talk.find_device() is not None)
    device = talk.find_device()
    assert device is not None  # noqa: S101 - the link before found it
    note_device(run, device)

    pushes = _pushes_from_now_on(device.pk)
    yield Link.PUSH, talk.push(device.pk, pushes)
    yield Link.GATEWAY, talk.wait_for_gateway(pushes)

    yield Link.UNREGISTER, talk.command(Link.UNREGISTER, UNREGISTER, lambda: talk.find_device() is None)


def _pushes_from_now_on(device: UUID) -> QuerySet[Notification]:
    """Return the pushes to a device that are stored from now on, by conditions that an index serves."""
    newest = Notification.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return Notification.objects.filter(public_key_hash=b"", pk__gt=newest, installation_id=str(device))


# The cause when a link breaks -----------------------------------------------------------------------------------------
# The facts are judged in the order of the chain, so that the diagnosis names the first fault and not its consequences.
def diagnose(link: Link, stanza: CanaryStanza, *, component: str, has_effect: bool) -> Diagnosis | None:
    """Return why a stanza did not have its effect, or None if it had.

    ``component`` names the fault of the component's connection, and is empty when the component is connected.
    ``has_effect`` says whether the tables show that the component carried the stanza out.
    """
    if not stanza.sent_at:
        return Diagnosis(link, Cause.COMPONENT, component or "it is connected, but does not send queued stanzas")
    if stanza.error:
        cause = Cause.COMPONENT if stanza.is_own_error else Cause.XMPP_SERVER
        return Diagnosis(link, cause, f"refused: {stanza.error}")
    if not stanza.answered_at:
        return _unanswered(link, component, has_effect=has_effect)
    return None if has_effect else Diagnosis(link, Cause.COMPONENT, "it answers, but has stored nothing")


def _unanswered(link: Link, component: str, *, has_effect: bool) -> Diagnosis:
    if has_effect:
        return Diagnosis(link, Cause.REPLY, "the component has carried out the stanza")
    if component:
        return Diagnosis(link, Cause.COMPONENT, component)
    return Diagnosis(link, Cause.XMPP_SERVER, "it took the stanza, but did not route it back")


def diagnose_push(push: Push) -> Diagnosis | None:
    """Return why the gateway did not take the push, or None if it did."""
    if trouble := push_trouble(push):
        return Diagnosis(Link.GATEWAY, Cause.GATEWAY if trouble.is_of_gateway else Cause.WORKER, trouble.detail)
    return None


# Its stanzas: commands of an app, and a push of its user's server -----------------------------------------------------
def write_command(stanza_id: str, node: str, fields: Mapping[str, str], *, account: str, service: str) -> str:
    """Return an ad-hoc command of the app of an account, with its form."""
    command = write("command", write_values(fields, "submit"), xmlns=NS.COMMANDS, node=node)
    return write("iq", command, type="set", id=stanza_id, from_=f"{account}/canary", to=service)


def write_push(stanza_id: str, node: str, secret: str, *, server: str, service: str) -> str:
    """Return a push of XEP-0357, as a user's server sends it for a message whose text it withholds."""
    summary = write_values({FORM_TYPE: NS.PUSH_SUMMARY, "message-count": "1"}, "submit")
    item = write("item", write("notification", summary, xmlns=NS.PUSH))
    options = write_values({FORM_TYPE: NS.PUBLISH_OPTIONS, "secret": secret}, "submit")
    pubsub = write("pubsub", write("publish", item, node=node), write("publish-options", options), xmlns=NS.PUBSUB)
    return write("iq", pubsub, type="set", id=stanza_id, from_=server, to=service)


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
    runs = CanaryRun.objects.filter(pseudonym__isnull=False)
    pseudonyms = {*routes.values_list("pseudonym", flat=True), *runs.values_list("pseudonym", flat=True)}
    RegistrationEvent.objects.filter(pseudonym__in=[each for each in pseudonyms if each]).delete()
    remove_requests(set(_requests_for(devices).values_list("pk", flat=True)))
    route_ids = list(routes.values_list("pk", flat=True))
    Device.objects.filter(pk__in=[device.pk for device in devices]).delete()
    Route.objects.filter(pk__in=route_ids).delete()
    App.objects.filter(slug__in=canary_apps()).delete()
    CanaryStanza.objects.all().delete()
    CanaryRun.objects.filter(device__isnull=False).update(device=None, pseudonym=None)


def _requests_for(devices: Sequence[Device]) -> QuerySet[NotificationRequest]:
    """Return the requests to push to these devices.

    They are searched among those received since the first device registered, because only that condition has an index.
    """
    since = min((device.registered_at for device in devices), default=timezone.now())
    names = [str(device.pk) for device in devices]
    return NotificationRequest.objects.filter(received_at__gte=since, notifications__installation_id__in=names)


canary = XmppCanary()
