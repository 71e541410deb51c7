"""Tables of this app: registrations, their addresses (routes), grants, history, and query topics.

Privacy: only the hash of a client's public key is stored. Tokens are encrypted. A `Route` has nothing that identifies
its owner.
"""

import uuid
from datetime import datetime
from typing import ClassVar, Self

from django.db import models

from kit.db.fields import BytesField, BytesListField, Uint64Field
from registrations import messages
from registrations.encryption import Purpose, keyring
from registrations.messages import identity_of


class Route(models.Model):
    """One address at a gateway, with its delivery state. It does not identify its owner."""

    class State(models.TextChoices):
        ACTIVE = "active"
        # The token is dead, all pushes failed for days, or an operator disabled it. No pushes until the client
        # registers again.
        DISABLED = "disabled"

    gateway = models.TextField()  # the gateway that can read the address, and to which its pushes are sent
    token_type = models.PositiveSmallIntegerField(choices=messages.token_type_choices)
    app_topic = models.TextField(blank=True)
    # The address in the gateway's own format, such as a device token in UTF-8, or an endpoint with keys.
    address_encrypted = BytesField()
    # Digest of the address in its app (`messages.identity_of`). Routes with the same digest lead to the same device.
    address_digest = BytesField()
    # The `address_digest` at the newest successful push. The address is proven while both are equal, so an address that
    # was changed is not. Null: nothing was ever delivered, so a new one may take its place (`quotas`). Empty: the route
    # was imported, and stays, or something was delivered to an address of before a rotation of the field keys.
    delivered_digest = BytesField(null=True)
    is_proven = models.GeneratedField(
        expression=models.Case(models.When(delivered_digest=models.F("address_digest"), then=True), default=False),
        output_field=models.BooleanField(),
        db_persist=True,
    )
    state = models.TextField(choices=State.choices, default=State.ACTIVE)
    disabled_reason = models.TextField(blank=True)
    disabled_at = models.DateTimeField(null=True)
    # Grows with every accepted registration. The result of a push counts only for the generation to which it was sent.
    generation = models.PositiveBigIntegerField(default=1)
    # Since when all pushes to the route fail. It moves forward by the time in which its whole app fails (see
    # `disabling`).
    failing_since = models.DateTimeField(null=True)
    last_failure_at = models.DateTimeField(null=True)  # without meaning while failing_since is null
    last_success_at = models.DateTimeField(null=True)
    # The bridge still has to report the end of the route to the server that registered it.
    is_end_awaited = models.BooleanField(default=False, db_default=False)
    # The bridge at which its device registered.
    bridge = models.TextField()
    # Identifies the route in events and reports, if it has no registration. It is random.
    pseudonym = models.UUIDField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=models.Q(state="disabled"), name="route_disabled"),
            models.Index(
                fields=["id"], condition=models.Q(state="disabled", is_end_awaited=True), name="route_end_untold"
            ),
            models.Index(
                fields=["disabled_reason", "id"], condition=~models.Q(disabled_reason=""), name="route_disabled_reason"
            ),
            # For `quotas`, in the random order of a hash that nobody can choose.
            models.Index(
                *("bridge", "state", models.Func("id", function="hashint8", output_field=models.IntegerField())),
                condition=models.Q(state="disabled") | models.Q(delivered_digest=None),
                include=["id", "created_at"],
                name="route_may_go",
            ),
            models.Index(
                fields=["delivered_digest"], condition=models.Q(delivered_digest__isnull=False), name="route_delivered"
            ),
        ]
        permissions: ClassVar = [("disable_route", "Can disable and enable routes")]

    def __str__(self) -> str:
        return f"Route {self.pk} ({self.get_token_type_display()}, {self.state})"

    def is_at(self, token_type: int, app_topic: str, address: bytes) -> bool:
        """Return whether the route already leads to the device of this address."""
        identity = identity_of(token_type, app_topic, address)
        return self.token_type == token_type and keyring().matches(Purpose.ADDRESS, identity, self.address_digest)

    def set_address(self, gateway: str, token_type: int, app_topic: str, address: bytes) -> None:
        """Set the address, which also enables a disabled route. The caller stores it."""
        self.gateway, self.token_type, self.app_topic = gateway, token_type, app_topic
        self.address_encrypted = keyring().encrypt(Purpose.ADDRESS, address)
        self.address_digest = keyring().digest(Purpose.ADDRESS, identity_of(token_type, app_topic, address))
        self.state = Route.State.ACTIVE
        self.disabled_reason = ""
        self.disabled_at = self.failing_since = None
        self.generation += 1


class Registration(models.Model):
    """The registration of one installation. An unregistered one keeps only key hash, installation id, version,
    and whether anything was ever delivered to it.
    """

    class State(models.TextChoices):
        ACTIVE = "active"
        UNREGISTERED = "unregistered"  # a tombstone, so that a replayed older registration is still refused

    public_key_hash = BytesField()  # SHAKE-256, 64 bytes
    installation_id = models.TextField()  # as the client spelled it, and compared as text
    version = Uint64Field()
    state = models.TextField(choices=State.choices)
    route = models.OneToOneField(Route, null=True, on_delete=models.SET_NULL, related_name="registration")
    access_token_encrypted = BytesField(null=True)
    access_token_digest = BytesField(null=True)
    enabled = models.BooleanField(default=False)
    allow_from_contacts_only = models.BooleanField(default=False)
    block_mentions = models.BooleanField(default=False)
    allowed_key_list = BytesListField(default=list)
    blocked_chat_list = BytesListField(default=list)
    muted_chat_list = BytesListField(default=list)
    allowed_mentions_chat_list = BytesListField(default=list)
    content_digest = BytesField()  # digest of the decrypted body, which identifies a retransmission
    # Identifies the installation in events and reports. It is random, so that the history becomes anonymous when it is
    # deleted here.
    pseudonym = models.UUIDField(null=True, default=uuid.uuid4)
    # A tombstone of an installation to which nothing was ever delivered. Of these, only the newest are kept (`quotas`).
    is_forgettable = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["public_key_hash", "installation_id"], name="one_registration_each"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["installation_id"], name="registration_installation"),  # for the console's search
            # For the console's filters, in the order of its list. Indexes of other tables that end with id or a time
            # have the same purpose.
            models.Index(fields=["state", "id"], name="registration_state"),
            # PostgreSQL's statistics of this index contain the number of tombstones.
            models.Index(fields=["id"], condition=models.Q(state="unregistered"), name="registration_tombstone"),
            models.Index(
                fields=["updated_at"], condition=models.Q(is_forgettable=True), name="registration_forgettable"
            ),
        ]
        permissions: ClassVar = [("forget_registration", "Can erase everything about a key hash")]

    def __str__(self) -> str:
        return f"Registration {self.pk} (version {self.version}, {self.state})"


class Grant(models.Model):
    """The client's signature that authorises one server identity to push to it."""

    # No index of its own, because `one_grant_per_server` begins with it.
    registration = models.ForeignKey(Registration, on_delete=models.CASCADE, related_name="grants", db_index=False)
    server_public_key = BytesField()  # compressed, 33 bytes
    signature = BytesField()  # 65 bytes
    access_token_digest = BytesField()
    granted_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["registration", "server_public_key"], name="one_grant_per_server"),
        ]

    def __str__(self) -> str:
        return f"Grant {self.pk}"


class RegistrationEvent(models.Model):
    """An event of an installation or a device, append-only and pseudonymous. The churn reports read these events."""

    class Kind(models.TextChoices):
        REGISTERED = "registered"  # new, or again after unregistering
        REFRESHED = "refreshed"  # a new version with the same token and settings
        TOKEN_CHANGED = "token_changed"
        SETTINGS_CHANGED = "settings_changed"
        UNREGISTERED = "unregistered"
        TOKEN_DIED = "token_died"
        # All pushes failed for days, while others of its app arrived, or the client did not repeat it for months.
        EXPIRED = "expired"
        REVIVED = "revived"  # an operator enabled the route again

    kind = models.TextField(choices=Kind.choices)
    pseudonym = models.UUIDField()
    token_type = models.PositiveSmallIntegerField()
    app_topic = models.TextField(blank=True)
    bridge = models.TextField()
    at = models.DateTimeField(db_index=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["pseudonym"], name="event_pseudonym"),  # for one installation's history in the console
            models.Index(fields=["kind", "at"], name="event_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:%Y-%m-%d %H:%M:%S}"

    @classmethod
    def about(cls, route: Route, kind: str, *, pseudonym: uuid.UUID, at: datetime) -> Self:
        """Return an unsaved event with the present token type, app topic and bridge of a route."""
        location = {"token_type": route.token_type, "app_topic": route.app_topic, "bridge": route.bridge}
        return cls(kind=kind, pseudonym=pseudonym, at=at, **location)


class TopicKey(models.Model):
    """A query topic to which the bridge listens.

    To derive its key takes 15 ms (PBKDF2). It is derived in the background or at the first query, and then stored.
    """

    name = models.TextField(unique=True)  # hex of the key hash
    topic = models.BigIntegerField(
        db_index=True
    )  # the first four bytes of Keccak-256(name); several names may have the same topic
    key_encrypted = BytesField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = "query topic"
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=models.Q(key_encrypted__isnull=True), name="topic_key_missing"),
        ]

    def __str__(self) -> str:
        return f"Query topic {self.topic:08x}"
