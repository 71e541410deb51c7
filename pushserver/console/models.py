"""Tables of the console: who opened what, API tokens, counts, incidents and alerts, and the runs of the canaries.

They belong to the app `pushserver`.
"""

import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from django.conf import settings
from django.db import IntegrityError, models, transaction

from kit.db.base import table
from kit.db.fields import BytesField
from kit.display import exact


class AccessRecord(models.Model):
    """Entry of the access log: a staff member opened the page of a row. It is text, because rows may be deleted."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, db_index=False)
    username = models.TextField()
    page = models.TextField()  # the name of the table
    object_id = models.TextField()  # as in the URL: a number or the digits of a hash
    at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name, verbose_name_plural = "entry of the access log", "access log"
        indexes: ClassVar = [models.Index(fields=["page", "object_id"], name="access_record_row")]

    def __str__(self) -> str:
        return f"{self.username}: {self.page} {self.object_id[:16]}"


class FailedLogin(models.Model):
    """Wrong logins as one name from one network: see `console.pages.logins`."""

    COUNTED = timedelta(minutes=15)  # since the last one

    username = models.TextField()  # as it was typed, so it may be a password
    network = models.TextField()  # the address, and for IPv6 the first one of its /64 network
    count = models.PositiveIntegerField()
    last_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["username", "network"], name="one_count_per_name_and_network"),
        ]

    def __str__(self) -> str:
        return f"Failed logins {self.pk}"


class NameTakenError(ValueError):
    """A token of this name exists and was not revoked. The form may have been sent twice."""

    def __init__(self) -> None:
        super().__init__("There is a token of this name already. Revoke it first, or choose another name.")


class ApiToken(models.Model):
    """A token with which a program calls the API. Its text is shown once to the person who makes it. The database has
    only a digest.
    """

    MARK = "psk_"  # by which scanners for leaked secrets recognise a token
    USE_IS_NOTED_EVERY = timedelta(minutes=1)

    class Scope(models.TextChoices):
        STATUS = "status", "reads whether the server is ready, its apps and its canary"
        REGISTRATIONS = "registrations", "reads registrations of a user, without tokens"
        NOTIFICATIONS = "notifications", "reads what became of notifications"
        REPORTS = "reports", "reads the figures of the nightly reports"
        DEVICES = "devices", "registers and removes devices of a bridge: the only one that changes anything"

    name = models.CharField(max_length=100, help_text="Purpose of the token.")
    prefix = models.CharField(max_length=12, editable=False)  # first characters: people recognise it by them
    digest = BytesField(unique=True, editable=False)  # SHA-256, 32 bytes: the token is random and long, so no salt
    scopes = models.JSONField(default=list)  # of `Scope`
    created_by = models.TextField(editable=False)
    created_at = models.DateTimeField(editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="UTC. Empty: never.")
    revoked_at = models.DateTimeField(null=True, editable=False)
    last_used_at = models.DateTimeField(null=True, editable=False)  # to the minute
    text = ""  # of a new token; no column

    class Meta:
        verbose_name = "API token"
        permissions: ClassVar = [("revoke_apitoken", "Can revoke API tokens")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["name"], condition=models.Q(revoked_at=None), name="one_working_api_token_per_name"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def issue(self, *, by: str, now: datetime) -> "ApiToken":
        """Store this new token, and return it with its text, which is stored nowhere.

        Raises ValueError for a scope that does not exist, and NameTakenError.
        """
        if not self.scopes or not {*self.scopes} <= {*self.Scope.values}:
            raise ValueError(f"Scopes are {', '.join(self.Scope.values)}: at least one of them.")
        self.text = self.MARK + secrets.token_urlsafe(32)
        self.prefix, self.digest = self.text[:12], digest_of_token(self.text)  # enough to tell tokens apart
        self.scopes, self.created_by, self.created_at = sorted(self.scopes), by, now
        try:
            with transaction.atomic():
                self.save()
        except IntegrityError as error:
            raise NameTakenError from error
        return self

    @classmethod
    def recognise(cls, text: str, *, now: datetime) -> "ApiToken | None":
        """Return the token with this text, or None if no usable token has it.

        The look-up is by digest. Its time depends on the digest only, and the token cannot be found from its digest.
        """
        is_valid = models.Q(expires_at=None) | models.Q(expires_at__gt=now)
        token = cls.objects.filter(is_valid, revoked_at=None, digest=digest_of_token(text)).first()
        if token and (token.last_used_at is None or now - token.last_used_at > cls.USE_IS_NOTED_EVERY):
            cls.objects.filter(pk=token.pk).update(last_used_at=now)
        return token

    @classmethod
    def revoke(cls, token_ids: Collection[int], *, now: datetime) -> int:
        """Revoke these tokens and return how many of them were not revoked before."""
        return cls.objects.filter(pk__in=token_ids, revoked_at=None).update(revoked_at=now)

    def note_opened(self, page: str, object_ids: Iterable[str], *, at: datetime) -> None:
        """Note in the access log which rows about people a program has read or changed."""
        caller = f"API token {self}"
        rows = [AccessRecord(username=caller, page=page, object_id=object_id, at=at) for object_id in object_ids]
        AccessRecord.objects.bulk_create(rows)


def digest_of_token(text: str) -> bytes:
    """Return the SHA-256 of a token's text, 32 bytes, under which the token is stored."""
    return hashlib.sha256(text.encode()).digest()


class TrafficMinute(models.Model):
    """The figures of one minute, so that the dashboard reads sixty rows and no large table (see `health.traffic`)."""

    begin_at = models.DateTimeField(primary_key=True)
    counted_at = models.DateTimeField()
    request_count = models.PositiveIntegerField()  # accepted
    reply_count = models.PositiveIntegerField()  # sent by a bridge
    # The previous version reads and writes them. They are `Count.Figure.WAITS` now.
    dispatch_p50_ms = models.PositiveIntegerField(null=True)
    dispatch_p95_ms = models.PositiveIntegerField(null=True)
    # Time from the arrival of a request until its bridge had sent the reply.
    reply_p50_ms = models.PositiveIntegerField(null=True)
    reply_p95_ms = models.PositiveIntegerField(null=True)

    def __str__(self) -> str:
        return f"Traffic of {self.begin_at:%Y-%m-%d %H:%M}"


class Count(models.Model):
    """A count of one minute, or the sum of one hour: see `history`.

    There are few rows. Codes are ours, and all apps without a delivery are counted together. The sums of hours are kept
    for five weeks, as the usual figures of each hour of the day.
    """

    class Figure(models.TextChoices):
        REQUESTS = "requests"  # of a minute, by bridge
        REPLIES = "replies"  # of a minute, sent by a bridge
        ATTEMPTS = "attempts"  # of a minute, by app, outcome and code
        # Notifications by their last state. A delivered one counts in the minute of its last attempt.
        ENDS = "ends"
        # First pushes of a minute by the bucket of their wait since the request: `traffic.BUCKET`. Graded pushes are
        # left out, because they may wait until one push wakes the device for several.
        WAITS = "waits"
        WAITING = "waiting"  # notifications at the end of a minute
        HOUR = "hour"  # the sum of a flow: see `health.traffic`
        # Of an hour: the sums of its minutes, and the most that waited.
        HOUR_ENDS = "hour ends"
        HOUR_WAITS = "hour waits"
        HOUR_WAITING = "hour waiting"

    pk = models.CompositePrimaryKey("figure", "begin_at", "subject", "outcome", "code")
    figure = models.TextField(choices=Figure.choices)
    begin_at = models.DateTimeField()
    subject = models.TextField(blank=True, default="")  # a bridge, an app, or a flow
    outcome = models.TextField(blank=True, default="")  # of attempts, or the state of notifications
    code = models.TextField(blank=True, default="")  # of attempts, or the bucket of waits
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return (
            f"{self.count} {self.figure} {self.subject} {self.outcome} {self.code} from {self.begin_at:%Y-%m-%d %H:%M}"
        )


class Incident(models.Model):
    """Period in which one health indicator was yellow or red. See `console.health.incidents`."""

    indicator = models.TextField()  # its id
    name = models.TextField()
    state = models.TextField()  # the last one, as the word of `pushserver.console.health.verdicts.State`
    sentence = models.TextField()  # sentence of the indicator at the beginning, and then when it got red
    incident_at = models.DateTimeField()  # equal to `began_at`: the previous version reads it
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    # Its newest time in red. It is red now while `red_from` is set and `red_until` is not.
    red_from = models.DateTimeField(null=True)
    red_until = models.DateTimeField(null=True)
    # The id of the last indicator that explained it.
    cause = models.TextField(blank=True, default="", db_default="")
    # The staff member who takes care of it. No more reminders are sent then.
    acknowledged_by = models.TextField(blank=True, default="", db_default="")
    acknowledged_at = models.DateTimeField(null=True)
    # Its indicator sends no alert before this time.
    snoozed_until = models.DateTimeField(null=True)

    class Meta:
        permissions: ClassVar = [("operate_incident", "Can acknowledge incidents and choose what alerts")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["indicator"], condition=models.Q(ended_at=None), name="one_open_incident_per_indicator"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.worst} from {exact(self.began_at)}"

    @property
    def is_red(self) -> bool:
        return self.ended_at is None and self.red_from is not None and self.red_until is None

    @property
    def worst(self) -> str:
        return "act now" if self.red_from else self.state  # as `State` has it, which this module may not import


class AlertLevel(models.Model):
    """The mildest state from which a kind of indicator alerts, if it is not `RED`."""

    class Level(models.TextChoices):
        RED = "red", "when somebody has to act now"
        YELLOW = "yellow", "also when it can wait for the morning"
        NEVER = "never", "never"

    kind = models.TextField(primary_key=True)  # the id of a kind of indicator
    level = models.TextField(choices=Level.choices)

    def __str__(self) -> str:
        return f"alerts of {self.kind}"


class Alert(models.Model):
    """A message about an incident to one target of ALERTS_TO."""

    class Event(models.TextChoices):
        BEGAN = "began"
        STILL = "still"  # a reminder
        ENDED = "ended"

    # No index of its own, because `one_alert_for_each_target` begins with it.
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="alerts", db_index=False)
    event = models.TextField(choices=Event.choices)
    number = models.PositiveIntegerField(default=0)  # of a reminder; of a beginning 1 if it was yellow
    target = models.TextField()  # its label, because URLs of webhooks are secret
    planned_at = models.DateTimeField()
    next_attempt_at = models.DateTimeField()
    attempt_count = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")  # reason of the last refusal

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["incident", "event", "number", "target"], name="one_alert_for_each_target"),
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.target}"


class ServerStart(models.Model):
    """Start of a worker with its version, as a change that may explain an incident."""

    version = models.TextField()
    started_at = models.DateTimeField()
    # The public keys of the server then, in hexadecimal, with commas. New clients addressed the first one.
    keys = models.TextField(blank=True, default="", db_default="")
    # The settings that are no secrets, as `NAME:digest` with commas. A start without any is one of an earlier version.
    settings = models.TextField(blank=True, default="", db_default="")

    def __str__(self) -> str:
        return f"version {self.version} started"

    def changed_since(self, before: "ServerStart | None") -> list[str]:
        """Return the names of the settings that were other ones at the start before."""
        if not (before and before.settings and self.settings):
            return []
        changed = {*self.settings.split(",")} ^ {*before.settings.split(",")}
        return sorted({pair.partition(":")[0] for pair in changed})


# Canaries -------------------------------------------------------------------------------------------------------------


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

    KEPT = timedelta(days=7)
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
