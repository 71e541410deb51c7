import orjson
import pytest

from notifications.gateways.gorush.devserver.outcomes import Platform
from notifications.gateways.gorush.devserver.request import (
    BadRequestError,
    Notification,
    addressed_tokens,
    count,
    is_too_large,
    read_push,
)

MISSING = "Missing notifications field."
IOS, ANDROID, HUAWEI = Platform.IOS, Platform.ANDROID, Platform.HUAWEI


def notification(**fields: object) -> Notification:
    return read_push(orjson.dumps({"notifications": [fields]}))[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", MISSING),
        (b"{", MISSING),
        (b"[]", MISSING),
        (b"3", MISSING),
        (b"{}", MISSING),
        (b'{"notifications": null}', MISSING),
        (b'{"notifications": {}}', MISSING),
        (b'{"notifications": ["x"]}', MISSING),
        (b'{"notifications": [{"platform": "1"}]}', MISSING),
        (b'{"notifications": [{"platform": true}]}', MISSING),
        (b'{"notifications": [{"platform": 1.5}]}', MISSING),
        (b'{"notifications": [{"tokens": "x"}]}', MISSING),
        (b'{"notifications": [{"tokens": [1]}]}', MISSING),
        (b'{"notifications": [{"data": []}]}', MISSING),
        (b'{"notifications": [{"notif_id": 7}]}', MISSING),
        (b'{"notifications": []}', "Notifications field is empty."),
        (b'{"notifications": [' + b"{}," * 100 + b"{}]}", "Number of notifications(101) over limit(100)"),
    ],
)
def test_refuses_with_gorushs_own_text(body, message):
    with pytest.raises(BadRequestError) as refused:
        read_push(body)
    assert str(refused.value) == message


def test_takes_null_for_absent_and_ignores_unknown_fields():
    read = notification(platform=1, tokens=["t"], message=None, colour=3)
    assert (read.platform, read.tokens, read.message) == (1, ("t",), "")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"platform": IOS, "tokens": ["a", "b"]}, ("a", "b")),
        ({"platform": IOS, "tokens": ["a"], "to": "b", "priority": "urgent"}, ("a",)),
        ({"platform": IOS, "to": "b"}, ()),
        ({"platform": IOS, "tokens": []}, ()),
        ({"platform": ANDROID, "tokens": ["a"], "to": "b"}, ("a", "b")),
        ({"platform": ANDROID, "to": "b"}, ("b",)),
        ({"platform": ANDROID, "tokens": ["a"], "priority": "high"}, ("a",)),
        ({"platform": ANDROID, "tokens": ["a"], "priority": "urgent"}, ()),
        ({"platform": ANDROID, "tokens": [""]}, ()),
        ({"platform": ANDROID, "tokens": ["a", ""]}, ()),
        ({"platform": ANDROID, "tokens": ["a"] * 500}, ("a",) * 500),
        ({"platform": ANDROID, "tokens": ["a"] * 501}, ()),
        ({"platform": HUAWEI, "tokens": ["a"]}, ()),
        ({"platform": 9, "tokens": ["a"]}, ()),
        ({"tokens": ["a"]}, ()),
    ],
)
def test_addresses_only_what_gorush_would_send(fields, tokens):
    assert addressed_tokens(notification(**fields)) == tokens


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"platform": IOS, "tokens": ["a"]}, 1),
        ({"platform": IOS, "tokens": ["a"], "topic": "app"}, 2),  # one too many: that topic is no broadcast
        ({"platform": ANDROID, "tokens": ["a"], "to": "b"}, 1),
        ({"platform": 9, "tokens": ["a"]}, 1),
        ({"platform": HUAWEI, "tokens": ["a"]}, 0),
    ],
)
def test_counts_as_misleadingly_as_gorush(fields, counted):
    assert count(notification(**fields)) == counted


def test_takes_the_collapse_id_from_where_the_platform_has_it():
    fields = {"collapse_id": "i", "android": {"collapse_key": "a"}}
    assert notification(platform=IOS, **fields).collapse_id == "i"
    assert notification(platform=ANDROID, **fields).collapse_id == "a"


@pytest.mark.parametrize(("size", "is_large"), [(3900, False), (4100, True)])
def test_knows_the_payload_limit_of_apple_and_google(size, is_large):
    assert is_too_large(notification(platform=IOS, data={"encryptedMessage": "a" * size})) is is_large
