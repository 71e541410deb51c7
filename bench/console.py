"""Benchmark of console and API with a million registrations and ten million attempts.

They run on PostgreSQL, filled as by `manage.py seed_bench`, through Django's test client: the real middleware, views
and templates, without a web server. Pages are every list with its filters, every search, and the pages behind them.
Every page is requested at least 30 times, each time for another row where possible; the rows are chosen at random, the
same ones in each run. The table shows wall-clock times, which other tenants of the machine make longer. It also shows
the CPU time of Python and of PostgreSQL, and the number of queries. ``python -m bench console --registrations 1000000
--attempts 10000000``; with ``--keep`` the database stays in that folder for the next time. ``BENCH_ONLY=list`` measures
only the pages with that text in their name.
"""

import os
import random
import re
import secrets
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import cycle, islice
from statistics import quantiles
from typing import Any, NamedTuple

import psutil
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model, QuerySet
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from bench.running.servers import Around, cpu_seconds
from bench.running.tables import show
from embedded.management.commands import seed_bench
from embedded.management.commands.seed_bench import chat_keys
from notifications.models import Attempt, Channel, Notification, NotificationRequest
from pushserver.console.models import ApiToken, Count, TrafficMinute
from pushserver.console.toolkit.facts import FactAdmin
from registrations.models import Registration
from spark_reports.models import ErrorRate
from waku_bridge.codec.keys import chat_key, key_hash
from waku_bridge.models import DeadLetter, InboundEnvelope

REQUESTS, WARM_UP, TARGET_MS = 30, 2, 200
ONLY = os.environ.get("BENCH_ONLY", "")
HOST = "localhost"
NUMBERS = random.Random(1)  # noqa: S311 - the same ones in every run
NOTHING = "nothing-at-all"
DIGITS = 8
OVERVIEWS = ("admin:index", "find", "drain", "gorush_configuration", "waku_nodes", "reports:overview")
REPORTS = ("error-rates", "token-churn", "token-lifetime", "latency", "failure-signatures", "load-profile")
# Pages about rows: group, name, view, and its argument or query, with the names of `_samples`.
ABOUT_ROWS = (
    ("user", "ordinary user", "user", "{user}"),
    ("user", "user with most installations", "user", "{heaviest}"),
    ("user", "user with most history", "user", "{oldest}"),
    ("forget", "ordinary user", "forget_user", "{user}"),
    ("forget", "user with most installations", "forget_user", "{heaviest}"),
    ("forget", "user with most history", "forget_user", "{oldest}"),
    ("timeline", "any", "timeline", "{notification}"),
    ("timeline", "with envelope and reply", "timeline", "{late_notification}"),
    ("timeline", "of a request", "request_timeline", "{request}"),
    ("timeline", "with most attempts", "timeline", "{repeated_notification}"),
)
# Answers of the API: name, view, and the same.
API = (
    ("status", "status", ""),
    ("channels", "channel-list", ""),
    ("canary", "canary-list", ""),
    ("canary, broken ones", "canary-list", "state=broken"),
    ("registrations by key hash", "registration-list", "key_hash={user}"),
    ("registrations by key hash, heaviest", "registration-list", "key_hash={heaviest}"),
    ("registrations by key hash, largest page", "registration-list", "key_hash={heaviest}&page_size=9999"),
    ("registrations by key hash, unknown", "registration-list", f"key_hash={'ab' * 64}"),
    ("registrations by installation", "registration-list", "installation_id={installation}"),
    ("notifications by key hash", "notification-list", "key_hash={recipient}"),
    ("notifications by key hash, most installations", "notification-list", "key_hash={heaviest}"),
    ("notifications by key hash, most history", "notification-list", "key_hash={oldest}"),
    ("notifications by key hash, largest page", "notification-list", "key_hash={oldest}&page_size=9999"),
    ("notifications by message_id", "notification-list", "message_id={message}"),
    ("notifications by message_id and key hash", "notification-list", "message_id={message}&key_hash={oldest}"),
    ("notifications by amm_message_id", "notification-list", "amm_message_id={amm}"),
    ("notifications by amm_message_id and key hash", "notification-list", "amm_message_id={amm}&key_hash={oldest}"),
    ("one notification", "notification-detail", "{attempted}"),
)
SECOND_PAGES = {"registrations": "heaviest", "notifications": "oldest"}
API_OF_REPORTS = {
    "error-rate": "hour=3 platform=ios outcome=dead code=timeout stage=nothing-at-all bridge=waku",
    "token-churn": "platform=android app_topic=nothing-at-all",
    "anomaly": "figure=error_rate platform=nothing-at-all",
}


class Page(NamedTuple):
    """A page, and the requests by which it is measured: arguments of the test client, for a POST if there is data."""

    group: str
    name: str
    asks: Sequence[dict[str, Any]]


def run(around: Around, options: Namespace) -> dict[str, object]:
    """Fill a database unless it is kept, measure all pages, print them, and return the figures."""
    seconds = _fill(options.registrations, options.attempts)
    _count_minutes()
    browser, api = _clients()
    chosen = [page for page in _pages(api) if ONLY in f"{page.group}: {page.name}"]
    pages = [_measure(api if page.group == "API" else browser, page) for page in chosen]
    size_bytes = sum(file.stat().st_size for file in (around.folder / "postgres").rglob("*") if file.is_file())
    _show(pages)
    return {
        "registrations": Registration.objects.count(),
        "attempts": Attempt.objects.count(),
        "fill_seconds": seconds,
        "size_gib": round(size_bytes / 2**30, 1),
        "target_ms": TARGET_MS,
        "pages": pages,
    }


def _show(pages: Sequence[dict[str, Any]]) -> None:
    keys = ("p50_ms", "p95_ms", "cpu_ms", "database_cpu_ms", "queries", "size_bytes")
    rows = {f"{n} {page['group']}: {page['name']}": [page[key] for key in keys] for n, page in enumerate(pages, 1)}
    late = [name for name, (_, p95_ms, *_others) in rows.items() if p95_ms > TARGET_MS]
    title = f"Console and API: {len(pages)} pages, {len(late)} of them slower than {TARGET_MS} ms (p95)"
    columns = ("page", "p50 ms", "p95 ms", "CPU ms", "database CPU ms", "queries", "bytes")
    show(title, columns, rows, digits=0, missed=late)


def _fill(registrations: int, attempts: int) -> float | None:
    """Fill the database and return the seconds that this took, or None when it was full already."""
    started, is_full = time.monotonic(), Registration.objects.exists()
    if not is_full:
        seed_bench.fill(registrations, attempts, print)
    seed_bench.settle()
    return None if is_full else round(time.monotonic() - started)


def _count_minutes() -> None:
    """Fill the counts of a day, minute by minute, as beat does, with as many kinds of errors as a bad day has."""
    end = timezone.now().replace(second=0, microsecond=0)
    begins = [end - timedelta(minutes=number) for number in range(1, 1441)]
    kinds = [("delivered", ""), *(("transient", f"code_{number}") for number in range(12))]
    counts = {"request_count": 160, "reply_count": 320, "dispatch_p50_ms": 40, "dispatch_p95_ms": 90}
    replies = {"reply_p50_ms": 70, "reply_p95_ms": 150}
    traffic = [TrafficMinute(begin_at=begin, counted_at=end, **counts, **replies) for begin in begins]
    attempts = [
        Count(figure="attempts", begin_at=at, outcome=kind, code=code, count=9) for at in begins for kind, code in kinds
    ]
    TrafficMinute.objects.bulk_create(traffic, ignore_conflicts=True)
    Count.objects.bulk_create(attempts, ignore_conflicts=True)


def _clients() -> tuple[Client, Client]:
    """Return a browser whose user may see everything, and a program with a token for all scopes."""
    user, _ = User.objects.get_or_create(username="bench", defaults={"is_staff": True, "is_superuser": True})
    browser = Client(SERVER_NAME=HOST)
    browser.force_login(user, "django.contrib.auth.backends.ModelBackend")
    ApiToken.objects.filter(created_by="bench").delete()
    new = ApiToken(name=f"bench {secrets.token_hex(4)}", scopes=list(ApiToken.Scope.values))
    token = new.issue(by="bench", now=timezone.now()).text
    return browser, Client(SERVER_NAME=HOST, headers={"authorization": f"Bearer {token}"})


def _measure(client: Client, page: Page) -> dict[str, Any]:
    """Return percentiles of the times of a page by the clock, its mean CPU times, its queries and its size."""
    asks = list(islice(cycle(page.asks), WARM_UP + max(REQUESTS, len(page.asks))))
    for ask in asks[:WARM_UP]:
        _timed(client, ask)
    own, database = psutil.Process(), _backend()
    cpu, database_cpu = cpu_seconds(own), cpu_seconds(database)
    times_ms, queries, sizes = zip(*(_timed(client, ask) for ask in asks[WARM_UP:]), strict=True)
    percentiles = quantiles(times_ms, n=100, method="inclusive")
    figures = {
        "p50_ms": percentiles[49],
        "p95_ms": percentiles[94],
        "max_ms": max(times_ms),
        "cpu_ms": (cpu_seconds(own) - cpu) * 1000 / len(times_ms),
        "database_cpu_ms": (cpu_seconds(database) - database_cpu) * 1000 / len(times_ms),
    }
    rounded = {name: round(value, 1) for name, value in figures.items()}
    return {"group": page.group, "name": page.name, **rounded, "queries": max(queries), "size_bytes": max(sizes)}


def _backend() -> psutil.Process:
    """Return PostgreSQL's process for all requests. Parallel workers are not its children; no page should need them."""
    connection.ensure_connection()
    return psutil.Process(connection.connection.info.backend_pid)


def _timed(client: Client, ask: dict[str, Any]) -> tuple[float, int, int]:
    """Return the milliseconds of a request with its redirects, its queries, and the bytes of the page."""
    queries = []

    def count(execute: Any, *arguments: Any) -> Any:
        queries.append(execute)
        return execute(*arguments)

    with connection.execute_wrapper(count):
        started = time.perf_counter()
        response = (client.post if "data" in ask else client.get)(**ask, follow=True)
        milliseconds = (time.perf_counter() - started) * 1000
    assert response.status_code == 200, (ask, response.status_code)
    return milliseconds, len(queries), len(response.content)


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


def _keys(model: type[Model], field: str = "pk", **conditions: Any) -> list[str]:
    """Return these fields of rows as they are in addresses."""
    values = _sample(model, field, **conditions)
    return [bytes(value).hex() if isinstance(value, bytes | memoryview) else str(value) for value in values]


def _samples() -> dict[str, list[str]]:
    """Return keys of rows by their kind. The heaviest user has most installations, another the longest history."""
    kept = InboundEnvelope.objects.filter(message_type=20).earliest("received_at").received_at
    newest = [str(pk) for pk in Notification.objects.order_by("-pk").values_list("pk", flat=True)[:REQUESTS]]
    heaviest, oldest, *_ = chat_keys()
    return {
        "user": _keys(Registration, "public_key_hash"),
        "heaviest": [key_hash(heaviest).hex()],
        "oldest": [key_hash(oldest).hex()],
        "installation": _keys(Registration, "installation_id"),
        "notification": _keys(Notification),
        "late_notification": _keys(Notification, created_at__gt=kept) or newest,
        "repeated_notification": _keys(Notification, attempt_count__gte=3) or newest,
        "recipient": _keys(Notification, "public_key_hash"),
        "request": _keys(NotificationRequest),
        "message": _keys(NotificationRequest, "message_id"),
        "amm": _keys(NotificationRequest, "request_key"),
        "attempted": _keys(Attempt, "notification_id"),
    }


def _terms(samples: dict[str, list[str]]) -> dict[str, tuple[str | None, list[str]]]:
    """Return what people search for, with a word. Lists whose help text contains the word are searched for it, too."""
    keys, users, messages = chat_keys()[2:], samples["user"], samples["message"]
    return {
        "chat key": ("chat key", [chat_key(key) for key in keys]),
        "compressed key": (None, [key.hex() for key in keys]),
        "unknown key": (None, [chat_key(key) for key in chat_keys(prefix="nobody")]),
        "key hash": (None, users),
        "first digits of a key hash": ("key hash", [digits[:DIGITS] for digits in users]),
        "key hash of the heaviest user": ("key hash", samples["heaviest"]),
        "installation id": ("installation id", samples["installation"]),
        "pseudonym": ("pseudonym", _keys(Registration, "pseudonym", pseudonym__isnull=False)),
        "message id": ("status message", messages),
        "metadata message id": ("metadata message", samples["amm"]),
        "first digits of a message id": ("message", [digits[:DIGITS] for digits in messages]),
        "envelope hash": ("envelope", _keys(InboundEnvelope)),
        "dead letter": ("raw message", _keys(DeadLetter)),
        "nonsense": ("", ["nonsense", "0x04" + "zz" * 64, "12345"]),
    }


# Pages ----------------------------------------------------------------------------------------------------------------


def _pages(api: Client) -> list[Page]:
    """Return all pages."""
    samples = _samples()
    about_rows = [_about(samples, *row) for row in (*ABOUT_ROWS, *(("API", *row) for row in API))]
    second = [_second_page(api, name, samples[user][0]) for name, user in SECOND_PAGES.items()]
    return [*_overviews(), *_lists(), *_searches(_terms(samples)), *about_rows, *second, *_operations(), *_reports()]


def _gets(group: str, name: str, *urls: str) -> Page:
    return Page(group, name, [{"path": url} for url in urls])


def _posts(group: str, name: str, url: str, terms: Sequence[str]) -> Page:
    return Page(group, name, [{"path": url, "data": {"q": term}} for term in terms])


def _about(samples: dict[str, list[str]], group: str, name: str, view: str, text: str) -> Page:
    """Return a page about rows. Its text is the argument of its view, or with a `=` its query."""
    kinds = re.findall(r"{(\w+)}", text)
    count = max((len(samples[kind]) for kind in kinds), default=1)
    rows = zip(*(islice(cycle(samples[kind]), count) for kind in kinds), strict=True) if kinds else [()]
    texts = [text.format(**dict(zip(kinds, row, strict=True))) for row in rows]
    return _gets(group, name, *(_url(view, each) for each in texts))


def _url(view: str, text: str = "") -> str:
    if "=" in text:
        return f"{reverse(view)}?{text}"
    return reverse(view, args=[text] if text else [])


def _second_page(api: Client, name: str, user: str) -> Page:
    """Return the second page of a list, from the `next` of the first one."""
    following: str | None = api.get(_url(f"{name.removesuffix('s')}-list", f"key_hash={user}")).json()["next"]
    assert following, name
    return _gets("API", f"{name} by key hash, page 2", following.partition(HOST)[2])


def _overviews() -> Iterator[Page]:
    for name in OVERVIEWS:
        yield _gets("page", name, reverse(name))
    refresh = {"path": reverse("admin:index"), "headers": {"HX-Request": "true"}}
    yield Page("page", "dashboard, what refreshes itself", [refresh])
    for slug in REPORTS:
        yield _gets("page", f"report {slug}", _url("reports:report", slug))


def _admins() -> list[Any]:
    return list(admin.site._registry.values())  # noqa: SLF001 - there is no other list of all pages


def _view(page: Any, suffix: str) -> str:
    return f"admin:{page.opts.app_label}_{page.opts.model_name}_{suffix}"


def _lists() -> Iterator[Page]:
    """Yield the lists with their filters, and the pages of single rows."""
    for page in _admins():
        url, name = reverse(_view(page, "changelist")), page.model.__name__
        yield _gets("list", name, url)
        request = RequestFactory().get(url)
        request.user = User.objects.get(username="bench")
        changes = page.get_changelist_instance(request)
        if isinstance(page, FactAdmin) and changes.older_url:
            yield _gets("list", f"{name}, page 2", url + changes.older_url)
            yield _gets("list", f"{name}, far back", *_deep_urls(page.model, url, changes))
        for spec in changes.filter_specs:
            yield from _filtered(name, url, spec, changes)
        if isinstance(page, FactAdmin) and (keys := _keys(page.model)):
            yield _gets("row", name, *(_url(_view(page, "change"), key) for key in keys))


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


def _searches(terms: dict[str, tuple[str | None, list[str]]]) -> Iterator[Page]:
    """Yield searches in the box of every page, with the pages that they lead to, and then searches in the lists."""
    for kind, (_, values) in terms.items():
        yield _posts("find", kind, reverse("find"), values)
    for page in _admins():
        if isinstance(page, FactAdmin) and (help_text := page.search_help_text):
            box = reverse("search_facts", args=[page.opts.app_label, page.opts.model_name])
            for kind, (word, values) in terms.items():
                if word is not None and word in help_text.lower():
                    yield _posts("search", f"{page.model.__name__}, {kind}", box, values)


def _operations() -> Iterator[Page]:
    """Yield the confirmation page of each operation that applies, with as many rows as a list shows."""
    for page in _admins():
        for operation, form in getattr(page, "operations", {}).items():
            if keys := _keys(page.model):
                url, name = _url(_view(page, "operate"), operation), f"{page.model.__name__}, {form.label}"
                yield _gets("confirm", name, *(f"{url}?id={key}" for key in keys))
                yield _gets("confirm", f"{name}, many", f"{url}?{'&'.join(f'id={key}' for key in keys)}")
    for channel in Channel.objects.all():
        for name in ("pause", "trip", "resume", "close", "undo"):
            url = reverse("admin:notifications_channel_operate", args=[channel.pk, name])
            yield _gets("confirm", f"{channel}, {name}", url)


def _reports() -> Iterator[Page]:
    """Yield the reports in the API, with each of their filters."""
    days = sorted({str(day) for day in _sample(ErrorRate, "day")})
    for name, filters in API_OF_REPORTS.items():
        url = reverse(f"{name}-list")
        yield _gets("API", name, url)
        yield _gets("API", f"{name}, by day", *(f"{url}?day={day}" for day in days))
        yield _gets("API", f"{name}, between days", f"{url}?from_day={days[0]}&to_day={days[-1]}")
        yield _gets("API", f"{name}, largest page", f"{url}?page_size=9999")
        for each in filters.split():
            yield _gets("API", f"{name}, {each.replace('=', ' ')}", f"{url}?{each}")
        yield _gets("API", f"{name}, by day and all", f"{url}?day={days[0]}&{filters.replace(' ', '&')}")
