"""The page of one user: all rows about a key hash, and the operation that deletes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.decorators import permission_required
from django.db.models import F, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_safe

from kit.db.clock import database_now
from kit.db.partitions import UNDER_WAY
from notifications.models import BeyondLimit, DecidedAtOnce, Notification, NotificationRequest
from notifications.reports import unpack
from pushserver.console.notifications.admin import PUSH_CONTENT, request_timeline_url, timeline_url, type_name
from pushserver.console.pages import labels
from pushserver.console.pages.links import user_url
from pushserver.console.pages.menu import NOTIFICATIONS, USERS
from pushserver.console.pages.reach import NOBODY, reach_of
from pushserver.console.pages.story import why_decided
from pushserver.console.registrations.admin import RegistrationAdmin, registration_url
from pushserver.console.toolkit.columns import (
    NOTHING,
    age,
    as_digits,
    coarse_age,
    short_hash,
    state,
    word,
    yes_no,
)
from pushserver.console.toolkit.labels import label
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm
from pushserver.console.toolkit.related import FirstLine, Link, newest_changes
from pushserver.console.toolkit.search import KEY_HASH_DIGITS, hash_digits
from pushserver.console.toolkit.times import HOUR
from pushserver.console.waku import erasure
from pushserver.models import AccessRecord
from registrations.messages import name_of
from registrations.models import Grant, Registration, RegistrationEvent, TopicKey

# Limit of rows of each kind, so that a client with thousands of installations does not make this page slow.
MAX_ROWS = 50
# Rows that are shown without a click, on a phone as well.
OPEN_LINES, OPEN_INSTALLATIONS, OPEN_NOTIFICATIONS = 5, 3, 5


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
    more: Link | None = None

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
    sections = _sections(request, key_hash, registrations) if key_hash else []
    topic = TopicKey.objects.filter(name=object_id).first() if key_hash else None
    if not topic and not any(section.rows for section in sections):
        messages.warning(request, labels.NO_SUCH_USER)
        return HttpResponseRedirect(reverse("find"))
    may_forget = request.user.has_perm(ForgetUser.permission)
    context = {
        **admin.site.each_context(request),
        "title": "User",
        "key_hash": object_id,
        "topic": topic,
        "sections": sections,
        "reach": _reach(registrations),
        "open_lines": OPEN_LINES,
        "changes_url": f"{reverse('admin:admin_logentry_changelist')}?q={object_id}",
        "staff_actions": newest_changes({Registration: [str(row.pk) for row in registrations]}),
        "forget_url": reverse("forget_user", args=[object_id]) if may_forget else "",
    }
    return TemplateResponse(request, "console/user.html", context)


def _registrations(key_hash: bytes) -> list[Registration]:
    rows = Registration.objects.select_related("route").defer(*RegistrationAdmin.unread)
    return list(rows.filter(public_key_hash=key_hash).order_by("-updated_at")[:MAX_ROWS])


def _reach(registrations: Sequence[Registration]) -> list[tuple[str, FirstLine]]:
    """Return whether the user can be reached: a line for each installation, or one line for a single one."""
    lines = reach_of(registrations)
    if len(lines) < 2:
        return [("", line) for line in lines or [NOBODY]]
    return [(row.installation_id, line) for row, line in zip(registrations, lines, strict=True)]


def _sections(request: HttpRequest, key_hash: bytes, registrations: Sequence[Registration]) -> list[Section]:
    sections = [_installations(registrations), _grants(registrations), _history(registrations)]
    if request.user.has_perm(NOTIFICATIONS):
        sections[1:1] = [_notifications(key_hash), _decided(key_hash), _beyond(key_hash)]
    return sections


def _installations(registrations: Sequence[Registration]) -> Section:
    columns = (
        word("version"),
        state("state"),
        word("route__get_token_type_display"),
        word("route__app_topic"),
        _route,
        coarse_age("route__last_success_at", "last success", HOUR),
        age("route__failing_since"),
        yes_no("enabled"),
        age("updated_at"),
    )
    return Section(
        "Installations",
        [
            *("installation", "version", "state", "platform", "app", "route"),
            *("last success", "failing since", "notified", "last change"),
        ],
        [
            [
                _link(as_digits(row.installation_id), registration_url(row.pk)),
                *(column(row) for column in columns),
            ]
            for row in registrations
        ],
        labels.NO_INSTALLATIONS,
        open_rows=OPEN_INSTALLATIONS,
    )


def _route(registration: Registration) -> str:
    """Return the state of the route, and the reason if it is not active."""
    if registration.route is None:
        return NOTHING
    return format_html("{} {}", label(registration.route.state), registration.route.disabled_reason)


def _notifications(key_hash: bytes) -> Section:
    rows = Notification.objects.filter(public_key_hash=key_hash).defer(*PUSH_CONTENT)
    hex_digits = key_hash.hex()
    everything = f"{reverse('admin:notifications_notification_changelist')}?q={hex_digits}"
    return Section(
        "Newest notifications",
        ["notification", "type", "installation", "state", "report to the sender", "attempts", "age", "finished"],
        [
            [
                _link(f"{row.pk}", timeline_url(row.pk)),
                type_name(row.type),
                as_digits(row.installation_id),
                state("state")(row),
                state("report")(row),
                row.attempt_count,
                age("created_at")(row),
                age("finished_at")(row),
            ]
            for row in rows.order_by("-pk")[:MAX_ROWS]
        ],
        labels.NO_NOTIFICATIONS,
        open_rows=OPEN_NOTIFICATIONS,
        more=Link("All notifications", everything),
    )


def _decided(key_hash: bytes) -> Section:
    """Return the newest pushes to the user that were decided at once, and so have no row among the notifications."""
    rows = DecidedAtOnce.objects.filter(recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES])
    newest = rows.order_by("-decided_on", "-request")[:MAX_ROWS]
    places = list(newest.values_list("request", "position", "decided_on"))
    since = min((day for *_, day in places), default=UNDER_WAY)
    requests = NotificationRequest.objects.only("received_at", "decided").filter(ended_on__gte=since)
    found = requests.in_bulk({request_id for request_id, *_ in places})
    return Section(
        "Suppressed, refused or merged",
        ["decision", "why", "type", "age", "request"],
        [
            [
                label(decided.verdict),
                why_decided(decided),
                type_name(decided.type) if decided.type else NOTHING,
                age("received_at")(found[request_id]),
                _link("timeline", request_timeline_url(request_id)),
            ]
            for request_id, position, _ in places
            if request_id in found
            for decided in unpack(found[request_id].decided)
            if decided.position == position
        ],
        labels.NO_DECIDED,
        open_rows=OPEN_NOTIFICATIONS,
    )


def _beyond(key_hash: bytes) -> Section:
    """Return how many pushes to the user were beyond a limit, by day."""
    rows = BeyondLimit.objects.filter(recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES])
    by_day = rows.values_list("begin_at", "installation_id", "effect", "push_limit").annotate(pushes=Sum("count"))
    return Section(
        "Beyond limits",
        ["effect and limit", "pushes", "installation", "day"],
        [
            [labels.beyond(effect, limit), number, as_digits(installation_id), f"{day:%Y-%m-%d}"]
            for day, installation_id, effect, limit, number in by_day.order_by("-begin_at", "-pushes")[:MAX_ROWS]
        ],
        labels.NO_BEYOND,
        open_rows=OPEN_NOTIFICATIONS,
    )


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


def _history(registrations: Sequence[Registration]) -> Section:
    names = {row.pseudonym: row.installation_id for row in registrations if row.pseudonym}
    # The order is no plain column, so that PostgreSQL does not search the newest events of everybody for these.
    newest_first = ((F("at") + timedelta(0)).desc(), "-pk")
    rows = RegistrationEvent.objects.filter(pseudonym__in=names).order_by(*newest_first)[:MAX_ROWS]
    return Section(
        "Registration events",
        ["what", "installation", "platform", "app", "when"],
        [
            [
                state("kind")(row),
                as_digits(names[row.pseudonym]),
                name_of(row.token_type),
                row.app_topic or NOTHING,
                age("at")(row),
            ]
            for row in rows
        ],
        labels.NO_EVENTS,
    )


def _link(text: str, url: str) -> str:
    return format_html('<a href="{}">{}</a>', url, text)


class ForgetUser(Operation):
    """Delete everything about a user. The log records the deletion without the user."""

    label = "Forget this user"
    permission = "registrations.forget_registration"
    is_destructive = True

    def logged_as(self, row: Registration) -> tuple[str, str]:  # noqa: ARG002 - that is the point
        return "", "a forgotten user"

    def touched(self, rows: Sequence[Registration]) -> Iterable[str]:
        yield labels.FORGET_EFFECT.format(traces=erasure.find_traces(rows[0].public_key_hash))
        yield from labels.FORGET_EFFECTS

    def run(self, rows: Sequence[Registration], *, by: str) -> Done:  # noqa: ARG002 - the log entry names who
        key_hash = rows[0].public_key_hash
        found = erasure.forget(key_hash, now=database_now())
        AccessRecord.objects.filter(page="user", object_id=key_hash.hex()).update(object_id="forgotten")
        return Done(f"Forgot a user: {found}.") if found else Done(labels.FORGOTTEN_ALREADY, is_change=False)


def forget_user(request: HttpRequest, key_hash_hex: str) -> HttpResponse:
    """Confirm and run the operation "Forget this user"."""
    key_hash = key_hash_from(key_hash_hex)
    if key_hash is None:
        messages.warning(request, labels.NO_SUCH_USER)
        return HttpResponseRedirect(reverse("find"))
    page = OperationPage("Forget a user", request.path, back=user_url(key_hash_hex), after=reverse("find"))
    return confirm(request, ForgetUser, [Registration(public_key_hash=key_hash)], page)
