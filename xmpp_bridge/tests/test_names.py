"""Names of devices and users: client strings with their node and secret, and JIDs."""

from base64 import urlsafe_b64decode
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmpp_bridge.identity import ClientKeys, issue, verify_client, verify_node
from xmpp_bridge.messages import Jid, parse_domain, parse_jid

OLD, NEW = (ClientKeys(name, name * 32, name.upper() * 32) for name in (b"o", b"n"))
KEYS = (NEW, OLD)
DEVICE = UUID("00112233-4455-6677-8899-aabbccddeeff")


def test_a_client_string_has_44_characters_and_names_its_version_and_device() -> None:
    given_out = issue(DEVICE, NEW)
    assert len(given_out.client) == 44
    assert urlsafe_b64decode(given_out.client)[:17] == b"\1" + DEVICE.bytes
    assert (len(given_out.node), len(given_out.secret)) == (22, 24)
    assert issue(DEVICE, NEW) == given_out


def test_credentials_that_we_issued_are_verified_also_those_of_an_older_key() -> None:
    new, old = issue(DEVICE, NEW), issue(DEVICE, OLD)
    assert (new.client != old.client, new.secret != old.secret) == (True, True)
    for given_out in (new, old):
        assert verify_client(given_out.client, KEYS) == verify_node(given_out.node, given_out.secret, KEYS) == DEVICE
    assert verify_client(new.client, [OLD]) is verify_node(new.node, new.secret, [OLD]) is None


@given(st.data())
def test_no_other_string_is_accepted(data: st.DataObject) -> None:
    client = issue(DEVICE, NEW).client
    at = data.draw(st.integers(0, len(client) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_=+/ é"))
    other = client[:at] + letter + client[at + 1 :]
    assert verify_client(other, KEYS) == (DEVICE if other == client else None)


@pytest.mark.parametrize("client", ["", "nope", "=" * 44, "é" * 44, "A" * 44, "A" * 1024])
def test_nonsense_is_no_client_string(client: str) -> None:
    assert verify_client(client, KEYS) is None
    assert verify_node(client, client, KEYS) is None


def test_nothing_secret_is_in_a_repr() -> None:
    given_out = issue(DEVICE, NEW)
    assert given_out.client not in repr(given_out)
    assert given_out.secret not in repr(given_out)
    assert "nnnn" not in repr(KEYS).lower()


@pytest.mark.parametrize(
    ("text", "jid"),
    [
        ("capulet.test", Jid("", "capulet.test", "")),
        ("Capulet.TEST.", Jid("", "capulet.test", "")),
        ("Juliet@Capulet.test", Jid("juliet", "capulet.test", "")),
        ("juliet@capulet.test/Balcony/x@y", Jid("juliet", "capulet.test", "Balcony/x@y")),
        ("capulet.test/server", Jid("", "capulet.test", "server")),
        ("bücher.test", Jid("", "xn--bcher-kva.test", "")),
        ("BÜCHER.test", Jid("", "xn--bcher-kva.test", "")),
        ("straße.test", Jid("", "xn--strae-oqa.test", "")),
        ("STRAẞE.test", Jid("", "xn--strae-oqa.test", "")),
        ("strasse.test", Jid("", "strasse.test", "")),
        ("bücher。test.", Jid("", "xn--bcher-kva.test", "")),
        ("xn--bcher-kva.test", Jid("", "xn--bcher-kva.test", "")),
        ("localhost", Jid("", "localhost", "")),
        ("[::1]", Jid("", "[::1]", "")),
    ],
)
def test_the_parts_of_a_jid_are_normalised(text: str, jid: Jid) -> None:
    assert parse_jid(text) == jid


@pytest.mark.parametrize(
    "text",
    ["", "@", "a@", "@a.test", "a.test/", "/x", "a..test", "-a.test", "a b.test", "a@b@", "x" * 3072, "a.test\0"],
)
def test_a_text_that_is_no_jid_is_none(text: str) -> None:
    assert parse_jid(text) is None


@given(st.text(max_size=40))
def test_normalising_a_domain_twice_changes_nothing(text: str) -> None:
    domain = parse_domain(text)
    assert domain == "" or parse_domain(domain) == domain
    parse_jid(text)
