"""What tests of delivery share: a gateway that answers as it is told, and notifications that are due."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from django.db import connection

from notifications.delivery import Claim, Lanes, claim, deliver, record
from notifications.messages import ChannelKey, Outcome, Push, Result
from notifications.models import Channel, Notification
from tests.factories import make_notification, make_registration, make_route

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=120)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
APP = "im.status"


class RecordingGateway:
    """Takes every push, and answers each with what ``answer`` makes of it."""

    name = "recording"

    def __init__(self, answer: Callable[[Push], Result] | Outcome = Outcome.DELIVERED) -> None:
        self.answer = answer if callable(answer) else lambda _: Result(answer, "code", latency_ms=7)
        self.pushes: list[Push] = []

    async def send(self, push: Push) -> Result:
        self.pushes.append(push)
        await asyncio.sleep(0)
        return self.answer(push)


def other_session() -> psycopg.Connection[Any]:
    """With the same database, to hold what somebody else may hold."""
    return psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None})


def make_due(*, route=None, **fields) -> Notification:
    """A notification to somebody registered, due since long ago and alive for ages."""
    route = route or make_registration().route
    fields = {"at": LONG_AGO, "expires_at": datetime(2100, 1, 1, tzinfo=UTC), "chat_id": b"c", "message": b"m"} | fields
    return make_notification(route=route, route_generation=route.generation, **fields)


def make_due_to_app(apn_topic=APP, **fields) -> Notification:
    return make_due(route=make_registration(route=make_route(token_type=1, apn_topic=apn_topic)).route, **fields)


def prove(*keys: ChannelKey) -> None:
    """Something was delivered to these channels before."""
    for key in keys:
        Channel.objects.create(**key._asdict(), since=LONG_AGO, last_success_at=LONG_AGO)


def send(*notifications, gateway=None, lease=LEASE, **options) -> set[int]:
    """Deliver; returns the requests concerned."""
    gateway = gateway or RecordingGateway()
    return set().union(*deliver([n.pk for n in notifications], gateway, lease=lease, **options))


def claimed(*notifications, now=NOW) -> list[Claim]:
    """Those that a worker with room for all of them takes."""
    ids = [n.pk for n in notifications]
    return claim(ids, gateway_name="recording", now=now, lease=LEASE, lanes=Lanes(1000)).claims


def answered(result, *notifications, now=NOW) -> None:
    """Try them, and record the same result for each."""
    record([(held, result) for held in claimed(*notifications, now=now)], now=now)


def fresh(row):
    return type(row).objects.get(pk=row.pk)
