import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from registrations.models import RegistrationEvent
from tests.rig import rows
from waku_bridge.codec.keys import chat_key, key_hash

pytestmark = pytest.mark.django_db
# A key and its short form, as Status shows it.
PUBLIC_KEY = bytes.fromhex("02261c55675e55ff25edb50b345cfb3a3f35f60712d251cbaaab97bd50054c6ebc")
SHORT_FORM = "zQ3shPyZJnxZK4Bwyx9QsaksNKDYTPmpwPvGSjMYVHoXHeEgB"
LIST = "/admin/registrations/registration/"
SEARCH = "/admin/search/registrations/registration/"


def found(client: Client, term: str, path: str = LIST) -> list[str]:
    """Return the results of a search, as the last parts of the URLs of their pages."""
    html = client.post(
        SEARCH.replace(LIST.removeprefix("/admin"), path.removeprefix("/admin")), {"q": term}, follow=True
    )
    return re.findall(rf'href="{path}([^"/]+)/change/', html.content.decode())


@pytest.mark.parametrize(
    "term",
    [
        chat_key(PUBLIC_KEY),
        chat_key(PUBLIC_KEY)[2:],
        PUBLIC_KEY.hex(),
        SHORT_FORM,
        key_hash(PUBLIC_KEY).hex(),
        key_hash(PUBLIC_KEY).hex()[:8],
        key_hash(PUBLIC_KEY).hex()[:15].upper(),
        "0x" + key_hash(PUBLIC_KEY).hex()[:64],
    ],
    ids=["chat key", "without 0x", "compressed", "short form", "key hash", "8 digits", "odd digits", "half of it"],
)
def test_a_search_for_a_key_finds_its_registrations(admin_client: Client, term: str) -> None:
    wanted = rows.make_registration(public_key_hash=key_hash(PUBLIC_KEY))
    rows.make_registration()

    assert set(found(admin_client, term)) == {str(wanted.pk)}


def test_a_search_for_an_installation_id_finds_its_registration(admin_client: Client) -> None:
    wanted = rows.make_registration()
    rows.make_registration()

    assert set(found(admin_client, wanted.installation_id)) == {str(wanted.pk)}
    assert set(found(admin_client, wanted.installation_id.replace("-", "").upper())) == {str(wanted.pk)}


def test_a_search_with_two_terms_finds_rows_that_match_both(admin_client: Client) -> None:
    wanted = rows.make_registration(public_key_hash=b"\x0a" * 64)
    rows.make_registration(public_key_hash=b"\x0a" * 64)

    assert set(found(admin_client, f"{'0a' * 64} {wanted.installation_id}")) == {str(wanted.pk)}


def test_a_search_for_the_highest_digits_finds_their_hashes(admin_client: Client) -> None:
    wanted = rows.make_registration(public_key_hash=b"\xff" * 64)
    rows.make_registration(public_key_hash=b"\xfe" * 64)

    assert set(found(admin_client, "f" * 9)) == {str(wanted.pk)}


def test_a_search_for_a_key_without_registrations_finds_nothing(admin_client: Client) -> None:
    rows.make_registration()

    assert found(admin_client, chat_key(PUBLIC_KEY)) == []


def test_a_page_shows_the_length_of_lists_and_not_their_contents(admin_client: Client) -> None:
    registration = rows.make_registration(blocked_chat_list=[b"\xab" * 64] * 12)

    html = admin_client.get(f"{LIST}{registration.pk}/change/").content.decode()

    assert "12 entries" in html
    assert "abab" not in html


def test_a_hash_is_short_in_the_list_and_whole_on_its_page(admin_client: Client) -> None:
    registration = rows.make_registration(public_key_hash=b"\xab" * 64)
    shown = re.compile("(?:ab)+")

    assert len(max(shown.findall(admin_client.get(LIST).content.decode()), key=len)) == 8
    assert "ab" * 64 in admin_client.get(f"{LIST}{registration.pk}/change/").content.decode()


def test_a_list_shows_states_as_in_code_and_ages_with_their_exact_time(admin_client: Client) -> None:
    at = timezone.now() - timedelta(hours=3, minutes=5)
    registration = rows.make_registration(at=at)
    registration.route.state, registration.route.disabled_reason = "disabled", "device_gone"
    registration.route.save()

    html = admin_client.get(LIST).content.decode()

    assert f'title="{at:%Y-%m-%d %H:%M:%S} UTC" tabindex="0">3 h ago</time>' in html
    assert [word in html for word in (">active<", ">disabled<", ">device_gone<")] == [True, True, True]


def test_registration_route_and_history_link_to_each_other(admin_client: Client) -> None:
    registration = rows.make_registration()
    event = rows.make_event(pseudonym=registration.pseudonym)
    rows.make_event()

    page = admin_client.get(f"{LIST}{registration.pk}/change/").content.decode()
    route_page = admin_client.get(f"/admin/registrations/route/{registration.route_id}/change/").content.decode()
    history = admin_client.get(f"/admin/registrations/registrationevent/?q={registration.pseudonym}").content.decode()

    assert f"/admin/registrations/route/{registration.route_id}/change/" in page
    assert f"{LIST}{registration.pk}/change/" in route_page
    assert f"/admin/registrations/registrationevent/?q={registration.pseudonym}" in page
    assert history.count("/change/") == 1
    assert f"/registrationevent/{event.pk}/change/" in history


def test_an_unregistered_installation_has_a_page(admin_client: Client) -> None:
    tombstone = rows.make_registration(
        state="unregistered", route=None, access_token_encrypted=None, access_token_digest=None, pseudonym=None
    )

    assert admin_client.get(f"{LIST}{tombstone.pk}/change/").status_code == 200


def test_a_search_for_a_key_finds_its_query_topic_and_its_grants(admin_client: Client) -> None:
    registration = rows.make_registration(public_key_hash=key_hash(PUBLIC_KEY))
    grant, topic_key = (
        rows.make_grant(registration),
        rows.make_topic_key(public_key_hash=key_hash(PUBLIC_KEY)),
    )
    rows.make_grant()
    rows.make_topic_key()

    assert set(found(admin_client, chat_key(PUBLIC_KEY), "/admin/registrations/topickey/")) == {str(topic_key.pk)}
    assert set(found(admin_client, chat_key(PUBLIC_KEY), "/admin/registrations/grant/")) >= {str(grant.pk)}
    assert len(set(found(admin_client, registration.installation_id, "/admin/registrations/grant/"))) == 1


@pytest.mark.parametrize("page", ["/admin/users/{key_hash}/", "/admin/registrations/registrationevent/?q={pseudonym}"])
def test_of_events_of_one_moment_the_one_that_was_decided_last_comes_first(admin_client: Client, page: str) -> None:
    registration, at = rows.make_registration(), timezone.now()
    kinds = [RegistrationEvent.Kind.REGISTERED, RegistrationEvent.Kind.UNREGISTERED] * 4
    for kind in kinds:
        rows.make_event(pseudonym=registration.pseudonym, kind=kind, at=at)

    key_hash = bytes(registration.public_key_hash).hex()
    html = admin_client.get(page.format(key_hash=key_hash, pseudonym=registration.pseudonym)).content.decode()

    table = html[html.rindex("Registration events") if "users" in page else html.index('id="result_list"') :]
    shown = re.findall(r"\b(?:un)?registered\b", re.sub(r"<[^>]+>", " ", table[: table.index("</table>")]))
    assert shown == [kind.value for kind in reversed(kinds)]
