import pytest
from hypothesis import given
from hypothesis import strategies as st

from registrations.messages import DeviceAddress, Environment, read_address


def test_a_single_token_is_stored_unchanged() -> None:
    assert DeviceAddress("token").encode() == b"token"
    assert read_address(b"token") == DeviceAddress("token")


@given(st.text(min_size=1), st.text(), st.sampled_from(["", *Environment]))
def test_an_address_is_read_as_it_was_written(token: str, call_token: str, environment: str) -> None:
    address = DeviceAddress("t" + token.replace("\ud800", ""), call_token, environment)
    try:
        stored = address.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no token has
        return
    assert read_address(stored) == address


@pytest.mark.parametrize(
    "stored", [b"\xff", b"{", b"{}", b'{"token": 1}', b'{"token": "t", "more": "x"}', b'{"token": []}']
)
def test_bytes_in_another_format_are_refused_as_an_address(stored: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - several subclasses, with different messages
        read_address(stored)


def test_the_repr_of_an_address_contains_no_token() -> None:
    assert repr(DeviceAddress("secret", "hidden", "production")) == "DeviceAddress(environment='production')"
