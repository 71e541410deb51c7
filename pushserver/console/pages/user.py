"""The page of one user by key hash: reach, preferences, what became of the pushes, and "Forget this user".

One list has everything that happened, the newest first. It is read from the newest rows of each table, by index, so
that a user with very many pushes does not make the page slow. The rule and the limit by which a push was suppressed,
merged or refused stand in its request; how many were beyond a limit is counted by day.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.decorators import permission_required
from django.db.models import F, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.http import require_safe

from kit.db.clock import DAY, HOUR, database_now
from kit.db.partitions import UNDER_WAY
from kit.display import counted
from notifications.models import BeyondLimit, DecidedAtOnce, Notification, NotificationRequest
from notifications.reports import unpack
from pushserver.console.models import AccessRecord
from pushserver.console.notifications.admin import PUSH_CONTENT, kind_of, request_timeline_url, timeline_url, type_name
from pushserver.console.pages import labels
from pushserver.console.pages.links import NOBODY, reach_of, user_url
from pushserver.console.pages.menu import NOTIFICATIONS, USERS
from pushserver.console.pages.story import why_decided
from pushserver.console.registrations.admin import LISTS, RegistrationAdmin, registration_url
from pushserver.console.toolkit.columns import NOTHING, age, as_digits, coarse_age, short_hash, state, word
from pushserver.console.toolkit.labels import Family, label
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm, done
from pushserver.console.toolkit.related import FirstLine, Link, change_url, list_url, newest_changes
from pushserver.console.toolkit.search import KEY_HASH_DIGITS, hash_digits
from pushserver.console.toolkit.times import relative
from pushserver.console.waku import erasure
from registrations.messages import name_of
from registrations.models import Grant, Registration, RegistrationEvent, TopicKey

# Limit of rows of each table, so that a client with thousands of installations does not make this page slow.
MAX_ROWS = 50
# The list is chosen from this many rows of each table.
MAX_READ = 100
# Rows that are shown without a click, on a phone as well.
OPEN_LINES, OPEN_INSTALLATIONS, OPEN_ENTRIES = 5, 3, 10
DAYS, MAX_COUNTED = 30, 2000


# The page -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page, newest rows first, with ``nothing`` as the text in place of an empty table.

    ``open_rows`` of its rows are shown at once and the others on demand, because on a phone each row is a card.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    nothing: str
    open_rows: int = 0

    @property
    def first(self) -> Sequence[Sequence[Any]]:
        return self.rows[: self.open_rows]

    @property
    def rest(self) -> Sequence[Sequence[Any]]:
        return self.rows[self.open_rows :]


def key_hash_from(text: str) -> bytes | None:
    """Return the key hash, or None when the text is not one."""
    return bytes.fromhex(text) if len(text) == KEY_HASH_DIGITS and hash_digits(text) == text else None


@require_safe
@permission_required(USERS, raise_exception=True)
def show_user(request: HttpRequest, object_id: str) -> HttpResponse:
    """Show all rows about a user."""
    key_hash = key_hash_from(object_id)
    registrations = _registrations(key_hash) if key_hash else []
    entries = _entries(request.user, key_hash, registrations) if key_hash else []
    topic = TopicKey.objects.filter(name=object_id).first() if key_hash else None
    if key_hash is None or not (topic or registrations or entries):
        messages.warning(request, labels.NO_SUCH_USER)
        return HttpResponseRedirect(reverse("find"))
    may_forget = request.user.has_perm(ForgetUser.permission)
    show = request.GET.get("show", "")
    context = {
        **admin.site.each_context(request),
        "title": "User",
        "key_hash": object_id,
        "topic": topic,
        "reach": _reach(registrations),
        "open_lines": OPEN_LINES,
        "installations": _installations(registrations),
        "days": _days(key_hash) if request.user.has_perm(NOTIFICATIONS) else None,
        "show": show,
        "groups": _numbers(entries),
        "feed": _feed(request.user, [entry for entry in entries if show in {"", entry.group}]),
        "more": list(_more(request.user, object_id)),
        "grants": _grants(registrations),
        "forget_url": reverse("forget_user", args=[object_id]) if may_forget else "",
    }
    return TemplateResponse(request, "console/user.html", context)


def _registrations(key_hash: bytes) -> list[Registration]:
    rows = Registration.objects.select_related("route").defer(*RegistrationAdmin.unread)
    rows = rows.annotate(**{f"{name}_length": F(f"{name}__len") for name in LISTS})
    return list(rows.filter(public_key_hash=key_hash).order_by("-updated_at")[:MAX_ROWS])


def _reach(registrations: Sequence[Registration]) -> list[tuple[str, FirstLine]]:
    """Return whether the user can be reached: a line for each installation, or one line for a single one."""
    lines = reach_of(registrations)
    if len(lines) < 2:
        return [("", line) for line in lines or [NOBODY]]
    return [(row.installation_id, line) for row, line in zip(registrations, lines, strict=True)]


def _installations(registrations: Sequence[Registration]) -> Section:
    columns = {
        "preferences": _preferences,
        "version": word("version"),
        "state": state("state"),
        "platform": word("route__get_token_type_display"),
        "app": word("route__app_topic"),
        "route": _route,
        "last success": coarse_age("route__last_success_at", "last success", HOUR),
        "failing since": age("route__failing_since"),
        "last change": age("updated_at"),
    }
    return Section(
        "Installations",
        ["installation", *columns],
        [
            [_link(as_digits(row.installation_id), registration_url(row.pk)), *(show(row) for show in columns.values())]
            for row in registrations
        ],
        labels.NO_INSTALLATIONS,
        open_rows=OPEN_INSTALLATIONS,
    )


def _preferences(row: Any) -> str:
    """Return the wishes of an installation. Lists are counted, because staff must not read whom a user blocks."""
    wishes = {"contacts only": row.allow_from_contacts_only, "no mentions": row.block_mentions}
    lengths = {words: getattr(row, f"{name}_length") for name, words in LISTS.items()}
    listed = [f"{words}: {length}" for words, length in lengths.items() if length]
    return "; ".join(
        ["notified" if row.enabled else "not notified", *(w for w, is_so in wishes.items() if is_so), *listed]
    )


def _route(registration: Registration) -> str:
    """Return the state of the route, and the reason if it is not active."""
    if registration.route is None:
        return NOTHING
    return format_html("{} {}", label(registration.route.state), registration.route.disabled_reason)


def _grants(registrations: Sequence[Registration]) -> Section:
    names = {row.pk: row.installation_id for row in registrations}
    rows = Grant.objects.filter(registration__in=names).order_by("-granted_at")[:MAX_ROWS]
    return Section(
        "Grants",
        ["installation", "server", "granted"],
        [
            [as_digits(names[row.registration_id]), short_hash("server_public_key")(row), age("granted_at")(row)]
            for row in rows.only("registration_id", "server_public_key", "granted_at")
        ],
        labels.NO_GRANTS,
    )


def _more(user: Any, key_hash_hex: str) -> Iterator[Link]:
    if user.has_perm(NOTIFICATIONS):
        yield Link("All notifications", list_url("notifications_notification", q=key_hash_hex))
    if user.has_perm("admin.view_logentry"):
        yield Link("All changes", list_url("admin_logentry", q=key_hash_hex))


def _link(text: str, url: str) -> str:
    return format_html('<a href="{}">{}</a>', url, text)


# What happened --------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """Something that happened at a time. ``group`` is its filter, ``word`` its state, and ``row`` what has the rest."""

    at: datetime
    group: str
    word: str
    row: Any


_WORDS = {
    "waiting": "pending in_flight retrying ambiguous",
    "delivered": "delivered shortened",
    "failed": "dead_token undeliverable unconfirmed expired withdrawn",
    "suppressed": "suppressed duplicate",
    "merged": "coalesced merged",
    "refused": "refused overloaded wrong_token not_registered",
}
GROUPS = {word: group for group, words in _WORDS.items() for word in words.split()}
STAFF, REGISTRATIONS = "staff", "registrations"


def _entries(user: Any, key_hash: bytes, registrations: Sequence[Registration]) -> list[Entry]:
    """Return what happened to a user, the newest first, as far as this staff member may see it."""
    found = [*_events(registrations), *_acted(registrations)]
    if user.has_perm(NOTIFICATIONS):
        found += [*_notifications(key_hash), *_decided(key_hash), *_beyond(key_hash)]
    return sorted(found, key=lambda entry: entry.at, reverse=True)


def _notifications(key_hash: bytes) -> Iterator[Entry]:
    rows = Notification.objects.filter(public_key_hash=key_hash).defer(*PUSH_CONTENT).order_by("-pk")
    for row in rows[:MAX_READ]:
        yield Entry(row.created_at, GROUPS[row.state], row.state, row)


class _Decided(NamedTuple):
    """A push that was decided at once: why, its type, and its request."""

    why: str
    type: int
    request_id: int


def _decided(key_hash: bytes) -> Iterator[Entry]:
    """Yield the newest pushes to the user that were decided at once, and so have no row among the notifications."""
    rows = DecidedAtOnce.objects.filter(recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES])
    newest = rows.order_by("-decided_on", "-request")[:MAX_READ]
    places = list(newest.values_list("request", "position", "decided_on"))
    since = min((day for *_, day in places), default=UNDER_WAY)
    requests = NotificationRequest.objects.only("received_at", "decided").filter(ended_on__gte=since)
    found = requests.in_bulk({request_id for request_id, *_ in places})
    for request_id, position, _ in places:
        for one in unpack(found[request_id].decided) if request_id in found else ():
            if one.position == position:
                row = _Decided(why_decided(one), one.type, request_id)
                yield Entry(found[request_id].received_at, GROUPS[one.verdict], one.verdict, row)


def _beyond(key_hash: bytes) -> Iterator[Entry]:
    """Yield how many pushes to the user were beyond a limit, by day, each at the end of its day or now."""
    rows = BeyondLimit.objects.filter(recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES])
    by_day = rows.values("begin_at", "installation_id", "effect", "push_limit").annotate(pushes=Sum("count"))
    now = timezone.now()
    for row in by_day.order_by("-begin_at", "-pushes")[:MAX_ROWS]:
        yield Entry(min(row["begin_at"] + DAY, now), GROUPS.get(row["effect"], row["effect"]), row["effect"], row)


def _events(registrations: Sequence[Registration]) -> Iterator[Entry]:
    names = {row.pseudonym: row.installation_id for row in registrations if row.pseudonym}
    # The order is no plain column, so that PostgreSQL does not search the newest events of everybody for these.
    newest_first = ((F("at") + timedelta(0)).desc(), "-pk")
    rows = RegistrationEvent.objects.filter(pseudonym__in=names).order_by(*newest_first)
    for row in rows[:MAX_ROWS]:
        yield Entry(row.at, REGISTRATIONS, row.kind, (row, names[row.pseudonym]))


def _acted(registrations: Sequence[Registration]) -> Iterator[Entry]:
    for entry in newest_changes({Registration: [str(row.pk) for row in registrations]}):
        yield Entry(entry.action_time, STAFF, STAFF, entry)


def _numbers(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the filters, each with the number of its entries."""
    found = Counter(entry.group for entry in entries)
    return {name: found[name] for name in dict.fromkeys([*_WORDS, REGISTRATIONS, STAFF, *found]) if found[name]}


def _feed(user: Any, entries: Sequence[Entry]) -> Section:
    headers = ["when", "what", "detail", "installation"]
    may_read = user.has_perm("admin.view_logentry")
    rows = []
    for entry in entries[:MAX_ROWS]:
        detail, installation = _details(entry.row, may_read=may_read)
        when = f"{entry.row['begin_at']:%Y-%m-%d}" if isinstance(entry.row, dict) else relative(entry.at)
        rows.append([when, label(entry.word), format_html("<span>{}</span>", detail), installation])
    return Section("What happened", headers, rows, labels.NOTHING_HAPPENED, open_rows=OPEN_ENTRIES)


def _details(row: Any, *, may_read: bool) -> tuple[str, str]:
    """Return the detail of what happened, and the installation."""
    match row:
        case Notification():
            name = _link(f"notification {row.pk}", timeline_url(row.pk))
            report = f"; report to the sender: {row.report}" if row.report else ""
            ended = format_html("; finished {}", relative(row.finished_at)) if row.finished_at else ""
            tries = counted(row.attempt_count, "attempt") if row.attempt_count else "no attempt"
            detail = format_html("{}: {}, {}{}{}", name, kind_of(row), tries, report, ended)
            return detail, as_digits(row.installation_id)
        case _Decided():
            about = f" {type_name(row.type).capitalize()}." if row.type else ""
            timeline = _link("Timeline", request_timeline_url(row.request_id))
            return format_html("{}{} {}", row.why, about, timeline), NOTHING
        case LogEntry():
            message = row.get_change_message() or "changed"
            what = _link(message, change_url(row)) if may_read else message
            return format_html("{}: {}", row.user.get_username(), what), NOTHING
        case (RegistrationEvent() as event, installation_id):
            return ", ".join(filter(None, [name_of(event.token_type), event.app_topic])), as_digits(installation_id)
    pushes = counted(row["pushes"], "push", "pushes")
    return f"{labels.beyond(row['effect'], row['push_limit'])}: {pushes}", as_digits(row["installation_id"])


# Thirty days ----------------------------------------------------------------------------------------------------------


class Day(NamedTuple):
    """The pushes of a UTC day, with the heights of their bars in per cent of the fullest day."""

    text: str
    bars: Sequence[tuple[Family, float]]


def _days(key_hash: bytes) -> dict[str, Any]:
    """Return what became of the pushes of the last thirty days, of the newest of them if there were very many."""
    today = timezone.now().date()
    since = today - timedelta(days=DAYS - 1)
    rows = Notification.objects.filter(public_key_hash=key_hash).order_by("-pk")
    made = rows.values_list("created_at", "state")[:MAX_COUNTED]
    counts = Counter((at.date(), OUTCOMES[GROUPS[state]]) for at, state in made)
    decided = DecidedAtOnce.objects.filter(recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES], decided_on__gte=since)
    held = decided.order_by("-decided_on", "-request").values_list("decided_on", flat=True)[:MAX_COUNTED]
    counts.update((day, "not sent") for day in held)
    days = [since + timedelta(days=number) for number in range(DAYS)]
    fullest = max(sum(counts[day, name] for name in BARS) for day in days) or 1
    total = {name: sum(counts[day, name] for day in days) for name in BARS}
    return {
        "total": [(f"{number:,} {name}", BARS[name]) for name, number in total.items() if number],
        "is_cut": MAX_COUNTED in {len(made), len(held)},
        "bars": [
            Day(
                f"{day:%Y-%m-%d}: {_counted({name: counts[day, name] for name in BARS})}",
                [(family, 100 * counts[day, name] / fullest) for name, family in BARS.items() if counts[day, name]],
            )
            for day in days
        ],
    }


BARS = {"delivered": Family.GOOD, "failed": Family.BAD, "not sent": Family.QUIET, "waiting": Family.WAITING}
OUTCOMES = {"merged": "not sent"} | {name: name for name in BARS}


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "none"


# Forget this user ----------------------------------------------------------------------------------------------------


class ForgetUser(Operation):
    """Delete everything about a user. The log records the deletion without the user."""

    label = "Forget this user"
    permission = "registrations.forget_registration"
    is_destructive = True
    effects = (
        "Removed for good: {traces}. This cannot be undone.",
        "Senders get the answer that nobody is registered. A push that is being sent at this moment may still arrive.",
        "Not even the version of a registration is kept: a repeated old registration counts as new.",
    )

    def logged_as(self, row: Registration) -> tuple[str, str]:  # noqa: ARG002 - that is the point
        return "", "a forgotten user"

    def facts(self, rows: Sequence[Registration]) -> Mapping[str, object]:
        return {"traces": erasure.find_traces(rows[0].public_key_hash)}

    def run(self, rows: Sequence[Registration], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        key_hash = rows[0].public_key_hash
        found = erasure.forget(key_hash, now=database_now())
        AccessRecord.objects.filter(page="user", object_id=key_hash.hex()).update(object_id="forgotten")
        return done(bool(found), f"Forgot a user: {found}.", "No such user was stored any more.")


def forget_user(request: HttpRequest, key_hash_hex: str) -> HttpResponse:
    """Confirm and run the operation "Forget this user"."""
    key_hash = key_hash_from(key_hash_hex)
    if key_hash is None:
        messages.warning(request, labels.NO_SUCH_USER)
        return HttpResponseRedirect(reverse("find"))
    page = OperationPage("Forget a user", request.path, back=user_url(key_hash_hex), after=reverse("find"))
    return confirm(request, ForgetUser, [Registration(public_key_hash=key_hash)], page)
