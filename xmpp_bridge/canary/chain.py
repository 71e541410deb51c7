"""The round trip itself: register, push, unregister, and how long each link takes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models import QuerySet

from notifications import halts
from notifications.models import Attempt, Notification
from xmpp_bridge import errands
from xmpp_bridge.canary.diagnosis import Diagnosis, Link, Push, Stanza, push_trouble, stanza_trouble
from xmpp_bridge.canary.stanzas import REGISTER, UNREGISTER, write_command, write_push
from xmpp_bridge.codec.client_strings import issue
from xmpp_bridge.component import board
from xmpp_bridge.identity import client_keys, device_key
from xmpp_bridge.models import Device

POLL_SECONDS = 0.05
DEVICE_ID = "canary"


class ChainBroken(Exception):  # noqa: N818 - says what happened
    """A link of the chain does not hold, for the reason in ``diagnosis``."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.cause)
        self.diagnosis = diagnosis


@dataclass(slots=True)
class Chain:
    """One run, of an account at the component's own ``domain``: nobody else can send from there. ``timings_ms`` has the
    links that held, also after ChainBroken.
    """

    domain: str
    patience_seconds: float
    timings_ms: dict[Link, int] = field(default_factory=dict)
    # Each run has an account of its own, as one account may not register as often as the canary does.
    account: str = ""

    def __post_init__(self) -> None:
        self.account = self.account or f"canary-{uuid4().hex}@{self.domain}"

    def register(self) -> Device:
        """Register a device, and return it.

        Raises ChainBroken.
        """
        fields = {
            "token": settings.CANARY_DRY_RUN_TOKEN,
            "device-id": DEVICE_ID,
            "app": settings.CANARY_XMPP_APP,
        }
        stanza_id = uuid4().hex
        text = write_command(stanza_id, REGISTER, fields, account=self.account, service=self.domain)
        self._say(Link.REGISTER, stanza_id, text, lambda: self._find_device() is not None)
        device = self._find_device()
        assert device is not None  # noqa: S101 - it was there
        return device

    def push(self, device: UUID) -> None:
        """Push to the device, and wait until gorush has taken it.

        Raises ChainBroken.
        """
        given_out, stanza_id = issue(device, client_keys()), uuid4().hex
        text = write_push(stanza_id, given_out.node, given_out.secret, server=self.domain, service=self.domain)
        pushes = _pushes_from_now_on(device)
        self._say(Link.PUSH, stanza_id, text, pushes.exists)
        push = self._wait_for_gorush(pushes)
        if trouble := push_trouble(push):
            raise ChainBroken(trouble)
        self.timings_ms[Link.GORUSH] = push.latency_ms or 0

    def unregister(self) -> None:
        """Unregister the device.

        Raises ChainBroken.
        """
        fields, stanza_id = {"device-id": DEVICE_ID, "app": settings.CANARY_XMPP_APP}, uuid4().hex
        text = write_command(stanza_id, UNREGISTER, fields, account=self.account, service=self.domain)
        self._say(Link.UNREGISTER, stanza_id, text, lambda: self._find_device() is None)

    def _find_device(self) -> Device | None:
        key = device_key(settings.CANARY_XMPP_APP, self.account, DEVICE_ID)
        return Device.objects.select_related("route").filter(device_key=key, state=Device.State.ACTIVE).first()

    def _say(self, link: Link, stanza_id: str, text: str, has_effect: Callable[[], bool]) -> None:
        """Have the component say a stanza to itself, and wait for the answer."""
        errands.want(stanza_id, text)
        deadline = monotonic() + self.patience_seconds
        while (found := errands.read(stanza_id)).answered_at is None and monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        stanza = Stanza(
            component=board.read().reason,
            is_said=found.said_at is not None,
            is_answered=found.answered_at is not None,
            error=found.error,
            is_own_error=found.is_own_error,
            has_effect=has_effect(),
        )
        if trouble := stanza_trouble(link, stanza):
            raise ChainBroken(trouble)
        if found.said_at and found.answered_at:
            self.timings_ms[link] = round((found.answered_at - found.said_at).total_seconds() * 1000)

    def _wait_for_gorush(self, pushes: QuerySet[Notification]) -> Push:
        deadline = monotonic() + self.patience_seconds
        while True:
            push = _look(pushes)
            if push.outcome or monotonic() > deadline:
                return push
            time.sleep(POLL_SECONDS)


def _pushes_from_now_on(device: UUID) -> QuerySet[Notification]:
    """Return the pushes to a device that come from now on, which an index finds among all others."""
    newest = Notification.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return Notification.objects.filter(public_key_hash=b"", pk__gt=newest, installation_id=str(device))


def _look(pushes: QuerySet[Notification]) -> Push:
    own = Attempt.objects.filter(notification__in=list(pushes)).order_by("-pk")
    found = own.values_list("outcome", "code", "latency_ms").first()
    if found is None:
        return Push(is_drained=halts.drain() is not None)
    return Push(True, found[0] or "", found[1], found[2])
