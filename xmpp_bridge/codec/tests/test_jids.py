import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmpp_bridge.codec.jids import Jid, parse_domain, parse_jid


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
