import pytest

from notifications.gateways.gorush.answers.masking import mask

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
