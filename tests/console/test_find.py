"""Search for a user or a notification: what each term leads to, and what a term that leads nowhere is told."""

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from coincurve import PrivateKey, PublicKey
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from notifications.models import AnsweredRequest
from pushserver.console.models import AccessRecord
from pushserver.console.notifications.admin import request_timeline_url
from pushserver.console.pages.find import hits_for
from tests.console.reading import HEROINE, PUBLIC_KEY, USER_PAGE, allowed_to, end_of, find, staff
from tests.rig import rows
from waku_bridge.codec.keys import chat_key, key_hash
from xmpp_bridge.identity import client_keys, issue

pytestmark = pytest.mark.django_db


def short_form(key: bytes) -> str:
    """Return Status' short form of a key: multibase base58btc of the varint e7 01 and the compressed key."""
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, digits = int.from_bytes(b"\xe7\x01" + key), ""
    while number:
        number, rest = divmod(number, 58)
        digits = alphabet[rest] + digits
    return f"z{digits}"


UNCOMPRESSED = PublicKey(PUBLIC_KEY).format(compressed=False)
KEYS = [chat_key(PUBLIC_KEY), f"0x{UNCOMPRESSED.hex()}", PUBLIC_KEY.hex(), f"0x{PUBLIC_KEY.hex()}"]
SHORT = short_form(PUBLIC_KEY)
RUNBOOK = "/admin/documentation/runbooks/PushServerAnswersOverdue/"
LINKS = [f"https://status.app/u/CwSACgYKBEpvaG4D#{SHORT}", f"status.app/u#{SHORT}", f"https://status.app/u/{SHORT}"]


def test_each_form_of_a_key_hash_id_number_and_link_leads_to_the_one_thing_it_means(admin_client: Client) -> None:
    """No secret among them is in an address or on a page."""
    notification, device, envelope = rows.make_delivered(HEROINE), rows.make_device(), rows.make_envelope()
    lookalike = rows.make_delivered(key_hash(PrivateKey(b"\x06" * 32).public_key.format()))
    rows.make_registration(public_key_hash=b"\x04" * 64)  # begins like a chat key, as does the id:
    AnsweredRequest.objects.filter(pk=lookalike.request_id).update(message_id=b"\x02" * 32)
    request, bare, given = notification.request, rows.make_answered_request(), issue(device.pk, client_keys()[0])
    hexed, installation = HEROINE.hex(), notification.installation_id
    links = [*LINKS, f"https://join.status.im/u/{chat_key(PUBLIC_KEY)}"]
    ids = [bytes(each).hex() for each in (request.message_id, request.request_key, request.source_key[:6])]
    leading = {
        USER_PAGE: [*KEYS, *links, hexed, f"0x{hexed.upper()}", hexed[:20], installation, installation.upper()],
        f"/admin/timelines/{notification.pk}/": [*ids, str(notification.pk)],
        f"/admin/timelines/{lookalike.pk}/": ["02" * 32],
        f"/admin/users/{'04' * 64}/": ["04" * 64],
        f"/admin/xmpp_bridge/device/{device.pk}/change/": [
            given.client,
            given.node,
            f"{device.pk}",
            device.pk.hex.upper(),
        ],
        f"/admin/waku_bridge/inboundenvelope/{envelope.hash.hex()}/change/": [envelope.hash.hex()],
        request_timeline_url(bare.pk): [bare.message_id.hex()],
    }
    secret = [chat_key(PUBLIC_KEY)[10:40], PUBLIC_KEY.hex()[10:40], SHORT[5:20], given.client, given.secret]
    for expected, terms in leading.items():
        for term in terms:
            response = find(admin_client, term)
            assert end_of(response) == expected, term
            shown = response.content.decode() + "".join(url for url, _ in response.redirect_chain)
            assert [each for each in secret if each in shown] == [], term


def test_a_message_to_several_installations_leads_to_a_choice(admin_client: Client) -> None:
    first = rows.make_delivered(HEROINE)
    second = rows.make_notification(request=first.request, position=1)
    html = find(admin_client, bytes(first.request.message_id).hex()).content.decode()
    assert [f"/admin/timelines/{each.pk}/" in html for each in (first, second)] == [True, True]


UNKNOWN = ["ab" * 64, "ab" * 32, "abcdef0123", "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001", chat_key(PUBLIC_KEY)]
NONSENSE = [
    *(
        "",
        " ",
        "'; --",
        "%",
        "\x00",
        "é" * 9,
        "a" * 5000,
        "zQ3sh",
        chat_key(PUBLIC_KEY)[:-1],
        "0x04" + "zz" * 64,
        "a b",
    ),
    "_" * 44,  # like the secret of an XMPP device
]


@pytest.mark.parametrize(
    ("answer", "terms"),
    [("Nothing was found", UNKNOWN), ("Nothing was searched", NONSENSE)],
    ids=["unknown", "nonsense"],
)
def test_a_term_that_leads_nowhere_is_told_so_and_not_repeated(
    admin_client: Client, answer: str, terms: list[str]
) -> None:
    ours = issue(uuid4(), client_keys()[0])
    of_xmpp = [ours.client] if terms is UNKNOWN else [ours.node, ours.secret]
    for term in [*terms, *of_xmpp]:
        response = find(admin_client, term)
        html = response.content.decode()
        assert (response.status_code, end_of(response), answer in html) == (200, "/admin/find/", True), term
        assert len(term) < 6 or term not in html


@pytest.mark.parametrize(
    ("term", "hit", "url"),
    [
        ("stop all pushes", "How do I stop all pushes, or those of one app?", "/admin/documentation/console/#operator"),
        ("NOTIFICATION_TTL_SECONDS", "NOTIFICATION_TTL_SECONDS", "/admin/documentation/settings/"),
        ("PushServerAnswersOverdue", "Senders are not answered", "/admin/documentation/runbooks/PushServerAnswers"),
        ("second factors", "Second factors", "/admin/otp_totp/totpdevice/"),
        ("time to live", "Delivery: ", "/admin/documentation/delivery/#"),
    ],
)
def test_words_lead_to_pages_questions_runbooks_and_settings(
    admin_client: Client, term: str, hit: str, url: str
) -> None:
    response = admin_client.post("/admin/find/", {"q": term})
    if response.status_code == 302:
        assert response["Location"].startswith(url)
        assert "found" not in response["Location"]
        return
    shown = response.content.decode().partition('id="hits"')[2].partition("</ul>")[0]
    assert hit in shown
    assert f'href="{url}' in shown
    assert response.content.decode().count(f'"{term}"') == 0


def test_words_lead_to_no_page_that_the_role_may_not_open() -> None:
    links = [
        client.post("/admin/find/", {"q": "accounts"}).content.decode() for client in map(staff, ("support", "admin"))
    ]
    assert ['<a href="/admin/auth/user/">Accounts</a>' in html.partition('id="hits"')[2] for html in links] == [
        False,
        True,
    ]


def test_the_documentation_has_a_search_and_its_runbooks_have_the_sentences_of_their_alerts() -> None:
    support = staff("support")
    html = support.get("/admin/documentation/").content.decode().partition('id="content"')[2]
    assert 'action="/admin/find/"' in html
    assert '>Delivery</a> <span class="note">What each state, class and code of a push means.</span>' in html
    assert ">Senders are not answered</a> <code>PushServerAnswersOverdue</code>" in html
    assert re.search(
        r"<h1[^>]*>.*Senders are not answered", words_page := support.get(RUNBOOK).content.decode(), re.DOTALL
    )
    assert "Runbook of <code>PushServerAnswersOverdue</code>" in words_page


# Forms of a chat key, the number of lost digits, and the number that the page reports.
LOST_DIGITS = [
    (chat_key, 2, "2 digits"),
    (lambda key: chat_key(key)[2:], 2, "2 digits"),
    (chat_key, 1, "1 digit"),
    (lambda key: chat_key(key)[2:], 5, "5 digits"),  # more digits than any id has, fewer than a key hash
    (bytes.hex, 1, "1 digit"),
    (bytes.hex, 2, "2 digits"),
    (short_form, 3, "3 digits"),
]


@pytest.mark.parametrize(("write", "cut", "missing"), LOST_DIGITS)
def test_a_chat_key_that_lost_digits_is_reported_and_neither_searched_nor_shown(
    admin_client: Client, write: Callable[[bytes], str], cut: int, missing: str
) -> None:
    term = write(PUBLIC_KEY)[:-cut]
    rows.make_request()  # the term does not match it
    for address in (reverse("find"), "/admin/search/registrations/registration/"):
        response = admin_client.post(address, {"q": term}, follow=True)
        assert f"looks like a chat key with {missing} missing" in response.content.decode()
        assert term[5:] not in response.content.decode() + end_of(response)


@pytest.mark.parametrize(
    "path",
    [
        *(f"found/{chat_key(PUBLIC_KEY)}/", "found/x/", "found/%00/", f"found/{PUBLIC_KEY.hex()}/"),
        *("users/nonsense/", f"users/{'ab' * 64}/", f"users/{'AB' * 64}/", f"users/{'ab' * 63}/", "users/%00/"),
        *("timelines/1/", "timelines/x/", "timelines/-1/", f"timelines/{'9' * 40}/", "timelines/٣/"),
        *("users/nonsense/forget/",),
    ],
)
def test_a_hand_made_url_of_nobody_leads_back_with_a_message(admin_client: Client, path: str) -> None:
    rows.make_registration(public_key_hash=HEROINE)
    response = admin_client.get(f"/admin/{path}", follow=True)
    assert (response.status_code, end_of(response)) == (200, "/admin/find/")
    assert re.search("There is no such (user|notification)|Nothing was searched", response.content.decode())


@pytest.mark.parametrize(
    ("codename", "may_find"),
    [
        *(("view_registration", True), ("view_notification", True), ("view_inboundenvelope", True)),
        *(("view_device", True), ("view_deadletter", False)),
    ],
)
def test_a_permission_for_any_kind_of_result_shows_the_find_box_and_the_menu(codename: str, may_find: bool) -> None:
    client = allowed_to(codename)
    html = client.get("/admin/").content.decode()
    assert ('action="/admin/find/"' in html, 'href="/admin/find/"' in html) == (may_find, may_find)
    assert client.get("/admin/find/").status_code == (200 if may_find else 403)


def test_a_search_leads_to_no_page_that_the_role_may_not_view() -> None:
    notification, client = rows.make_delivered(HEROINE), allowed_to("view_registration")
    assert "Nothing was found" in find(client, bytes(notification.request.message_id).hex()).content.decode()
    html = find(client, chat_key(PUBLIC_KEY)).content.decode()
    assert [words for words in ("Thirty days", "All notifications", "/admin/timelines/") if words in html] == []


def test_the_list_of_requests_names_recipients_only_to_who_may_view_notifications() -> None:
    rows.make_delivered(HEROINE)
    page, seen = "/admin/notifications/notificationrequest/", HEROINE.hex()[:8]
    assert seen not in allowed_to("view_notificationrequest").get(page).content.decode()
    assert seen in staff("support").get(page).content.decode()


def test_the_access_record_has_who_opened_which_user(admin_client: Client) -> None:
    notification = rows.make_delivered(HEROINE)
    find(admin_client, chat_key(PUBLIC_KEY))
    admin_client.get(f"/admin/timelines/{notification.pk}/")
    admin_client.get("/admin/timelines/987654/")
    opened = AccessRecord.objects.order_by("pk").values_list("username", "page", "object_id")
    assert list(opened) == [("admin", "user", HEROINE.hex()), ("admin", "timeline", str(notification.pk))]


@pytest.mark.parametrize("term", ["ab" * 64, "ab" * 32, "abcdef01", "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001"])
def test_every_look_up_can_be_answered_by_an_index(term: str) -> None:
    """Forbid sequential scans. PostgreSQL then plans one only where no index can serve."""
    rows.make_delivered(HEROINE)
    with CaptureQueriesContext(connection) as queries:
        hits_for(term)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for query in queries.captured_queries:
            cursor.execute(f"EXPLAIN {query['sql']}")
            # Requests are open for seconds, and few.
            plan = "\n".join(line for (line,) in cursor.fetchall() if "on notifications_openrequest" not in line)
            assert "Seq Scan" not in plan, f"{query['sql']}\n{plan}"
