"""Tests of redacted errors: nothing of one device is left, and no word from its token; and of gorush's own mask."""

import string
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.gateways.gorush.answers.masking import mask
from notifications.gateways.gorush.answers.redaction import (
    MAX_ERROR_LENGTH,
    MAX_SIGNATURE_LENGTH,
    longest_literal,
    signature,
    without_token,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TOKENS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text(
    string.ascii_letters + string.digits + ":_-%/+", min_size=1, max_size=200
)
SHOWN_AS = [
    str,
    quote,
    quote_plus,
    lambda token: quote(token, safe=""),
    lambda token: quote(token, safe="").lower(),
    lambda token: token.upper(),
    lambda token: f'Post "https://api.push.apple.com/3/device/{quote(token)}": EOF',
    lambda token: f"{token} and {mask(token)}",
]


@given(TEXT, TOKENS, st.sampled_from(SHOWN_AS), TEXT)
def test_a_signature_never_holds_the_device_token(before, token, shown_as, after):
    found = signature(before + shown_as(token) + after, token)
    assert token not in found
    assert token.casefold() not in found
    assert quote(token, safe="").casefold() not in found


@given(TEXT, st.text(string.ascii_letters + string.digits, min_size=28), TEXT)
def test_a_signature_never_holds_what_gorushs_mask_leaves_of_the_token(before, token, after):
    found = signature(f"{before}{mask(token)}{after}", token)
    assert token[10:-10].casefold() not in found


@given(TEXT | st.binary().map(lambda raw: raw.decode("utf-8", "replace")), TOKENS)
def test_a_signature_is_short_printable_and_found_again(error, token):
    found = signature(error, token)
    assert len(found) <= MAX_SIGNATURE_LENGTH
    assert found.isprintable()
    assert found == signature(error, token)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("SomethingNew", "somethingnew"),
        ("  Something\n\tnew \x00", "something new"),
        ("the-token is odd", "<token> is odd"),
        ("THE-TOKEN is odd", "<token> is odd"),
        ("device 0123456789abcdef", "device <hex>"),
        ("device 0123456789ABCDEF0123", "device <hex>"),
        ("device 0x0123456789abcdef0", "device <hex>"),
        ("key QUJDREVGR0hJSktMTU5PUA== refused", "key <blob> refused"),
        ("ask somebody@example.org", "ask <email>"),
        ("error 12 of 345", "error <n> of <n>"),
        ("see https://firebase.google.com/docs/a?b=c#d now", "see https://firebase.google.com now"),
        ("see https://user:password@proxy.test:3128/x", "see https://proxy.test:<n>"),
        ('Get "https://api.test/3/device/a\\"b c": odd', 'get "https://api.test": odd'),
        ('Get "https://api.test/3/device/never closed', 'get "https://api.test"'),
        ("the-token", "<token>"),
        ("", ""),
    ],
)
def test_parts_that_differ_between_devices_are_replaced(error, expected):
    assert signature(error, "the-token") == expected


def test_errors_of_one_kind_share_a_signature():
    tokens = ["ab" * 32, "0f" * 32, "dGhlIHRva2Vu:APA91b" + "x" * 120]
    found = {signature(f'Put "https://api.test/3/device/{token}": quirk 17 of {token}', token) for token in tokens}
    assert found == {'put "https://api.test": quirk <n> of <token>'}


@pytest.mark.parametrize("token", ["e", "n", " ", "<", "<token>", "token", "o"])
def test_a_token_that_is_part_of_every_error_is_not_in_the_signature(token):
    assert token not in signature("something new", token)


def test_the_token_leaves_a_gap_that_cannot_close():
    assert without_token("ExpiredProviderToken", "Provider") == "expired<token>token"


@given(st.text(string.printable, min_size=5).filter(lambda token: not set(token) <= set(' "\\')))
def test_a_url_adds_no_word_of_the_token(token):
    error = f'Post "https://api.push.apple.com/3/device/{quote(token)}": EOF'
    assert without_token(error, token + "?").startswith('post "https://api.push.apple.com": eof')


@pytest.mark.parametrize("part", ['"http://', "a@", "https://", "aaaa", "\\", "%", "0" * 15 + " "])
def test_a_huge_error_costs_no_time(part):
    """Each pattern is linear, and only the beginning of the error is read."""
    error = part * (20_000_000 // len(part))
    assert len(without_token(error, "the-token")) <= 2 * MAX_ERROR_LENGTH
    assert len(signature(error, "the-token")) <= MAX_SIGNATURE_LENGTH


@pytest.mark.parametrize(
    ("found", "literal"),
    [
        ("<token> is odd <n> times", "is odd"),
        ("teapot <n>: short and stout", ": short and stout"),
        ("<hex>", ""),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_a_rule_looks_for_the_longest_part_that_is_always_there(found, literal):
    assert longest_literal(found) == literal


HIDDEN = "*" * 10


@pytest.mark.parametrize(
    ("token", "masked"),
    [
        ("", ""),
        ("abc", "***"),
        ("a" * 19, "*" * 19),
        ("0123456789abcdefghij", HIDDEN * 2),
        ("0123456789-abcdefghij", f"{HIDDEN}-{HIDDEN}"),
        ("0123456789-0123456789-abcdefghij", f"{HIDDEN}-{HIDDEN}-{HIDDEN}"),
    ],
)
def test_masks_like_gorush(token, masked):
    assert mask(token) == masked
