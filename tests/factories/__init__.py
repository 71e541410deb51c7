"""Factories of one valid row of each kind, with the fewest facts. A test names only the values that it is about."""

from tests.factories.devices import make_device, make_xmpp_app, make_xmpp_canary_run
from tests.factories.envelopes import (
    make_canary_envelope,
    make_canary_run,
    make_dead_letter,
    make_envelope,
    make_reply,
    make_watermark,
    make_window,
)
from tests.factories.notifications import (
    make_answered_request,
    make_attempt,
    make_channel,
    make_decided,
    make_halt,
    make_notification,
    make_request,
    make_unknown_error,
)
from tests.factories.registrations import make_event, make_grant, make_registration, make_route, make_topic_key
from tests.factories.staff import make_staff
from tests.factories.tokens import apn_token, firebase_token

__all__ = [
    "apn_token",
    "firebase_token",
    "make_answered_request",
    "make_attempt",
    "make_canary_envelope",
    "make_canary_run",
    "make_channel",
    "make_dead_letter",
    "make_decided",
    "make_device",
    "make_envelope",
    "make_event",
    "make_grant",
    "make_halt",
    "make_notification",
    "make_registration",
    "make_reply",
    "make_request",
    "make_route",
    "make_staff",
    "make_topic_key",
    "make_unknown_error",
    "make_watermark",
    "make_window",
    "make_xmpp_app",
    "make_xmpp_canary_run",
]
