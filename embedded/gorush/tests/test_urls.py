import pytest

from embedded.gorush.urls import APPLE_URL, as_shown, unusable


@pytest.mark.parametrize(
    ("token", "error"),
    [
        ("a\nb", f'parse "{APPLE_URL}a\\nb": net/url: invalid control character in URL'),
        ("a%zz", f'parse "{APPLE_URL}a%zz": invalid URL escape "%zz"'),
        ("a%", f'parse "{APPLE_URL}a%": invalid URL escape "%"'),
        ("a%41", ""),
        ("a b", ""),
        ("", ""),
    ],
)
def test_some_tokens_make_no_url(token, error):
    assert unusable(token) == error


@pytest.mark.parametrize(
    ("token", "shown"),
    [("a b", "a%20b"), ('x509: "é', "x509:%20%22%C3%A9"), ("$&+,/:;=@!'()*~", "$&+,/:;=@!'()*~"), ("%41", "%41")],
)
def test_transport_errors_show_tokens_percent_encoded(token, shown):
    assert as_shown(token) == shown
