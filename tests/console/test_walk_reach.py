"""Reachability of a user, in a real browser: whether pushes reach the user, and if not, who stopped them,
when and why.
"""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.postgres.search import SearchQuery
from django.db import connection
from django.db.models import Model
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.sync_api import Page, expect

from kit.admin.changes import changes_of
from kit.admin.operations import id_of
from notifications.models import Channel, Halt
from pushserver.console.accounts.accounts import WORDS
from pushserver.console.support.story import staff_actions
from pushserver.models import ApiToken
from registrations.models import Registration
from tests import factories
from tests.console.test_browser import show
from tests.console.test_find import make_story, words_of
from tests.console.test_operations import staff
from tests.console.test_walk import PUBLIC_KEY, confirm, log_in
from waku_bridge.codec.keys import key_hash

pytestmark = pytest.mark.django_db(transaction=True)
USER = f"/admin/users/{key_hash(PUBLIC_KEY).hex()}/"
WHY = "too many complaints"


def page_of(registration: Registration) -> str:
    return f"/admin/registrations/registration/{registration.pk}/change/"


def disable(page: Page, registration: Registration) -> None:
    page.goto(page_of(registration))
    page.get_by_role("link", name="Disable", exact=True).click()
    confirm(page, "Disable", WHY)


def test_the_first_line_distinguishes_a_disabled_user_from_an_active_one(visitor: Page) -> None:
    make_story(PUBLIC_KEY)
    registration = Registration.objects.get()
    log_in(visitor, "operator")
    visitor.goto(USER)
    expect(visitor.locator("#first-line")).to_contain_text("Can be reached")

    disable(visitor, registration)
    shown = re.compile(rf"Cannot be reached: disabled by operator \d+ s ago: {WHY}")
    for path in (page_of(registration), USER):
        visitor.goto(path)
        expect(visitor.locator("#first-line")).to_have_text(shown)
        expect(visitor.locator("#staff-actions")).to_contain_text("Disabled 1 registration.")
    show(visitor, "user-disabled")
    visitor.goto(f"/admin/registrations/route/{registration.route_id}/change/")
    expect(visitor.locator("#first-line")).to_have_text(shown)
    expect(visitor.locator("#staff-actions")).to_contain_text(WHY)
    visitor.goto(USER)

    visitor.locator("#staff-actions").get_by_role("link").click()
    expect(visitor.locator("#main")).to_contain_text(WHY)
    visitor.get_by_role("link", name="the row itself").click()
    expect(visitor).to_have_url(re.compile(page_of(registration)))
    show(visitor, "registration-disabled")


def test_support_reads_who_and_why_and_no_log_of_everything(visitor: Page) -> None:
    make_story(PUBLIC_KEY)
    ann = User.objects.create_user("ann", is_staff=True)
    registration = Registration.objects.get()
    registration.route.__class__.objects.update(
        state="disabled", disabled_reason="operator", disabled_at=timezone.now() - timedelta(minutes=3)
    )
    note(ann, registration, f"Disabled 1 registration. Why: {WHY}", minutes=3)
    log_in(visitor, "support")

    visitor.goto(USER)
    expect(visitor.locator("#first-line")).to_have_text(f"Cannot be reached: disabled by ann 3 min ago: {WHY}")
    expect(visitor.locator("#staff-actions")).to_contain_text("ann: Disabled 1 registration")
    expect(visitor.locator("#staff-actions").get_by_role("link")).to_have_count(0)


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


def test_an_operator_finds_a_change_by_word_person_and_user_and_reads_none_about_accounts(visitor: Page) -> None:
    make_story(PUBLIC_KEY)
    ann, bob = (User.objects.create_user(name, is_staff=True) for name in ("ann", "bob"))
    registration = Registration.objects.get()
    note(ann, registration, f"Disabled 1 registration. Why: {WHY}")
    note(bob, factories.make_registration(), "Enabled 1 registration. Why: it was a mistake")
    note(bob, ann, "Changed password.")
    log_in(visitor, "operator")
    visitor.get_by_role("link", name="Changes").click()
    table = visitor.locator("#result_list")
    expect(table.locator("tbody tr")).to_have_count(2)

    for term, found in [("complaints", WHY), ("BOB", "a mistake"), (key_hash(PUBLIC_KEY).hex(), WHY)]:
        box = visitor.get_by_role("textbox", name="Search")
        box.fill(term)
        box.press("Enter")
        expect(table).to_contain_text(found)
        expect(table.locator("tbody tr")).to_have_count(1)
    visitor.get_by_role("textbox", name="Search").fill("no-such-word")
    visitor.get_by_role("textbox", name="Search").press("Enter")
    expect(visitor.locator("#main")).to_contain_text("No changes match")


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
    registration = factories.make_registration(route=factories.make_route(**route, **at))
    assert shown in words_of(staff("support"), page_of(registration))


def test_the_page_of_a_user_shows_a_halted_channel_and_a_muted_chat() -> None:
    registration = factories.make_registration()
    app = (registration.route.token_type, registration.route.app_topic)
    channel = factories.make_channel(app)
    factories.make_halt("paused", app, reason="maintenance", by="ann", since=timezone.now() - timedelta(minutes=3))
    support, page = staff("support"), page_of(registration)
    assert f"Pushes wait: channel {channel} paused by ann 3 min ago : maintenance" in words_of(support, page)

    Registration.objects.update(enabled=False)
    assert "its user switched notifications off" in words_of(support, page)
    Registration.objects.update(state="unregistered", route=None)
    assert "Cannot be reached: it unregistered" in words_of(support, page)


def test_an_xmpp_device_shows_who_disabled_it(visitor: Page) -> None:
    device = factories.make_device()
    log_in(visitor, "operator")
    page = f"/admin/xmpp_bridge/device/{device.pk}/change/"
    visitor.goto(page)
    visitor.get_by_role("link", name="Disable", exact=True).click()
    confirm(visitor, "Disable", WHY)

    visitor.goto(page)
    expect(visitor.locator("#first-line")).to_contain_text("Cannot be reached: disabled by operator")
    expect(visitor.locator("#first-line")).to_contain_text(WHY)


def test_every_object_shows_the_actions_of_staff_on_it() -> None:
    client = staff("admin")
    admin = User.objects.get()
    channel = factories.make_channel((2, ""))
    envelope, token = factories.make_envelope(state="failed"), ApiToken.objects.create(
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


@pytest.mark.nightly
def test_a_log_of_a_hundred_thousand_changes_is_searched_by_index(transactional_db: None) -> None:
    kind = ContentType.objects.get_for_model(Registration)
    ann = User.objects.create_user("ann")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_admin_log (action_time, object_id, object_repr, action_flag, change_message,"
            " content_type_id, user_id) SELECT now(), n::text, 'r', 2, 'Disabled 1. Why: reason ' || n, %s, %s"
            " FROM generate_series(1, 100000) AS n",
            [kind.pk, ann.pk],
        )
        cursor.execute("ANALYZE django_admin_log")
    one = changes_of(Registration, ["77"])[:10]
    subjects = {Registration: ["77"], Channel: ["1"], Halt: ["drained"]}
    with CaptureQueriesContext(connection) as queries:
        staff_actions(subjects, timezone.now() - timedelta(hours=1), None)
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {queries.captured_queries[-1]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan on django_admin_log" not in plan
    word = LogEntry.objects.alias(words=WORDS).filter(words=SearchQuery("77", config="simple"))
    assert "log_entry_subject" in one.explain()
    assert "log_entry_word" in word.explain()
