"""Tests of the answers to queries of senders."""

import secrets
from datetime import UTC, datetime, timedelta

import pytest

from registrations import lookup
from registrations.messages import QueryInfo
from registrations.models import Registration, Route
from tests.rig.rows import make_grant, make_registration, make_route
from tests.rig.statements import statements

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVER, OTHER_SERVER = b"\x02" + b"\x01" * 32, b"\x02" + b"\x02" * 32
ALICE, BOB = b"\xaa" * 64, b"\xbb" * 64
UUID = "11111111-1111-4111-8111-111111111111"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
COPIES = [b"\x01" * 64, b"\x02" * 64]


def make_found(public_key_hash=ALICE, *, granted_at=NOW, server=SERVER, **fields):
    registration = make_registration(public_key_hash=public_key_hash, access_token=TOKEN, **fields)
    make_grant(registration, server_public_key=server, signature=b"\x09" * 65, granted_at=granted_at)
    return registration


def find(*hashes):
    return lookup.find(hashes, server_public_keys=[SERVER])


@pytest.mark.requirement("SQ4")
def test_the_answer_about_an_open_registration_has_its_token():
    make_found(installation_id=UUID, version=2**64 - 1, allowed_key_list=COPIES)
    assert find(ALICE) == {
        ALICE: [QueryInfo(ALICE, UUID, 2**64 - 1, b"\x09" * 65, access_token=TOKEN, server_public_key=SERVER)]
    }


@pytest.mark.requirement("SQ5")
def test_the_answer_about_a_registration_for_contacts_has_only_encrypted_copies_of_the_token():
    make_found(installation_id=UUID, allow_from_contacts_only=True, allowed_key_list=COPIES)
    [info] = find(ALICE)[ALICE]
    assert (info.access_token, info.allowed_key_list) == ("", tuple(COPIES))


LEFT_OUT = {
    "it disabled notifications": lambda: make_found(enabled=False),
    "a tombstone": lambda: make_found(route=None, state=Registration.State.UNREGISTERED),
    "a dead token": lambda: make_found(route=make_route(state=Route.State.DISABLED)),
    "a grant for another server": lambda: make_found(server=OTHER_SERVER),
}


@pytest.mark.parametrize("make", LEFT_OUT.values(), ids=LEFT_OUT)
def test_an_installation_that_no_sender_may_know_is_left_out(make):
    make()
    assert find(ALICE) == {}


def test_a_query_for_several_keys_leaves_out_unknown_ones():
    make_found(ALICE)
    make_found(BOB)
    make_found(BOB)
    found = find(ALICE, BOB, b"\xcc" * 64, b"", b"\xdd" * 5000)
    assert {key: len(infos) for key, infos in found.items()} == {ALICE: 1, BOB: 2}


def test_an_answer_has_the_newest_twenty_installations_of_a_key_newest_first():
    for age in range(25):
        make_found(ALICE, version=100 - age, granted_at=NOW - timedelta(days=age))
    make_found(BOB)
    found = find(ALICE, BOB)
    assert [info.version for info in found[ALICE]] == list(range(100, 80, -1))
    assert len(found[BOB]) == 1


def test_a_lookup_needs_one_statement():
    for number in range(10):
        make_found(bytes([number]) * 64)
    with statements() as sent:
        assert len(find(*(bytes([number]) * 64 for number in range(10)))) == 10
    assert len(sent) == 1


def test_an_answer_about_a_key_with_long_lists_is_limited():
    for number in range(5):
        lists = [secrets.token_bytes(64) for _ in range(1000)]
        make_found(granted_at=NOW + timedelta(seconds=number), allow_from_contacts_only=True, allowed_key_list=lists)
    assert len(find(ALICE)[ALICE]) == 2


@pytest.mark.parametrize(
    ("lists_of_others", "list_of_alice", "is_proven", "found_of_others"), [(1000, 0, False, 1), (900, 1000, True, 0)]
)
def test_long_lists_of_some_keys_displace_neither_a_short_one_nor_that_of_a_proven_address(
    monkeypatch, lists_of_others, list_of_alice, is_proven, found_of_others
):
    def make_contacts(count):
        listed = [secrets.token_bytes(64) for _ in range(count)]
        return {"allow_from_contacts_only": bool(listed), "allowed_key_list": listed}

    monkeypatch.setattr(lookup, "MAX_BATCH_BYTES", 100_000)
    make_found(ALICE, route=make_route(last_success_at=NOW if is_proven else None), **make_contacts(list_of_alice))
    others = [bytes([number]) * 64 for number in range(5)]
    for other in others:
        make_found(other, **make_contacts(lists_of_others))
    found = find(*others, ALICE)
    assert [info.has_proven_address for info in found.pop(ALICE)] == [is_proven]
    assert len(found) == found_of_others
