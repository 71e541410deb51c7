from base64 import urlsafe_b64decode
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmpp_bridge.codec.client_strings import ClientKeys, issue, verify_client, verify_node

KEYS = ClientKeys({1: b"1" * 32, 2: b"2" * 32}, 2, b"s" * 32)
OLD = ClientKeys({1: b"1" * 32}, 1, b"s" * 32)
ROUTE = UUID("00112233-4455-6677-8899-aabbccddeeff")


def test_a_client_string_has_44_characters_and_names_its_version_and_route() -> None:
    given_out = issue(ROUTE, KEYS)
    assert len(given_out.client) == 44
    assert urlsafe_b64decode(given_out.client)[:17] == b"\2" + ROUTE.bytes
    assert (len(given_out.node), len(given_out.secret)) == (22, 24)
    assert issue(ROUTE, KEYS) == given_out


def test_what_we_gave_out_is_known_again_also_that_of_an_older_key() -> None:
    new, old = issue(ROUTE, KEYS), issue(ROUTE, OLD)
    assert new.client != old.client
    assert verify_client(new.client, KEYS) == verify_client(old.client, KEYS) == ROUTE
    assert verify_client(new.client, OLD) is None
    assert verify_node(new.node, new.secret, KEYS) == ROUTE


@given(st.data())
def test_no_other_string_is_accepted(data: st.DataObject) -> None:
    client = issue(ROUTE, KEYS).client
    at = data.draw(st.integers(0, len(client) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_=+/ é"))
    other = client[:at] + letter + client[at + 1 :]
    assert verify_client(other, KEYS) == (ROUTE if other == client else None)


@pytest.mark.parametrize("client", ["", "nope", "=" * 44, "é" * 44, "A" * 44, "A" * 1024])
def test_nonsense_is_no_client_string(client: str) -> None:
    assert verify_client(client, KEYS) is None
    assert verify_node(client, client, KEYS) is None


def test_a_node_needs_its_own_secret() -> None:
    mine, other = issue(ROUTE, KEYS), issue(uuid4(), KEYS)
    assert verify_node(mine.node, other.secret, KEYS) is None
    assert verify_node(mine.node, "", KEYS) is None


def test_nothing_secret_is_in_a_repr() -> None:
    given_out = issue(ROUTE, KEYS)
    assert given_out.client not in repr(given_out)
    assert given_out.secret not in repr(given_out)
    assert "1111" not in repr(KEYS)
