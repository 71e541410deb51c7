"""The I/O of the config check: read from every gorush, judge the readings, save the complaints, and log changes."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import httpx
from django.conf import settings
from django.db.models import Count

from kit.http import MAX_CONNECTIONS, ask, new_client, submit
from notifications.gateways.gorush.errors import NAMES
from notifications.messages import Outcome
from notifications.models import Attempt
from pushserver.console.checks.gorush import NOTICES
from pushserver.console.checks.gorush.readings import (
    Reading,
    read_config,
    read_counters,
    read_version,
)
from pushserver.console.checks.gorush.rules import Expectations, complaints
from registrations.models import Route

# It is short, because the other periodic tasks wait for this one on a small machine.
TIMEOUT_SECONDS = 2.0
ANSWERED = range(200, 300)  # versions of gorush differ: 200 or 201
# A push that gorush has counted may have begun this long before the count, and its attempt with it.
LONGEST_PUSH = timedelta(minutes=2)


def check_all(urls: Sequence[str], *, now: datetime) -> None:
    """Check each gorush once. It is safe to run twice, and with any answer of the peer."""
    before = NOTICES.read(urls)
    readings = submit(_read_all(urls)).result()
    expected = _expectations()
    failures = _failures_since(min((notice.looked_at for notice in before.values()), default=now) - LONGEST_PUSH)
    for url, reading in zip(urls, readings, strict=True):
        known = before.get(url)
        previous = known.memory["push_errors"] if known and known.memory else None
        own = replace(expected, previous=previous, failures=failures)
        memory = {"push_errors": reading.counters} if reading.counters else None
        NOTICES.note(url, complaints(reading, own), known=known, now=now, memory=memory)


def _expectations() -> Expectations:
    active = Route.objects.filter(state=Route.State.ACTIVE)
    return Expectations(
        concurrency=MAX_CONNECTIONS,
        platforms=frozenset(name for number, name in NAMES.items() if active.filter(token_type=number).exists()),
        is_hook_open=bool(settings.GORUSH_HOOK_SECRET),
        is_shielded=settings.GORUSH_SHIELDED,
    )


def _failures_since(start: datetime) -> Mapping[str, int]:
    """Return the number of attempts on each platform that failed or have not ended.

    The number is rather too high than too low, so that a warning is justified.
    """
    attempts = Attempt.objects.filter(started_at__gte=start).exclude(outcome=Outcome.DELIVERED)
    counts = attempts.order_by().values_list("token_type").annotate(Count("pk"))
    return {NAMES[number]: count for number, count in counts if number in NAMES}


async def _read_all(urls: Collection[str]) -> list[Reading]:
    async with new_client() as client:
        return await asyncio.gather(*(_read(client, url) for url in urls))


async def _read(client: httpx.AsyncClient, url: str) -> Reading:
    paths = ("/api/config", "/version", "/api/stat/app")
    bodies = await asyncio.gather(*(_fetch(client, url + path) for path in paths))
    config, version, counters = (body or b"" for body in bodies)
    return Reading(
        is_reachable=any(body is not None for body in bodies),
        config=read_config(config),
        version=read_version(version),
        counters=read_counters(counters),
    )


async def _fetch(client: httpx.AsyncClient, url: str) -> bytes | None:
    """Return the body of an answer, empty for an unusable answer, or None when no server answers."""
    try:
        answer = await ask(client, "GET", url, seconds=TIMEOUT_SECONDS)
    except httpx.RemoteProtocolError:
        return b""
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return None
    return answer.content if answer.status_code in ANSWERED else b""
