"""Gateway of Web Push, in as many lines as a new gateway needs.

Its addresses are no device tokens but documents: an endpoint and the two keys of a browser.
"""

import json
from dataclasses import dataclass
from datetime import datetime

from notifications.messages import Outcome, Push, Result
from registrations.messages import RegistrationMessage
from registrations.rules import Refusal

NAME = "web_push"
TOKEN_TYPE = 77


@dataclass(frozen=True, slots=True)
class Subscription:
    endpoint: str
    p256dh: str
    auth: str


def read_address(push: Push) -> Subscription:
    """Raise ValueError or TypeError for bytes that are no address of this gateway."""
    return Subscription(**json.loads(push.address))


def check_address(message: RegistrationMessage) -> Refusal | None:
    """Refuse a subscription that no browser can have made. The bridge that takes it calls this."""
    return None if message.device_token.startswith("{") else Refusal.IMPLAUSIBLE_TOKEN


class WebPushGateway:
    def __init__(self) -> None:
        self.sent: list[tuple[Subscription, bytes]] = []

    def refresh(self, *, now: datetime) -> None:
        """Do nothing: the gateway caches nothing."""

    def find_fault(self, push: Push) -> Result | None:
        try:
            is_sendable = read_address(push).endpoint.startswith("https://")
        except (ValueError, TypeError):
            is_sendable = False
        return None if is_sendable else Result(Outcome.DEAD, "no_endpoint", is_untried=True)

    async def send(self, push: Push) -> Result:
        subscription = read_address(push)
        self.sent.append((subscription, push.message))
        is_gone = subscription.endpoint.endswith("/gone")
        return Result(Outcome.DEAD, "gone") if is_gone else Result(Outcome.DELIVERED, latency_ms=1)
