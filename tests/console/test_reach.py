"""Why a push did not arrive: whether a user can be reached, who stopped pushes, and the log of what staff did."""

import re
from datetime import datetime, timedelta

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.postgres.search import SearchQuery
from django.db import connection
from django.db.models import F, Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from notifications.messages import Effect, Outcome, PushLimit
from notifications.models import Channel, Halt, Notification
from notifications.policy import Verdict, Wish
from pushserver.console.models import ApiToken
from pushserver.console.pages import labels
from pushserver.console.pages.drain import DRAIN_ID
from pushserver.console.pages.labels import CLASSES, EFFECTS, ENDS, LIMITS, VERDICTS, WISHES
from pushserver.console.pages.staff import WORDS
from pushserver.console.pages.story import staff_actions
from pushserver.console.toolkit.operations import id_of
from pushserver.console.toolkit.related import changes_of
from registrations.models import Registration, Route
from tests.console.reading import HEROINE, USER_PAGE, staff, words_of
from tests.rig import rows

pytestmark = pytest.mark.django_db
WHY = "too many complaints"


def page_of(row: Model) -> str:
    return f"/admin/{row._meta.app_label}/{row._meta.model_name}/{id_of(row)}/change/"


def operate(client: Client, row: Model, name: str, why: str) -> None:
    path = f"/admin/{row._meta.app_label}/{row._meta.model_name}/operate/{name}/"
    client.post(path, {"id": id_of(row), "why": why, "confirmed": "1"})


def staff_actions_on(client: Client, page: str) -> str:
    if page == USER_PAGE:
        html = client.get(f"{page}?show=staff").content.decode()
        return html.partition("What happened</h2>")[2].partition("</table>")[0]
    return client.get(page).content.decode().partition('id="staff-actions"')[2].partition("</ul>")[0]


def test_pages_about_a_disabled_user_show_who_disabled_it_when_and_why() -> None:
    registration, device = rows.make_delivered(HEROINE).route.registration, rows.make_device()
    operator, support = staff("operator"), staff("support")
    assert labels.UNPROVEN in words_of(operator, USER_PAGE)
    Route.objects.update(delivered_digest=F("address_digest"), last_success_at=timezone.now())
    assert "Can be reached: something was delivered" in words_of(operator, USER_PAGE)

    for row in (registration, device):
        operate(operator, row, "disable", WHY)
    shown = re.compile(rf"Cannot be reached: disabled by operator0 \d+ s ago ?: {WHY}")
    for page in (page_of(registration), USER_PAGE, page_of(registration.route), page_of(device)):
        assert shown.search(words_of(operator, page)), page
        assert "Disabled 1 " in staff_actions_on(operator, page)
    for_support = staff_actions_on(support, USER_PAGE)
    assert WHY in for_support
    assert "href" not in for_support
    [entry] = re.findall(r'href="([^"]+)"', staff_actions_on(operator, USER_PAGE))
    html = operator.get(entry.replace("&amp;", "&")).content.decode()
    assert WHY in html
    assert f'href="{page_of(registration)}"' in html


def note(user: User, row: Model, message: str, *, at: datetime | None = None) -> None:
    """Log what somebody did to a row, or to delivery as a whole, which a halt without a row stands for."""
    object_id = DRAIN_ID if isinstance(row, Halt) else id_of(row)
    about = {"content_type": ContentType.objects.get_for_model(row), "object_id": object_id, "object_repr": str(row)}
    action = {"action_flag": CHANGE, "change_message": message, "action_time": at or timezone.now()}
    LogEntry.objects.create(user=user, **about, **action)


def test_an_operator_finds_a_change_by_word_person_and_user_and_reads_none_about_accounts() -> None:
    registration = rows.make_registration(public_key_hash=HEROINE)
    ann, bob = (User.objects.create_user(name, is_staff=True) for name in ("ann", "bob"))
    note(ann, registration, f"Disabled 1 registration. Why: {WHY}")
    note(bob, rows.make_registration(), "Enabled 1 registration. Why: it was a mistake")
    note(bob, ann, "Changed password.")
    operator, mistake = staff("operator"), "it was a mistake"
    finds = {"": {WHY, mistake}, "complaints": {WHY}, "BOB": {mistake}, HEROINE.hex(): {WHY}, "no-such-word": set()}
    for term, found in finds.items():
        response = operator.post("/admin/search/admin/logentry/", {"q": term}, follow=True)
        listed = response.content.decode().partition('id="result_list"')[2]
        assert {words for words in (WHY, mistake, "Changed password") if words in listed} == found, term


@pytest.mark.parametrize(
    ("route", "shown"),
    [
        ({"state": "disabled", "disabled_reason": "Unregistered"}, "because its token is dead (Unregistered)"),
        ({"state": "disabled", "disabled_reason": "failing"}, "every push had failed for too long"),
        ({"state": "disabled", "disabled_reason": "operator"}, "disabled by an operator 3 min ago"),
        ({"failing_since": timezone.now() - timedelta(hours=2)}, "Pushes fail: the first failure was 2 h ago"),
    ],
)
def test_the_page_of_a_user_names_the_reason_that_stops_pushes(route: dict[str, object], shown: str) -> None:
    at = {"disabled_at": timezone.now() - timedelta(minutes=3)} if "state" in route else {}
    registration = rows.make_registration(route=rows.make_route(**route, **at))
    assert shown in words_of(staff("support"), page_of(registration))


def test_the_page_of_a_user_shows_a_halted_channel_and_a_muted_chat() -> None:
    registration = rows.make_registration()
    app = (registration.route.token_type, registration.route.app_topic)
    channel = rows.make_channel(app)
    rows.make_halt("paused", app, reason="maintenance", by="ann", since=timezone.now() - timedelta(minutes=3))
    support, page = staff("support"), page_of(registration)
    assert f"Pushes wait: app {channel} paused by ann 3 min ago : maintenance" in words_of(support, page)

    Registration.objects.update(enabled=False)
    assert "its user switched notifications off" in words_of(support, page)
    Registration.objects.update(state="unregistered", route=None)
    assert "Cannot be reached: it unregistered" in words_of(support, page)
    device = rows.make_device(state="expired", route=None, ended_at=timezone.now())
    assert "Cannot be reached: expired" in words_of(support, page_of(device))


def test_every_object_shows_the_actions_of_staff_on_it() -> None:
    client, token = staff("admin"), rows.make(ApiToken, name="a")
    for row in (rows.make_channel((2, "")), token, rows.make_envelope(state="failed")):
        note(User.objects.get(), row, f"Did it. Why: {WHY}")
        assert WHY in words_of(client, page_of(row))


def test_the_log_of_changes_is_searched_by_index() -> None:
    """Forbid sequential scans. PostgreSQL then plans one only where no index can serve."""
    word = LogEntry.objects.alias(words=WORDS).filter(words=SearchQuery("77", config="simple"))
    subjects = {Registration: ["77"], Channel: ["1"], Halt: ["drained"]}
    with CaptureQueriesContext(connection) as queries:
        staff_actions(subjects, timezone.now() - timedelta(hours=1), None)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {queries.captured_queries[-1]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan on django_admin_log" not in plan
    assert "log_entry_subject" in changes_of(Registration, ["77"])[:10].explain()
    assert "log_entry_word" in word.explain()


def test_every_word_has_a_meaning() -> None:
    assert set(ENDS) == {state for state in Notification.State if state.is_terminal}
    for meanings, words in ((WISHES, Wish), (VERDICTS, Verdict), (LIMITS, PushLimit), (EFFECTS, Effect)):
        assert set(meanings) == set(words)
    assert set(CLASSES) == set(Outcome)
