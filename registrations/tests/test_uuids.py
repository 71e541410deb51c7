import pytest
from hypothesis import given
from hypothesis import strategies as st

from registrations.uuids import is_uuid

UUID = "11111111-1111-4111-8111-11111111111a"


@pytest.mark.parametrize(
    "text", [UUID, UUID.upper(), UUID.replace("-", ""), "{" + UUID + "}", "\n" + UUID + "x", "uRn:UuId:" + UUID]
)
def test_every_form_of_google_uuid_is_accepted(text):
    assert is_uuid(text)


@pytest.mark.parametrize(
    "text",
    [
        UUID + "\n",
        "{" + UUID,
        "{" + UUID.replace("-", "") + "}",
        "urn:uuid:" + UUID.replace("-", ""),
        "urn:uuid:{" + UUID + "}",
        "é" + UUID + "}",  # é has two bytes, so it is 39 bytes long
        "é" + UUID[1:] + "}",  # 38 bytes, but the first two are one character
        "urn:uu\u0131d:" + UUID,  # a dotless i is another letter
        UUID.replace("1", "\u0661", 1),  # an Arabic digit is not ASCII
        "{" + UUID + "}\n",
    ],
)
def test_texts_that_google_uuid_refuses_are_refused(text):
    assert not is_uuid(text)


@pytest.mark.requirement("SR7")
@given(st.one_of(st.uuids().map(str), st.text(max_size=46), st.text("0123456789abcdefABCDEF-{}:urniId", max_size=46)))
def test_decisions_equal_those_of_google_uuid(text):
    assert is_uuid(text) is parses_with_google_uuid(text.encode())


@given(st.uuids().map(str), st.integers(0, 35), st.characters(codec="utf-8"))
def test_decisions_about_one_changed_character_equal_those_of_google_uuid(text, position, character):
    changed = text[:position] + character + text[position + 1 :]
    for form in (changed, "{" + changed + "}", "urn:uuid:" + changed):
        assert is_uuid(form) is parses_with_google_uuid(form.encode())


def parses_with_google_uuid(text: bytes) -> bool:
    """Repeat the steps of google/uuid's Parse, which works on bytes, as strings in Go."""
    if len(text) == 32:
        return is_hex(text)
    if len(text) == 45 and text[:9].lower() == b"urn:uuid:":
        text = text[9:]
    elif len(text) == 38:
        text = text[1:37]
    elif len(text) != 36:
        return False
    dashes = (8, 13, 18, 23)
    return all(text[i] == 0x2D for i in dashes) and is_hex(bytes(c for i, c in enumerate(text) if i not in dashes))


def is_hex(text: bytes) -> bool:
    return all(byte in b"0123456789abcdefABCDEF" for byte in text)
