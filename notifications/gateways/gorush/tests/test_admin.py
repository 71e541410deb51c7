"""Tests of the pages of error rules: permissions, refusals, and the log entries."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from notifications.gateways.gorush.models import GatewayErrorRule, load_shipped
from tests.rig import rows

pytestmark = pytest.mark.django_db
RULES = "/admin/notifications/gatewayerrorrule/"
UNKNOWN = "/admin/notifications/unknowngatewayerror/"
FORM = {
    "position": 2000,
    "platform": "ios",
    "match": "contains",
    "text": "Brand new",
    "outcome": "transient",
    "code": "brand_new",
    "retry_base_seconds": 0,
    "is_enabled": "on",
    "remark": "",
}


@pytest.fixture(autouse=True)
def seeded(db: None) -> None:
    load_shipped()


def rule(text: str) -> GatewayErrorRule:
    return GatewayErrorRule.objects.get(text=text, platform="ios")


def form_of(row: GatewayErrorRule) -> dict[str, object]:
    values = {name: getattr(row, name) for name in FORM}
    values["is_guarded"] = row.is_guarded
    return {name: value for name, value in values.items() if value is not False}


def test_the_list_shows_every_rule_in_the_order_in_which_they_are_tried(admin_client: Client) -> None:
    first = admin_client.get(RULES)
    numbers = first.context["cl"].paginator.page_range
    pages = [admin_client.get(RULES, {"p": number}).content.decode() for number in numbers]
    shown = [pk for html in pages for pk in re.findall(rf'href="{RULES}(\d+)/change/', html)]
    assert [int(pk) for pk in shown] == list(GatewayErrorRule.objects.values_list("pk", flat=True))
    assert "(no text)" in "".join(pages)
    assert all(f'href="{RULES}try/"' in page for page in pages)


def test_a_rule_is_added_once_and_the_log_says_what_it_holds(admin_client: Client, admin_user: User) -> None:
    first, second = (admin_client.post(f"{RULES}add/", FORM) for _ in range(2))  # a double click
    assert (first.status_code, second.status_code) == (302, 200)
    assert "There is already a rule for this text" in second.content.decode()
    added = rule("Brand new")
    assert (added.origin, added.seed_key) == ("operator", None)
    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag, entry.object_id) == (admin_user, ADDITION, str(added.pk))
    assert "text: 'Brand new', outcome: 'transient', code: 'brand_new'" in entry.get_change_message()


def test_a_rule_is_changed_and_the_log_says_from_what_to_what(admin_client: Client, admin_user: User) -> None:
    dead = rule("Unregistered")
    response = admin_client.post(f"{RULES}{dead.pk}/change/", form_of(dead) | {"outcome": "transient", "remark": "?"})
    assert response.status_code == 302
    changed = rule("Unregistered")
    assert (changed.outcome, changed.origin) == ("transient", "operator")
    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag) == (admin_user, CHANGE)
    assert entry.get_change_message() == "outcome: 'dead' → 'transient', remark: '410' → '?'"
    assert "&#x27;dead&#x27; → &#x27;transient&#x27;" in admin_client.get(f"{RULES}{dead.pk}/history/").content.decode()


def as_shown(client: Client, url: str) -> dict[str, str]:
    """Return the values that a browser would send for a page that nobody changed."""
    html = client.get(url).content.decode().partition('id="main"')[2]
    inputs = re.findall(r"<input[^>]*>", html)
    sent = {}
    for tag in inputs:
        facts = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if "name" in facts and (facts.get("type") != "checkbox" or re.search(r"\schecked[\s>]", tag)):
            sent[facts["name"]] = unescape(facts.get("value", "on"))
    for name, options in re.findall(r'<select[^>]*name="([^"]+)".*?>(.*?)</select>', html, re.DOTALL):
        sent[name] = (re.findall(r'value="([^"]*)" selected', options) or [""])[0]
    return {name: value for name, value in sent.items() if not name.startswith("_")} | {"_save": "Save"}


def test_the_second_of_two_operators_who_edit_a_rule_sees_the_conflict(admin_client: Client) -> None:
    dead = rule("Unregistered")
    url = f"{RULES}{dead.pk}/change/"
    first, second = as_shown(admin_client, url), as_shown(admin_client, url)
    first |= {"position": "3000", "confirmed": "on", "why": "too early"}
    assert second.pop("is_enabled") == "on"
    admin_client.post(url, first)
    response = admin_client.post(url, second)
    assert "Somebody else has changed this value to: 3000. Nothing was saved." in response.content.decode()
    assert (rule("Unregistered").position, rule("Unregistered").is_enabled) == (3000, True)
    assert LogEntry.objects.count() == 1


def test_saving_a_page_as_it_was_shown_undoes_nothing_and_leaves_the_rule_with_the_file(admin_client: Client) -> None:
    page = f"{RULES}{rule('Unregistered').pk}/change/"
    shown = as_shown(admin_client, page)
    GatewayErrorRule.objects.filter(text="Unregistered").update(position=7)
    assert admin_client.post(page, shown).status_code == 302
    assert (rule("Unregistered").position, rule("Unregistered").origin) == (7, "seed")
    assert LogEntry.objects.get().get_change_message() == "nothing changed"


def test_own_rules_are_deleted_with_an_entry_each_that_says_what_it_held(admin_client: Client) -> None:
    for number in range(3):
        admin_client.post(f"{RULES}add/", FORM | {"text": f"new {number}"})
    own = GatewayErrorRule.objects.filter(origin="operator").order_by("pk")
    chosen = {"action": "delete_selected", "_selected_action": [row.pk for row in own[1:]], "post": "yes"}
    assert admin_client.post(f"{RULES}{own[0].pk}/delete/", {"post": "yes"}).status_code == 302
    admin_client.post(RULES, chosen)
    assert not own.exists()
    held = sorted(entry.get_change_message() for entry in LogEntry.objects.filter(action_flag=DELETION))
    assert ["text: 'new 0', outcome: 'transient'" in held[0], len(set(held))] == [True, 3]


def test_without_the_permission_to_view_no_error_text_is_tried(client: Client) -> None:
    client.force_login(User.objects.create_user("support", is_staff=True))
    assert client.get(f"{RULES}try/").status_code == 403


def test_a_rule_of_the_file_can_be_switched_off_but_not_deleted(admin_client: Client) -> None:
    """It would come back with the next load."""
    dead = rule("Unregistered")
    assert admin_client.post(f"{RULES}{dead.pk}/delete/", {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [dead.pk], "post": "yes"}
    assert admin_client.post(RULES, chosen).status_code == 403
    assert rule("Unregistered") == dead


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ""},
        {"text": "ab"},
        {"text": "       x       "},
        {"text": "is gone", "outcome": "dead"},  # a part, and too short for a deadly rule
        {"text": "", "match": "exact", "outcome": "dead"},
        {"text": "a\x00bcd"},
        {"is_guarded": "on"},
        {"outcome": "delivered"},
        {"outcome": "payload", "retry_base_seconds": 60},
        {"retry_base_seconds": 86_401},
        {"code": "two words"},
        {"code": ""},
        {"match": "exact", "text": "Unregistered"},  # there is such a rule
        {"platform": "huawei"},
        {"position": -1},
    ],
)
def test_a_contradictory_rule_is_refused(admin_client: Client, wrong: dict[str, object]) -> None:
    response = admin_client.post(f"{RULES}add/", FORM | wrong)
    assert response.status_code == 200
    assert response.context["errors"]
    assert not GatewayErrorRule.objects.filter(origin="operator").exists()


@pytest.mark.parametrize("right", [{"text": "", "match": "exact", "platform": "android"}, {"text": "EOX"}])
def test_a_consistent_rule_is_accepted(admin_client: Client, right: dict[str, object]) -> None:
    assert admin_client.post(f"{RULES}add/", FORM | right).status_code == 302


@pytest.mark.parametrize(
    ("platform", "error", "verdict"),
    [
        ("ios", "Unregistered", "exact 'Unregistered' → dead"),
        ("android", "Unregistered", "No rule matches this text"),
        ("ios", "", "exact '' → transient (empty)"),
        ("ios", 'Post "https://api.push.apple.com/3/device/x509:": EOF', "contains 'EOF' → ambiguous"),
        ("android", "max capacity reached", "any: contains"),
    ],
)
def test_an_error_text_can_be_tried(admin_client: Client, platform: str, error: str, verdict: str) -> None:
    def tried() -> str:
        response = admin_client.post(f"{RULES}try/", {"platform": platform, "error": error})
        return unescape(response.content.decode())

    assert verdict in tried()
    GatewayErrorRule.objects.update(is_enabled=False)
    assert "No rule matches this text" in tried()
    assert not LogEntry.objects.exists()


def test_an_unknown_error_links_to_a_rule_that_matches_it(admin_client: Client) -> None:
    unknown = rows.make_unknown_error(platform="ios", signature="teapot <n>: <token> is short & stout")
    html = admin_client.get(UNKNOWN).content.decode()
    assert "transient (unknown)" in html
    [url] = set(re.findall(rf'href="({RULES}add/[^"]+)"', html))
    page = unescape(admin_client.get(unescape(url)).content.decode())
    assert 'name="text" value="is short & stout"' in page
    assert '<option value="ios" selected>' in page
    last = GatewayErrorRule.objects.order_by("-position")[0]
    assert f'name="position" value="{last.position + 10}"' in page
    assert f"{RULES}add/" in admin_client.get(f"{UNKNOWN}{unknown.pk}/change/").content.decode()


# Harmful rules --------------------------------------------------------------------------------------------------------
DEADLY = FORM | {"outcome": "dead", "text": "device is gone", "code": "gone"}


def fail(error: str, *, token_type: int = 1, ago: timedelta = timedelta(hours=1), **fields: object) -> None:
    at = timezone.now() - ago
    route = fields.pop("route", None) or rows.make_route()
    notification = rows.make_notification(at=at, route=route)
    rows.make_attempt(
        notification, token_type=token_type, error=error, outcome="transient", code="unknown", started_at=at, **fields
    )


def test_a_deadly_rule_is_saved_only_with_a_reason_after_a_preview(admin_client: Client) -> None:
    route = rows.make_route()
    for number in (1, 2):
        for _ in range(number):
            fail(f"the device is gone: <n> of {number}", route=route)
    fail("the device is gone for good")
    fail("the device is gone", token_type=2)
    fail("the device is gone", ago=timedelta(hours=25))
    fail("connection refused, as the device is gone")  # which an earlier rule decides
    asked = admin_client.post(f"{RULES}add/", DEADLY)
    assert "It would have matched 4 attempts and 2 routes in the last 24 h." in asked.content.decode()
    without = admin_client.post(f"{RULES}add/", DEADLY | {"confirmed": "on", "why": ""})
    secret = admin_client.post(f"{RULES}add/", DEADLY | {"confirmed": "on", "why": "ab" * 20})
    assert (without.status_code, secret.status_code) == (200, 200)
    assert not GatewayErrorRule.objects.filter(text="device is gone").exists()
    assert admin_client.post(f"{RULES}add/", DEADLY | {"confirmed": "on", "why": "new in iOS"}).status_code == 302
    assert rule("device is gone").outcome == "dead"
    assert LogEntry.objects.get().get_change_message().endswith("Why: new in iOS")


@pytest.mark.parametrize(
    ("text", "change", "is_asked"),
    [
        ("ServiceUnavailable", {"outcome": "config"}, True),
        ("ServiceUnavailable", {"outcome": "dead", "text": "Service is gone"}, True),
        ("Unregistered", {"remark": "?"}, False),
    ],
)
def test_a_rule_that_becomes_harmful_is_confirmed(
    admin_client: Client, text: str, change: dict[str, str], is_asked: bool
) -> None:
    known = rule(text)
    response = admin_client.post(f"{RULES}{known.pk}/change/", form_of(known) | change)
    assert (response.status_code, "Confirm the rule" in response.content.decode()) == (
        (200, True) if is_asked else (302, False)
    )
    assert rule(text).outcome == known.outcome


def test_a_harmless_rule_shows_its_preview_once_it_is_saved(admin_client: Client) -> None:
    fail("a brand new error")
    saved = admin_client.post(f"{RULES}add/", FORM, follow=True)
    assert "It would have matched 1 attempt and 1 route in the last 24 h." in saved.content.decode()


def test_the_list_changes_no_rule(admin_client: Client) -> None:
    """It would ask for no reason, and show no preview."""
    page = admin_client.get(RULES).content.decode()
    assert not re.search(r'name="form-\d', page)


def test_a_text_that_has_a_rule_offers_the_rule(admin_client: Client) -> None:
    known = rule("Unregistered")
    answer = admin_client.post(f"{RULES}add/", FORM | {"match": "exact", "text": "unregistered"}).content.decode()
    assert f'There is already a rule for this text: <a href="{RULES}{known.pk}/change/">' in answer
    rows.make_unknown_error(platform="ios", signature="unregistered")
    assert f'href="{RULES}{known.pk}/change/">its rule' in admin_client.get(UNKNOWN).content.decode()
    tried = admin_client.post(f"{RULES}try/", {"platform": "ios", "error": "teapot 12345"}).content.decode()
    assert "text=teapot&" in unescape(tried)
