"""The table of the canary's runs. It belongs to the app `xmpp_bridge`, in which it was created."""

from typing import ClassVar

from django.db import models

from pushserver.console.canary.runs import BaseRun


class CanaryRun(BaseRun):
    """One round trip of the canary. Its rows in other tables are removed, see `canary`."""

    class Link(models.TextChoices):
        """The links, in the order of the chain. The time of a stanza lasts until its answer is back."""

        REGISTER = "register"
        PUSH = "push"
        GATEWAY = "gateway"
        UNREGISTER = "unregister"

    class Cause(models.TextChoices):
        COMPONENT = "component", "the component does not take what it is sent"
        XMPP_SERVER = "xmpp_server", "the XMPP server does not route to the component"
        WORKER = "worker", "the workers do not process what the component stored"
        GATEWAY = "gateway", "the gateway does not take the push"
        REPLY = "reply", "the answer does not come back"

    broken_link = models.TextField(choices=Link.choices, blank=True)
    cause = models.TextField(choices=Cause.choices, blank=True)
    register_ms = models.PositiveIntegerField(null=True)
    push_ms = models.PositiveIntegerField(null=True)
    gateway_ms = models.PositiveIntegerField(null=True)
    unregister_ms = models.PositiveIntegerField(null=True)
    device = models.UUIDField(null=True)  # the device that the run registered, until its rows are removed

    class Meta:
        app_label = "xmpp_bridge"
        verbose_name = "XMPP canary run"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["state"], condition=models.Q(state="running"), name="one_xmpp_canary_at_a_time"
            ),
        ]

    def __str__(self) -> str:
        return f"XMPP canary {self.pk} ({self.state})"
