import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
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


def test_without_the_permission_to_view_nothing_is_searched(client: Client, django_user_model: type[User]) -> None:
    client.force_login(django_user_model.objects.create_user("support", is_staff=True))
    assert client.post(SEARCH, {"q": "ab" * 32}).status_code == 403


def found(client: Client, term: str, path: str = LIST) -> list[str]:
    """Return the results of a search, as the last parts of the URLs of their pages."""
    html = client.post(
        SEARCH.replace(LIST.removeprefix("/admin"), path.removeprefix("/admin")), {"q": term}, follow=True
    )
    return re.findall(rf'href="{path}([^"/]+)/change/', html.content.decode())


HASH = key_hash(PUBLIC_KEY).hex()
INSTALLATION = "9d1c0f7e-8a24-4c0b-a3a5-6f0f54c7e001"
TERMS = {
    "chat key": chat_key(PUBLIC_KEY),
    "without 0x": chat_key(PUBLIC_KEY)[2:],
    "compressed": PUBLIC_KEY.hex(),
    "short form": SHORT_FORM,
    "key hash": HASH,
    "8 digits": HASH[:8],
    "odd digits": HASH[:15].upper(),
    "half of it": "0x" + HASH[:64],
    "installation": INSTALLATION,
    "installation without dashes": INSTALLATION.replace("-", "").upper(),
    "two terms": f"{HASH} {INSTALLATION}",
}


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_a_search_for_a_key_or_an_installation_finds_its_registrations(admin_client: Client, term: str) -> None:
    wanted = rows.make_registration(public_key_hash=key_hash(PUBLIC_KEY), installation_id=INSTALLATION)
    rows.make_registration(**{"installation_id": INSTALLATION} if term == TERMS["two terms"] else {})
    assert set(found(admin_client, term)) == {str(wanted.pk)}


def test_the_highest_digits_find_their_hashes_and_an_unknown_key_nothing(admin_client: Client) -> None:
    wanted = rows.make_registration(public_key_hash=b"\xff" * 64)
    empty = {"route": None, "access_token_encrypted": None, "access_token_digest": None, "pseudonym": None}
    tombstone = rows.make_registration(public_key_hash=b"\xfe" * 64, state="unregistered", **empty)
    assert set(found(admin_client, "f" * 9)) == {str(wanted.pk)}
    assert found(admin_client, chat_key(PUBLIC_KEY)) == []
    assert admin_client.get(f"{LIST}{tombstone.pk}/change/").status_code == 200


def test_a_list_shows_the_beginning_of_a_hash_and_a_page_the_length_of_lists(admin_client: Client) -> None:
    registration = rows.make_registration(public_key_hash=b"\xab" * 64, blocked_chat_list=[b"\xcd" * 64] * 12)
    listed = admin_client.get(LIST).content.decode()
    page = admin_client.get(f"{LIST}{registration.pk}/change/").content.decode()
    assert len(max(re.findall("(?:ab)+", listed), key=len)) == 8
    assert [word in page for word in ("ab" * 64, "12 entries", "cdcd")] == [True, True, False]


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


def test_a_search_for_a_key_finds_its_query_topic_and_its_grants(admin_client: Client) -> None:
    registration = rows.make_registration(public_key_hash=key_hash(PUBLIC_KEY))
    grant, topic_key = rows.make_grant(registration), rows.make_topic_key(public_key_hash=key_hash(PUBLIC_KEY))
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
    table = html[html.rindex("What happened") if "users" in page else html.index('id="result_list"') :]
    shown = re.findall(r"\b(?:un)?registered\b", re.sub(r"<[^>]+>", " ", table[: table.index("</table>")]))
    assert shown == [kind.value for kind in reversed(kinds)]
