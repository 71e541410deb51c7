"""Tables of the XMPP bridge: apps, their devices, and the runs and queued stanzas of the canary.

Privacy: no JID and no device id is stored, only a keyed hash of both. Of the account, the domain is stored. The tokens
are in the device's route, encrypted.
"""

import uuid
from typing import ClassVar

from django.core.validators import MaxLengthValidator, RegexValidator
from django.db import models

from kit.db.fields import BytesField
from registrations.models import Route
from xmpp_bridge.messages import Style

# A text of this length fits beside a full payload of mod_push2 into Apple's 4096 bytes.
MAX_TEXT_CHARACTERS = 40


class App(models.Model):
    """An app that an operator serves: the vendors that reach its devices, and the content of its pushes."""

    slug = models.TextField(
        unique=True,
        validators=[RegexValidator(r"\A[a-z0-9][a-z0-9-]{0,62}\Z", "Letters a-z, digits and hyphens.")],
        help_text="The name of the app in registrations of devices, and in the address SLUG@ our JID. It cannot be "
        "changed.",
    )
    app_topic = models.TextField(
        "Apple's bundle id",
        blank=True,
        help_text="Empty: the app has no Apple devices. After a change, a device keeps the former id until it "
        "registers again.",
    )
    takes_firebase = models.BooleanField("has devices at Firebase", default=True)
    style = models.TextField(
        "payload style",
        choices=[(style.value, style.value.title()) for style in Style],
        default=Style.GENERIC.value,
        help_text="The naming of a push's data that the app expects. An app with conversations never gets a payload.",
    )
    text = models.TextField(
        default="New message",
        validators=[MaxLengthValidator(MAX_TEXT_CHARACTERS)],
        help_text="The text that Apple's devices show unless the app changes it.",
    )
    sound = models.TextField(
        default="default",
        blank=True,
        validators=[MaxLengthValidator(MAX_TEXT_CHARACTERS)],
        help_text="The sound that Apple's devices play. Empty: none.",
    )
    calls_as_alerts = models.BooleanField(
        "show calls as messages",
        default=False,
        help_text="For Apple's devices. mod_push2 sends the same push when a call begins and when it ends, and Apple "
        "stops apps that do not ring for each call push.",
    )
    passes_texts = models.BooleanField(
        "pass on what users wrote",
        default=False,
        help_text="Disclosure: messages that a server sends in clear then go through our database, and to Apple and "
        "Google. Off: they are dropped before anything is stored.",
    )
    refuses_texts = models.BooleanField(
        "refuse forwarded messages",
        default=False,
        help_text="Answer them with policy-violation instead of waking the device.",
    )
    is_retired = models.BooleanField(
        "retired",
        default=False,
        help_text="Every device of the app counts as gone: none can register, and users' servers get an error for "
        "their next push.",
    )
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = "XMPP app"
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=~models.Q(passes_texts=True, refuses_texts=True), name="texts_passed_or_refused"
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class Device(models.Model):
    """One device of one account in one app. Its id is what client strings and nodes name."""

    class State(models.TextChoices):
        ACTIVE = "active"
        # The row stays as a tombstone: later pushes get the error that the device is gone.
        UNREGISTERED = "unregistered"
        EXPIRED = "expired"  # neither used nor registered again for months

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # No index of its own, because `device_app` begins with it.
    app = models.ForeignKey(App, on_delete=models.PROTECT, related_name="devices", db_index=False)
    domain = models.TextField()  # of the account; only the server of this domain may push
    device_key = BytesField()  # keyed hash of app, account and the app's id of the device
    owner_key = BytesField()  # keyed hash of app and account, to count devices
    # Name of the keys that made both hashes and the credentials of the app (`identity.client_keys`). Null in rows from
    # before this column existed.
    key_name = BytesField(null=True)
    route = models.OneToOneField(Route, null=True, on_delete=models.SET_NULL, related_name="device")
    state = models.TextField(choices=State.choices, default=State.ACTIVE)
    # The local part of our address that the last push of Push 2.0 was sent to. The end of the route is announced from
    # it. Null: there was no such push, or an account sent it, which is not stored; or the device's end is announced.
    announced_from = models.TextField(null=True)  # noqa: DJ001 - null: not announced
    registered_at = models.DateTimeField()  # the last time
    pushed_at = models.DateTimeField(null=True)  # exact to the day
    ended_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "XMPP device"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["device_key"], condition=models.Q(state="active"), name="one_active_device_each"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["owner_key"], condition=models.Q(state="active"), name="device_owner"),
            models.Index(fields=["ended_at"], condition=~models.Q(state="active"), name="device_ended"),
            models.Index(
                fields=["ended_at"],
                condition=~models.Q(state="active") & models.Q(announced_from__isnull=False),
                name="device_to_announce",
            ),
            # For the console's list and its filters; `device_state` also for the expiry of active ones.
            models.Index(fields=["registered_at", "id"], name="device_newest"),
            models.Index(fields=["state", "registered_at", "id"], name="device_state"),
            models.Index(fields=["app", "registered_at", "id"], name="device_app"),
        ]
        permissions: ClassVar = [("remove_device", "Can remove devices")]

    def __str__(self) -> str:
        return f"Device {self.pk} ({self.state})"


class CanaryStanza(models.Model):
    """A queued stanza of the canary, which the component sends to itself through the XMPP server, and its answer."""

    id = models.TextField(primary_key=True)  # the id of the stanza
    text = models.TextField()
    queued_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    answered_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)  # the condition of the error that answered it
    is_own_error = models.BooleanField(default=False)  # the component made the error, and not the XMPP server

    def __str__(self) -> str:
        return f"Stanza {self.pk}"
