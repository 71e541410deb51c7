"""Why a push did not arrive: whether a user can be reached, who stopped pushes, and the words of a timeline."""

import re
from datetime import timedelta

import orjson
import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.postgres.search import SearchQuery
from django.db import connection, transaction
from django.db.models import F, Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from kit.admin.changes import changes_of
from kit.admin.operations import id_of
from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.table import current_rules, load_seed
from notifications.gateways.gorush.sending.push_api import read_response
from notifications.messages import Effect, Outcome, PushLimit, Result
from notifications.models import Channel, Halt, Notification
from notifications.rules.policy import Verdict, Wish
from pushserver.console import labels
from pushserver.console.accounts.accounts import WORDS
from pushserver.console.labels import CLASSES, EFFECTS, ENDS, LIMITS, VERDICTS, WISHES
from pushserver.console.support.story import staff_actions
from pushserver.models import ApiToken
from registrations.messages import TokenType
from registrations.models import Registration, Route
from tests.console.test_find import PUBLIC_KEY, make_story, words_of
from tests.console.test_operations import staff
from tests.rig import rows
from tests.rig.delivering import claimed, make_due, recorded
from waku_bridge.codec.keys import key_hash

pytestmark = pytest.mark.django_db
USER = f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/"
WHY = "too many complaints"
TOKEN = "f" * 40
APPLE = {"token_type": TokenType.APN, "app_topic": "im.status.ethereum", "device_token": TOKEN}


def page_of(row: Model) -> str:
    return f"/admin/{row._meta.app_label}/{row._meta.model_name}/{row.pk}/change/"


def operate(client: Client, row: Model, name: str, why: str) -> None:
    path = page_of(row).replace(f"{row.pk}/change", f"operate/{name}")
    client.post(path, {"id": id_of(row), "why": why, "confirmed": "1"})


def staff_actions_on(client: Client, page: str) -> str:
    return client.get(page).content.decode().partition('id="staff-actions"')[2].partition("</ul>")[0]


def test_pages_about_a_disabled_user_show_who_disabled_it_when_and_why() -> None:
    make_story()
    registration, device = Registration.objects.get(), rows.make_device()
    operator, support = staff("operator"), staff("support")
    assert labels.UNPROVEN in words_of(operator, USER)
    Route.objects.update(delivered_digest=F("address_digest"), last_success_at=timezone.now())
    assert "Can be reached: something was delivered" in words_of(operator, USER)

    for row in (registration, device):
        operate(operator, row, "disable", WHY)
    shown = re.compile(rf"Cannot be reached: disabled by operator0 \d+ s ago ?: {WHY}")
    for page in (page_of(registration), USER, page_of(registration.route), page_of(device)):
        assert shown.search(words_of(operator, page)), page
        assert "Disabled 1 " in staff_actions_on(operator, page)
    for_support = staff_actions_on(support, USER)
    assert WHY in for_support
    assert "href" not in for_support
    [entry] = re.findall(r'href="([^"]+)"', staff_actions_on(operator, USER))
    html = operator.get(entry.replace("&amp;", "&")).content.decode()
    assert WHY in html
    assert f'href="{page_of(registration)}"' in html


def note(user: User, row: Model, message: str, *, minutes: int = 0) -> LogEntry:
    return LogEntry.objects.create(
        user=user,
        content_type=ContentType.objects.get_for_model(row),
        object_id=id_of(row),
        object_repr=str(row),
        action_flag=CHANGE,
        change_message=message,
        action_time=timezone.now() - timedelta(minutes=minutes),
    )


def changes(client: Client, term: str) -> str:
    """Return the words of the list of changes, without a search for an empty term."""
    response = client.post("/admin/search/admin/logentry/", {"q": term}, follow=True)
    return response.content.decode().partition('id="result_list"')[2]


def test_an_operator_finds_a_change_by_word_person_and_user_and_reads_none_about_accounts() -> None:
    make_story()
    ann, bob = (User.objects.create_user(name, is_staff=True) for name in ("ann", "bob"))
    note(ann, Registration.objects.get(), f"Disabled 1 registration. Why: {WHY}")
    note(bob, rows.make_registration(), "Enabled 1 registration. Why: it was a mistake")
    note(bob, ann, "Changed password.")
    operator, mistake = staff("operator"), "it was a mistake"

    for term, found in [
        ("", {WHY, mistake}),
        ("complaints", {WHY}),
        ("BOB", {mistake}),
        (key_hash(PUBLIC_KEY).hex(), {WHY}),
        ("no-such-word", set()),
    ]:
        listed = changes(operator, term)
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
    assert f"Pushes wait: channel {channel} paused by ann 3 min ago : maintenance" in words_of(support, page)

    Registration.objects.update(enabled=False)
    assert "its user switched notifications off" in words_of(support, page)
    Registration.objects.update(state="unregistered", route=None)
    assert "Cannot be reached: it unregistered" in words_of(support, page)
    device = rows.make_device(state="expired", route=None, ended_at=timezone.now())
    assert "Cannot be reached: expired" in words_of(support, page_of(device))


def test_every_object_shows_the_actions_of_staff_on_it() -> None:
    client = staff("admin")
    admin = User.objects.get()
    channel = rows.make_channel((2, ""))
    envelope, token = rows.make_envelope(state="failed"), ApiToken.objects.create(
        name="a", digest=b"1" * 32, created_at=timezone.now()
    )  # fmt: skip
    for row in (channel, token, envelope):
        note(admin, row, f"Did it. Why: {WHY}")
    for path in (
        f"notifications/channel/{channel.pk}",
        f"pushserver/apitoken/{token.pk}",
        f"waku_bridge/inboundenvelope/{envelope.pk.hex()}",
    ):
        assert WHY in words_of(client, f"/admin/{path}/change/")


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


# Timelines ------------------------------------------------------------------------------------------------------------
def fail(notification: Notification, error: str) -> None:
    """Make an attempt fail with an error text of gorush."""
    now = timezone.now()
    with transaction.atomic():
        [held] = claimed(notification, now=now)
    body = {"success": "ok", "counts": 1, "logs": [{"type": "failed-push", "token": TOKEN, "error": error}]}
    result: Result = read_response(200, orjson.dumps(body), held.push, current_rules().rules)
    with transaction.atomic():
        recorded([(held, result)], now=now)


def test_staff_actions_stand_in_the_timeline_with_who_and_why() -> None:
    dropped, disabled = (make_due(at=timezone.now()) for _ in range(2))
    registration = Registration.objects.get(route=disabled.route)
    Notification.objects.filter(pk=disabled.pk).update(
        public_key_hash=registration.public_key_hash, installation_id=registration.installation_id
    )
    Notification.objects.filter(pk=dropped.pk).update(next_attempt_at=timezone.now() + timedelta(hours=1))
    operator = staff("operator")
    operate(operator, dropped, "now", "gorush is back")
    operate(operator, dropped, "drop", "as she asked")
    operate(operator, registration, "disable", WHY)

    shown = words_of(operator, f"/admin/timelines/{dropped.pk}/")
    assert "By operator0: notification: 1 notification due now. Why: gorush is back" in shown
    assert "Finished: withdrawn operator0 withdrew it. Dropped 1 notification. Why: as she asked" in shown
    page = f"/admin/timelines/{disabled.pk}/"
    assert "Finished: withdrawn operator0 withdrew it. Disabled 1 registration." in words_of(operator, page)
    html = operator.get(page).content.decode().partition('id="timeline"')[2]
    [entry] = set(re.findall(r'href="(/admin/admin/logentry/\d+/change/)"', html))
    assert WHY in words_of(operator, entry)


def test_the_error_text_leads_to_its_rule_and_its_class_is_explained() -> None:
    load_seed()
    known, unknown = (make_due(route=rows.make_registration(route=rows.make_route(**APPLE)).route) for _ in range(2))
    fail(known, "Unregistered")
    fail(unknown, f"teapot 17 has no {TOKEN}")
    support, page = staff("support"), f"/admin/timelines/{known.pk}/"

    assert f'href="{page}"' in support.get(page_of(known.attempts.get())).content.decode()
    assert "“unregistered”" in words_of(support, page)
    assert CLASSES["dead"] in words_of(support, page)
    rule = GatewayErrorRule.objects.get(code="Unregistered", platform="ios")
    assert f'href="{page_of(rule)}"' in support.get(page).content.decode()
    shown = words_of(support, f"/admin/timelines/{unknown.pk}/")
    assert "(unknown, “teapot <n> has no <token>”)" in shown
    assert TOKEN not in shown


def test_another_persons_actions_on_other_rows_are_no_part_of_the_story() -> None:
    notification = make_story(PUBLIC_KEY)
    note(User.objects.create_user("ann"), rows.make_notification(), "Dropped 1 notification. Why: another")
    assert "Why: another" not in words_of(staff("operator"), f"/admin/timelines/{notification.pk}/")


def test_every_word_has_a_meaning() -> None:
    assert set(ENDS) == {state for state in Notification.State if state.is_terminal}
    assert set(WISHES) == set(Wish)
    assert set(VERDICTS) == set(Verdict)
    assert set(LIMITS) == set(PushLimit)
    assert set(EFFECTS) == set(Effect)
    assert set(CLASSES) == set(Outcome)
