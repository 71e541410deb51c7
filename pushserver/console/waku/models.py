"""The table of the canary's runs. It belongs to the app `waku_bridge`, in which it was created."""

from typing import ClassVar

from django.db import models

from pushserver.console.canary.runs import BaseRun


class CanaryRun(BaseRun):
    """One round trip of the canary. Its rows in other tables are removed: see `canary.traces`."""

    class Link(models.TextChoices):
        """The links, in the order of the chain. A question ends when a node takes it, an answer when it is read."""

        REGISTER = "register"
        REGISTER_ANSWER = "register_answer"
        QUERY = "query"
        QUERY_ANSWER = "query_answer"
        REQUEST = "request"
        GATEWAY = "gateway"  # the time of the gateway, which is part of the time until the answer
        REQUEST_ANSWER = "request_answer"
        UNREGISTER = "unregister"
        UNREGISTER_ANSWER = "unregister_answer"

    class Cause(models.TextChoices):
        NODE = "node", "no node takes messages"
        BRIDGE = "bridge", "the bridge does not read what a node took"
        WORKER = "worker", "the workers do not process what the bridge read"
        GATEWAY = "gateway", "the gateway does not take the push"
        REPLY = "reply", "the answer does not come back"

    WITHIN = frozenset({Link.GATEWAY})

    is_dry_run = models.BooleanField()
    broken_link = models.TextField(choices=Link.choices, blank=True)
    cause = models.TextField(choices=Cause.choices, blank=True)
    register_ms = models.PositiveIntegerField(null=True)
    register_answer_ms = models.PositiveIntegerField(null=True)
    query_ms = models.PositiveIntegerField(null=True)
    query_answer_ms = models.PositiveIntegerField(null=True)
    request_ms = models.PositiveIntegerField(null=True)
    gateway_ms = models.PositiveIntegerField(null=True)
    request_answer_ms = models.PositiveIntegerField(null=True)
    unregister_ms = models.PositiveIntegerField(null=True)
    unregister_answer_ms = models.PositiveIntegerField(null=True)

    class Meta:
        app_label = "waku_bridge"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["state"], condition=models.Q(state="running"), name="one_canary_at_a_time"),
        ]

    def __str__(self) -> str:
        return f"Canary {self.pk} ({self.state})"
