import stat
from collections.abc import Iterator
from contextlib import closing

import orjson
import pytest

from embedded.gorush.pushes import Pushes
from embedded.gorush.request import Notification, read_push


def notification(**fields: object) -> Notification:
    return read_push(orjson.dumps({"notifications": [{"platform": 1, **fields}]}))[0]


def record(pushes: Pushes, token: str, *, error: str = "", **fields: object) -> None:
    pushes.record(notification(tokens=[token], **fields), token, error=error, received_ms=5)


@pytest.fixture
def pushes() -> Iterator[Pushes]:
    with closing(Pushes(None)) as pushes:
        yield pushes


def test_shows_a_push_with_everything_that_a_device_would_get(pushes):
    sent = {"notif_id": "7", "topic": "im.status", "collapse_id": "c", "message": "m", "data": {"chatId": "0x1"}}
    record(pushes, "t", **sent)
    shown = {"id": 1, "received_ms": 5, "platform": "ios", "token": "t", "error": ""}
    whole = {"platform": 1, "tokens": ["t"], **sent}
    assert pushes.since(0) == [shown | sent | {"notification": whole}]


def test_shows_only_later_pushes(pushes):
    for token in "abc":
        record(pushes, token)
    assert [push["token"] for push in pushes.since(1)] == ["b", "c"]
    assert [push["token"] for push in pushes.since(1, limit=1)] == ["b"]


def test_counts_accepted_and_refused_pushes_per_token(pushes):
    record(pushes, "a")
    record(pushes, "a")
    record(pushes, "a", error="Unregistered")
    record(pushes, "b")
    assert pushes.count_by_token() == {"a": {"accepted": 2, "refused": 1}, "b": {"accepted": 1, "refused": 0}}


def test_counts_the_tries_of_one_notification(pushes):
    record(pushes, "a", collapse_id="x")
    record(pushes, "a", collapse_id="x", error="Unregistered")
    record(pushes, "a", collapse_id="y")
    assert pushes.tries("a", "x") == 2


def test_forgetting_does_not_use_an_id_again(pushes):
    record(pushes, "a")
    pushes.clear()
    record(pushes, "b")
    assert [push["id"] for push in pushes.since(0)] == [2]


def test_only_the_owner_of_the_file_reads_the_tokens_in_it(tmp_path):
    (tmp_path / "pushes").touch(mode=0o644)
    with closing(Pushes(tmp_path / "pushes")) as kept:
        record(kept, "t")
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
