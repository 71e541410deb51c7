import pytest
from hypothesis import given
from hypothesis import strategies as st

from registrations.routes.addresses import DeviceAddress, Environment, read_address


def test_one_token_is_stored_as_it_is() -> None:
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
def test_what_is_no_address(stored: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        read_address(stored)


def test_no_token_is_in_a_repr() -> None:
    assert repr(DeviceAddress("secret", "hidden", "production")) == "DeviceAddress(environment='production')"
