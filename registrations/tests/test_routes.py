"""Tests of the lookup of proven addresses for messages."""

import pytest
from django.utils import timezone

from registrations.lookup import find_proven_addresses, find_proven_keys
from registrations.messages import Named
from registrations.models import Registration, Route
from tests.rig import rows

pytestmark = pytest.mark.django_db
HASH, TOKEN = b"h" * 64, "c0ffee00-0000-4000-8000-000000000001"
NEW = 10**6


def make(**route: object) -> Registration:
    fields = {"last_success_at": timezone.now()} | route
    return rows.make_registration(
        public_key_hash=HASH, installation_id="one", access_token=TOKEN, route=rows.make_route(**fields)
    )


CASES = {
    "its token": (Named(HASH, "one", TOKEN), {}, True),
    "its own key": (Named(HASH, "one", version=NEW), {}, True),
    "its own key, again": (Named(HASH, "one", version=1), {}, False),
    "another token": (Named(HASH, "one", "guessed"), {}, False),
    "an empty token": (Named(HASH, "one", ""), {}, False),
    "another installation": (Named(HASH, "two", TOKEN), {}, False),
    "another key": (Named(b"o" * 64, "one", TOKEN), {}, False),
    "nothing was delivered yet": (Named(HASH, "one", TOKEN), {"last_success_at": None}, False),
    "its token was changed since": (Named(HASH, "one", TOKEN), {"delivered_digest": b"of another token"}, False),
    "a dead address": (Named(HASH, "one", TOKEN), {"state": Route.State.DISABLED}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_only_a_message_with_the_right_token_finds_a_proven_address_which_proves_its_key(case: str) -> None:
    name, fields, is_known = CASES[case]
    registration = make(**fields)
    rows.make_registration(public_key_hash=HASH)  # another installation, that nothing was delivered to
    assert registration.route is not None
    assert find_proven_addresses([name]) == ({name: bytes(registration.route.address_digest)} if is_known else {})
    assert find_proven_keys([HASH, b"o" * 64]) == (set() if fields else {HASH})
    assert find_proven_keys([b"o" * 64]) == find_proven_keys([]) == set()


def test_an_unregistered_installation_has_no_proven_address() -> None:
    rows.make_registration(
        public_key_hash=HASH, installation_id="one", state=Registration.State.UNREGISTERED, route=None
    )
    assert find_proven_addresses([Named(HASH, "one", version=NEW)]) == {}
    assert find_proven_keys([HASH]) == set()


def test_one_phone_is_one_address_under_many_keys() -> None:
    """The owner of one phone must not get priority a thousand times."""
    token = rows.firebase_token("phone")
    names = []
    for number in range(3):
        route = rows.make_route(device_token=token, last_success_at=timezone.now())
        rows.make_registration(public_key_hash=bytes([number]) * 64, installation_id="one", route=route)
        names.append(Named(bytes([number]) * 64, "one", version=NEW))
    assert len(set(find_proven_addresses(names).values())) == 1


def test_an_empty_set_of_names_needs_no_query(django_assert_num_queries: object) -> None:
    with django_assert_num_queries(0):
        assert find_proven_addresses([]) == {}
