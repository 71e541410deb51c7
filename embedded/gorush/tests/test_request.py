import orjson
import pytest

from embedded.gorush.outcomes import Platform
from embedded.gorush.request import (
    BadRequestError,
    Notification,
    addressed_tokens,
    count,
    is_enabled,
    is_invalid,
    is_too_large,
    is_unaddressed,
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
        (b'{"notifications": [{"android": {"collapse_key": 7}}]}', MISSING),
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
        ({"platform": ANDROID, "topic": "t"}, ()),
        ({"platform": ANDROID, "tokens": ["a"], "priority": "high"}, ("a",)),
        ({"platform": ANDROID, "tokens": ["a"] * 500}, ("a",) * 500),
    ],
)
def test_sends_to_these_tokens(fields, tokens):
    read = notification(**fields)
    assert addressed_tokens(read) == tokens
    assert not is_unaddressed(read)
    assert not is_invalid(read)


@pytest.mark.parametrize("tokens", [[], ["a"] * 501])
def test_drops_android_notifications_to_nobody_and_to_too_many(tokens):
    assert is_unaddressed(notification(platform=ANDROID, tokens=tokens))
    assert not is_unaddressed(notification(platform=IOS, tokens=tokens))


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": ["a"], "priority": "urgent"},
        {"tokens": ["a"], "android": {"priority": "urgent"}},
        {"tokens": ["a"], "topic": "not a topic"},
        {"tokens": [""]},
        {"tokens": [None]},
        {"tokens": ["a", ""]},
    ],
)
def test_one_invalid_field_drops_an_android_notification(fields):
    assert is_invalid(notification(platform=ANDROID, **fields))
    assert not is_invalid(notification(platform=IOS, **fields))


@pytest.mark.parametrize(
    "body",
    [
        b'{"Notifications": [{"PLATFORM": 1, "Tokens": ["t"]}]}',
        b' {"notifications": [{"platform": 1, "tokens": ["t"]}]} and more',
    ],
)
def test_reads_the_same_bodies_as_go(body):
    assert [(read.platform, read.tokens) for read in read_push(body)] == [(1, ("t",))]


def test_replaces_bytes_that_are_not_utf_8():
    body = b'{"notifications": [{"platform": 1, "tokens": ["t\xff"]}]}'
    assert read_push(body)[0].tokens == ("t\ufffd",)


@pytest.mark.parametrize(
    ("platform", "enabled"), [(IOS, True), (ANDROID, True), (HUAWEI, False), (9, False), (0, False)]
)
def test_only_ios_and_android_are_enabled(platform, enabled):
    assert is_enabled(notification(platform=platform, tokens=["a"])) is enabled


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"platform": IOS, "tokens": ["a"]}, 1),
        ({"platform": IOS, "tokens": ["a"], "topic": "app"}, 2),  # one too many: that topic is no broadcast
        ({"platform": ANDROID, "tokens": ["a"], "to": "b"}, 1),
    ],
)
def test_counts_a_topic_besides_the_tokens_as_gorush_does(fields, counted):
    assert count(notification(**fields)) == counted


@pytest.mark.parametrize("android", [{"collapse_key": "a"}, {"notification": {"tag": "a"}}])
def test_takes_the_collapse_id_from_the_field_of_the_platform(android):
    fields = {"collapse_id": "i", "android": android}
    assert notification(platform=IOS, **fields).collapse_id == "i"
    assert notification(platform=ANDROID, **fields).collapse_id == "a"


@pytest.mark.parametrize(("bytes_over", "is_large"), [(0, False), (1, True)])
def test_the_payload_limit_of_apple_is_exact_to_the_byte(bytes_over, is_large):
    fields = {"message": "m", "sound": "default", "content_available": True}
    payload = {"aps": {"alert": "m", "sound": "default", "content-available": 1}, "x": ""}
    size = 4096 - len(orjson.dumps(payload)) + bytes_over
    assert is_too_large(notification(platform=IOS, data={"x": "a" * size}, **fields)) is is_large


@pytest.mark.parametrize(("bytes_over", "is_large"), [(0, False), (1, True)])
def test_google_counts_notification_and_data(bytes_over, is_large):
    size = 4096 - len(b'{"body":"m"}{"x":""}') + bytes_over
    assert is_too_large(notification(platform=ANDROID, message="m", data={"x": "a" * size})) is is_large
