"""The pages in the benchmark of the console: every list with its filters, every search, and the pages behind them.

Their rows are chosen from the database at random, the same ones in each run. Django must be set up.
"""

import random
import secrets
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model, QuerySet
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from bench.pages.console import REQUESTS, Page, PageRequest
from embedded.seeding import chat_keys
from kit.admin.facts import FactAdmin
from notifications.models import Attempt, Channel, Notification, NotificationRequest
from pushserver.api import tokens
from pushserver.models import ApiToken, AttemptMinute, TrafficMinute
from registrations.models import Registration
from spark_reports.models import ErrorRate
from waku_bridge.codec.keys import chat_key, key_hash
from waku_bridge.models import DeadLetter, InboundEnvelope

HOST = "localhost"
NUMBERS = random.Random(1)  # noqa: S311 - the same ones in every run
NOTHING = "nothing-at-all"
DIGITS = 8
# A list is searched for these terms when its help text contains the word. Every list is searched for nonsense.
WORDS = {
    "chat key": "chat key",
    "first digits of a key hash": "key hash",
    "key hash of the heaviest user": "key hash",
    "installation id": "installation id",
    "pseudonym": "pseudonym",
    "message id": "status message",
    "metadata message id": "metadata message",
    "first digits of a message id": "message",
    "envelope hash": "envelope",
    "dead letter": "raw message",
    "nonsense": "",
}


@cache
def clients() -> tuple[Client, Client]:
    """Return a browser whose user may see everything, and a program with a token for all scopes."""
    user, _ = User.objects.get_or_create(username="bench", defaults={"is_staff": True, "is_superuser": True})
    browser = Client(SERVER_NAME=HOST)
    browser.force_login(user, "django.contrib.auth.backends.ModelBackend")
    ApiToken.objects.filter(created_by="bench").delete()
    _, token = tokens.issue(f"bench {secrets.token_hex(4)}", list(ApiToken.Scope), by="bench", now=timezone.now())
    return browser, Client(SERVER_NAME=HOST, headers={"authorization": f"Bearer {token}"})


def count_minutes() -> None:
    """Fill the counts of a day, minute by minute, as beat does, with as many kinds of errors as a bad day has."""
    end = timezone.now().replace(second=0, microsecond=0)
    begins = [end - timedelta(minutes=number) for number in range(1, 1441)]
    figures = {"request_count": 160, "reply_count": 320, "dispatch_p50_ms": 40, "dispatch_p95_ms": 90}
    TrafficMinute.objects.bulk_create(
        [
            TrafficMinute(begin_at=begin, counted_at=end, reply_p50_ms=70, reply_p95_ms=150, **figures)
            for begin in begins
        ],
        ignore_conflicts=True,
    )
    AttemptMinute.objects.bulk_create(
        [
            AttemptMinute(begin_at=begin, outcome=outcome, code=code, count=9)
            for begin in begins
            for outcome, code in [("delivered", ""), *(("transient", f"code_{number}") for number in range(12))]
        ],
        ignore_conflicts=True,
    )


def pages() -> list[Page]:
    """Return all pages."""
    return [*_overviews(), *_lists(), *_searches(), *_users(), *_timelines(), *_rows(), *_operations(), *_api()]


def _gets(group: str, name: str, *urls: str) -> Page:
    return Page(group, name, [PageRequest(url) for url in urls])


def _sample(model: type[Model], *fields: str, **conditions: Any) -> list[Any]:
    """Return rows from all over the table, chosen by their place on the disk, without sorting or counting the table."""
    meta = model._meta  # noqa: SLF001 - documented
    table, column = connection.ops.quote_name(meta.db_table), connection.ops.quote_name(str(meta.pk.column))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT greatest(1, pg_relation_size('{table}') / 8192)")
        blocks = cursor.fetchone()[0]
        places = [f"'({NUMBERS.randrange(blocks)},{line})'::tid" for _ in range(4 * REQUESTS) for line in (1, 2, 3)]
        cursor.execute(f"SELECT {column} FROM {table} WHERE ctid = ANY(ARRAY[{','.join(places)}])")
        keys = [key for (key,) in cursor.fetchall()]
    found: QuerySet[Any] = QuerySet(model).filter(pk__in=keys, **conditions)
    rows = list(found.values_list(*fields, flat=len(fields) == 1))
    NUMBERS.shuffle(rows)
    return rows[:REQUESTS]


def _hexes(values: Sequence[bytes]) -> list[str]:
    return [bytes(value).hex() for value in values]


def _admins() -> list[Any]:
    return list(admin.site._registry.values())  # noqa: SLF001 - there is no other list of all pages


def _name(page: Any, suffix: str) -> str:
    return f"admin:{page.opts.app_label}_{page.opts.model_name}_{suffix}"


# Console --------------------------------------------------------------------------------------------------------------


def _overviews() -> Iterator[Page]:
    for name in ("admin:index", "find", "drain", "gorush_configuration", "waku_nodes", "reports:overview"):
        yield _gets("page", name, reverse(name))
    yield Page("page", "dashboard, what refreshes itself", [PageRequest(reverse("admin:index"), refresh=True)])
    for slug in ("error-rates", "token-churn", "token-lifetime", "latency", "failure-signatures", "load-profile"):
        yield _gets("page", f"report {slug}", reverse("reports:report", args=[slug]))


def _lists() -> Iterator[Page]:
    for page in _admins():
        url = reverse(_name(page, "changelist"))
        name = page.model.__name__
        yield _gets("list", name, url)
        request = RequestFactory().get(url)
        request.user = User.objects.get(username="bench")
        changes = page.get_changelist_instance(request)
        if isinstance(page, FactAdmin) and changes.older_url:
            yield _gets("list", f"{name}, page 2", url + changes.older_url)
            yield _gets("list", f"{name}, far back", *_deep_urls(page.model, url, changes))
        for spec in changes.filter_specs:
            yield from _filtered(name, url, spec, changes)


def _deep_urls(model: type[Model], url: str, changes: Any) -> list[str]:
    """Return pages that begin at rows all over the table, in both directions."""
    places = _sample(model, *dict.fromkeys([*changes.ordered_by, "pk"]))
    keys = [position if isinstance(position, tuple) else (position,) for position in places]
    return [url + changes.url(("older", "newer")[number % 2], [key]) for number, key in enumerate(keys)]


def _filtered(name: str, url: str, spec: Any, changes: Any) -> Iterator[Page]:
    choices = [choice for choice in spec.choices(changes) if not choice["selected"]]
    for choice in choices:
        yield _gets("filter", f"{name}, {spec.title}: {choice['display']}", url + choice["query_string"])
    if choices and "__exact" in choices[0]["query_string"]:
        parameter = spec.expected_parameters()[0]
        nothing = "2" if "1" in choices[0]["query_string"].partition("=")[2] else NOTHING
        yield _gets("filter", f"{name}, {spec.title}: nothing that there is", f"{url}?{parameter}={nothing}")


def _searches() -> Iterator[Page]:
    """Yield searches in the box of every page, with the pages that they lead to, and then searches in the lists."""
    terms = _terms()
    for kind, values in terms.items():
        yield Page("find", kind, [PageRequest(reverse("find"), {"q": value}) for value in values])
    for page in _admins():
        if isinstance(page, FactAdmin) and page.search_help_text:
            box = reverse("search_facts", args=[page.opts.app_label, page.opts.model_name])
            for kind, word in WORDS.items():
                if word in page.search_help_text.lower():
                    asks = [PageRequest(box, {"q": value}) for value in terms[kind]]
                    yield Page("search", f"{page.model.__name__}, {kind}", asks)


def _terms() -> dict[str, list[str]]:
    keys = chat_keys()[2:]
    hashes = _hexes(_sample(Registration, "public_key_hash"))
    requests = _sample(NotificationRequest, "message_id", "request_key")
    pseudonyms: list[UUID] = _sample(Registration, "pseudonym", pseudonym__isnull=False)
    return {
        "chat key": [chat_key(key) for key in keys],
        "compressed key": [key.hex() for key in keys],
        "unknown key": [chat_key(key) for key in chat_keys(prefix="nobody")],
        "key hash": hashes,
        "first digits of a key hash": [digits[:DIGITS] for digits in hashes],
        "key hash of the heaviest user": [_heaviest()[0]],
        "installation id": _sample(Registration, "installation_id"),
        "pseudonym": [str(pseudonym) for pseudonym in pseudonyms],
        "message id": _hexes([message for message, _ in requests]),
        "metadata message id": _hexes([amm for _, amm in requests]),
        "first digits of a message id": [bytes(message).hex()[:DIGITS] for message, _ in requests],
        "envelope hash": _hexes(_sample(InboundEnvelope, "pk")),
        "dead letter": _hexes(_sample(DeadLetter, "pk")),
        "nonsense": ["nonsense", "0x04" + "zz" * 64, "12345"],
    }


def _heaviest() -> list[str]:
    """Return the user with most installations, and the one with the longest history."""
    return [key_hash(key).hex() for key in chat_keys()[:2]]


def _users() -> Iterator[Page]:
    people = {"ordinary user": _hexes(_sample(Registration, "public_key_hash"))}
    max_installations, max_history = _heaviest()
    people |= {"user with most installations": [max_installations], "user with most history": [max_history]}
    for name, hashes in people.items():
        yield _gets("user", name, *(reverse("user", args=[digits]) for digits in hashes))
        yield _gets("forget", name, *(reverse("forget_user", args=[digits]) for digits in hashes))


def _timelines() -> Iterator[Page]:
    kept = InboundEnvelope.objects.filter(message_type=20).earliest("received_at").received_at
    yield _gets("timeline", "any", *_timeline_urls())
    yield _gets("timeline", "with envelope and reply", *_timeline_urls(created_at__gt=kept) or _newest_timelines())
    asked = _sample(NotificationRequest, "pk")
    yield _gets("timeline", "of a request", *(reverse("request_timeline", args=[pk]) for pk in asked))
    yield _gets("timeline", "with most attempts", *_timeline_urls(attempt_count__gte=3) or _newest_timelines())


def _timeline_urls(**conditions: Any) -> list[str]:
    return [reverse("timeline", args=[pk]) for pk in _sample(Notification, "pk", **conditions)]


def _newest_timelines() -> list[str]:
    newest = Notification.objects.order_by("-pk").values_list("pk", flat=True)[:REQUESTS]
    return [reverse("timeline", args=[pk]) for pk in newest]


def _rows() -> Iterator[Page]:
    for page in _admins():
        if isinstance(page, FactAdmin):
            name = _name(page, "change")
            keys = [bytes(pk).hex() if isinstance(pk, bytes | memoryview) else pk for pk in _sample(page.model, "pk")]
            if keys:
                yield _gets("row", page.model.__name__, *(reverse(name, args=[key]) for key in keys))


def _operations() -> Iterator[Page]:
    """Yield the confirmation page of each operation that applies, with as many rows as a list shows."""
    for page in _admins():
        for name, form in getattr(page, "operations", {}).items():
            url = reverse(_name(page, "operate"), args=[name])
            keys = [
                bytes(pk).hex() if isinstance(pk, bytes | memoryview) else str(pk) for pk in _sample(page.model, "pk")
            ]
            if not keys:
                continue
            yield _gets("confirm", f"{page.model.__name__}, {form.label}", *(f"{url}?id={key}" for key in keys))
            yield _gets(
                "confirm", f"{page.model.__name__}, {form.label}, many", f"{url}?{'&'.join(f'id={k}' for k in keys)}"
            )
    for channel in Channel.objects.all():
        for name in ("pause", "trip", "resume", "close", "undo"):
            url = reverse("admin:notifications_channel_operate", args=[channel.pk, name])
            yield _gets("confirm", f"{channel}, {name}", url)


# API ------------------------------------------------------------------------------------------------------------------


def _api() -> Iterator[Page]:
    yield _gets("API", "status", reverse("status"))
    yield _gets("API", "channels", reverse("channel-list"))
    yield _gets("API", "canary", reverse("canary-list"))
    yield _gets("API", "canary, broken ones", f"{reverse('canary-list')}?state=broken")
    yield from _api_of_registrations()
    yield from _api_of_notifications()
    yield from _api_of_reports()


def _api_of_registrations() -> Iterator[Page]:
    url = reverse("registration-list")
    hashes = _hexes(_sample(Registration, "public_key_hash"))
    yield _gets("API", "registrations by key hash", *(f"{url}?key_hash={digits}" for digits in hashes))
    yield _gets("API", "registrations by key hash, heaviest", f"{url}?key_hash={_heaviest()[0]}")
    yield _gets("API", "registrations by key hash, page 2", _second_page(url, Registration, key_hash=_heaviest()[0]))
    yield _gets("API", "registrations by key hash, largest page", f"{url}?key_hash={_heaviest()[0]}&page_size=9999")
    yield _gets("API", "registrations by key hash, unknown", f"{url}?key_hash={'ab' * 64}")
    installations = _sample(Registration, "installation_id")
    yield _gets("API", "registrations by installation", *(f"{url}?installation_id={one}" for one in installations))


def _api_of_notifications() -> Iterator[Page]:
    url = reverse("notification-list")
    hashes = _hexes(_sample(Notification, "public_key_hash"))
    yield _gets("API", "notifications by key hash", *(f"{url}?key_hash={digits}" for digits in hashes))
    for digits, name in zip(_heaviest(), ("most installations", "most history"), strict=True):
        yield _gets("API", f"notifications by key hash, {name}", f"{url}?key_hash={digits}")
    yield _gets("API", "notifications by key hash, largest page", f"{url}?key_hash={_heaviest()[1]}&page_size=9999")
    yield _gets("API", "notifications by key hash, page 2", _second_page(url, Notification, key_hash=_heaviest()[1]))
    for name, column in {"message_id": "message_id", "amm_message_id": "request_key"}.items():
        values = _hexes(_sample(NotificationRequest, column))
        yield _gets("API", f"notifications by {name}", *(f"{url}?{name}={value}" for value in values))
        both = [f"{url}?{name}={value}&key_hash={_heaviest()[1]}" for value in values]
        yield _gets("API", f"notifications by {name} and key hash", *both)
    keys = _sample(Attempt, "notification_id")
    yield _gets("API", "one notification", *(reverse("notification-detail", args=[pk]) for pk in keys))


def _second_page(url: str, model: type[Model], **query: str) -> str:
    """Return the address of the second page, from the `next` of the first one."""
    _, api = clients()
    answer = api.get(url, query).json()
    following: str | None = answer["next"]
    assert following, (model, "has no second page")
    return following.partition(HOST)[2]


def _api_of_reports() -> Iterator[Page]:
    days = sorted({str(day) for day in _sample(ErrorRate, "day")})
    for name, columns in {
        "error-rate": {
            "hour": "3",
            "platform": "ios",
            "outcome": "dead",
            "code": "timeout",
            "stage": NOTHING,
            "bridge": "waku",
        },
        "token-churn": {"platform": "android", "app_topic": NOTHING},
        "anomaly": {"figure": "error_rate", "platform": NOTHING},
    }.items():
        url = reverse(f"{name}-list")
        yield _gets("API", name, url)
        yield _gets("API", f"{name}, by day", *(f"{url}?day={day}" for day in days))
        yield _gets("API", f"{name}, between days", f"{url}?from_day={days[0]}&to_day={days[-1]}")
        yield _gets("API", f"{name}, largest page", f"{url}?page_size=9999")
        for column, value in columns.items():
            yield _gets("API", f"{name}, {column} {value}", f"{url}?{column}={value}")
        yield _gets(
            "API", f"{name}, by day and all", f"{url}?day={days[0]}&{'&'.join(f'{c}={v}' for c, v in columns.items())}"
        )
