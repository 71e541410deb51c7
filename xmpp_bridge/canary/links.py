"""The links of the canary: register, push, gateway, unregister, and the milliseconds that each of them takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models import QuerySet

from kit.canary.engine import ANSWER_SECONDS, Canary, ChainBroken, Links, wait_for
from notifications.canary import Push, find_push
from notifications.models import Attempt, Notification
from xmpp_bridge.canary import traces
from xmpp_bridge.canary.diagnosis import Link, diagnose, diagnose_push
from xmpp_bridge.canary.stanzas import REGISTER, UNREGISTER, write_command, write_push
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.component import queued_stanzas, status
from xmpp_bridge.identity import canary_apps, client_keys, device_keys
from xmpp_bridge.models import CanaryRun, CanaryStanza, Device

DEVICE_ID = "canary"


class XmppCanary(Canary[CanaryRun]):
    name = "xmpp_canary"

    def rows(self) -> QuerySet[CanaryRun]:
        return CanaryRun.objects.all()

    def links(self, run: CanaryRun) -> Links:
        traces.make_app()
        yield from walk(Talk(settings.XMPP_COMPONENT_JID), run)

    def remove_traces(self) -> None:
        traces.remove_traces()

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
        queued_stanzas.queue(stanza_id, text)
        found = wait_for(
            lambda: CanaryStanza.objects.get(pk=stanza_id),
            lambda row: row.answered_at is not None,
            seconds=ANSWER_SECONDS,
        )
        if trouble := diagnose(link, found, component=status.read_fault(), has_effect=has_effect()):
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
    traces.note_device(run, device)

    pushes = _pushes_from_now_on(device.pk)
    yield Link.PUSH, talk.push(device.pk, pushes)
    yield Link.GATEWAY, talk.wait_for_gateway(pushes)

    yield Link.UNREGISTER, talk.command(Link.UNREGISTER, UNREGISTER, lambda: talk.find_device() is None)


def _pushes_from_now_on(device: UUID) -> QuerySet[Notification]:
    """Return the pushes to a device that are stored from now on, by conditions that an index serves."""
    newest = Notification.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return Notification.objects.filter(public_key_hash=b"", pk__gt=newest, installation_id=str(device))
