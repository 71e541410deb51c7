"""The table of the canaries' runs. It belongs to the app `pushserver`, like the other tables of the console."""

from collections.abc import Mapping
from typing import ClassVar

from django.db import models

from kit.db.base import table


class WakuLink(models.TextChoices):
    """Links in the order of the chain. A question ends when a node takes it, an answer when a store has it."""

    REGISTER = "register", "a node takes the registration"
    REGISTER_ANSWER = "register_answer", "its answer is back"
    QUERY = "query", "a node takes the query"
    QUERY_ANSWER = "query_answer", "its answer is back"
    REQUEST = "request", "a node takes the request"
    GATEWAY = "gateway", "the gateway takes the push"  # its time is part of the time until the answer
    REQUEST_ANSWER = "request_answer", "the answer to the request is back"
    UNREGISTER = "unregister", "a node takes the unregistering"
    UNREGISTER_ANSWER = "unregister_answer", "its answer is back"


class WakuCause(models.TextChoices):
    NODE = "node", "no node takes messages"
    BRIDGE = "bridge", "the bridge does not read what a node took"
    WORKER = "worker", "the workers do not process what the bridge read"
    GATEWAY = "gateway", "the gateway does not take the push"
    REPLY = "reply", "the answer does not come back"


class XmppLink(models.TextChoices):
    """Links in the order of the chain. The time of a stanza lasts until its answer is back."""

    REGISTER = "register", "a device is registered"
    PUSH = "push", "a push is accepted"
    GATEWAY = "gateway", "the gateway takes the push"
    UNREGISTER = "unregister", "the device is unregistered"


class XmppCause(models.TextChoices):
    COMPONENT = "component", "the component does not take what it is sent"
    XMPP_SERVER = "xmpp_server", "the XMPP server does not route to the component"
    WORKER = "worker", "the workers do not process what the component stored"
    GATEWAY = "gateway", "the gateway does not take the push"
    REPLY = "reply", "the answer does not come back"


class CanaryRun(models.Model):
    """One round trip of a canary: the time of each link that held, the broken link, and its cause.

    Its rows in other tables are removed: ``pseudonym`` and ``device`` name them until then, and reports leave them out.
    """

    class Network(models.TextChoices):
        WAKU = "waku", "Waku"
        XMPP = "xmpp", "XMPP"

    class State(models.TextChoices):
        RUNNING = "running"
        PASSED = "passed"
        BROKEN = "broken"  # at `broken_link`, because of `cause`
        INTERRUPTED = "interrupted"  # the process that ran it is gone

    LINKS: ClassVar[Mapping[str, type[models.TextChoices]]] = {Network.WAKU: WakuLink, Network.XMPP: XmppLink}
    CAUSES: ClassVar[Mapping[str, type[models.TextChoices]]] = {Network.WAKU: WakuCause, Network.XMPP: XmppCause}

    network = models.TextField(choices=Network.choices)
    state = models.TextField(choices=State.choices, default=State.RUNNING)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    broken_link = models.TextField(blank=True)
    cause = models.TextField(blank=True, choices={cause: cause for cause in (*WakuCause.values, *XmppCause.values)})
    detail = models.TextField(blank=True)  # more about the cause, in our own words
    times = models.JSONField(default=dict)  # milliseconds by link
    work_ms = models.PositiveIntegerField(null=True)  # CPU time of the canary itself
    is_dry_run = models.BooleanField()  # the gateway drops the push: nothing is known of Apple and Google
    pseudonym = models.UUIDField(null=True)  # of its registration, in events and reports
    device = models.UUIDField(null=True)  # that it registered through XMPP

    class Meta:
        app_label = "pushserver"
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["network"], condition=models.Q(state="running"), name="one_run_per_canary"),
        ]

    def __str__(self) -> str:
        return f"{self.get_network_display()} canary {self.pk} ({self.state})"

    def timings(self) -> dict[str, int | None]:
        """Return the milliseconds by link, in the order of the chain."""
        return {link: self.times.get(link) for link in self.LINKS[self.network].values}

    def total_ms(self) -> int:
        """Return the milliseconds of the round trip, up to the broken link if there is one."""
        is_within = {WakuLink.GATEWAY} if self.network == self.Network.WAKU else set()
        return sum(ms for link, ms in self.times.items() if link not in is_within)

    def cause_in_words(self) -> str:
        return str(self.CAUSES[self.network](self.cause).label) if self.cause else ""

    @classmethod
    def link_seconds(cls, network: str) -> str:
        """Return a query for the seconds of each link in the last round trip. It has names of ours only."""
        return f"""
            SELECT link, milliseconds::float8 / 1000 FROM (
                SELECT times FROM {table(cls)} WHERE network = '{network}' AND state IN ('passed', 'broken')
                ORDER BY id DESC LIMIT 1
            ) AS run CROSS JOIN LATERAL jsonb_each_text(times) AS links (link, milliseconds)
        """
