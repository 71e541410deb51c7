"""Tests of facts: those that are shared are read with their types and may be missing, one is computed once for all
threads, and a lasting condition is reported once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from threading import Event, Thread

import orjson
import pytest
from django.conf import LazySettings
from django.core.cache import cache
from redis import Redis
from structlog.testing import capture_logs

from embedded.servers.ports import free_port
from kit.health.change_filter import ChangeFilter
from kit.health.recent import Recent
from kit.health.status_cache import StatusCache


class Weather(StrEnum):
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Part:
    id: str


@dataclass(frozen=True, slots=True)
class Fact:
    at: datetime
    day: date | None
    weather: Weather
    parts: tuple[Part, ...]
    since: Mapping[str, datetime]
    took_ms: dict[str, int | None]


NOW = datetime(2026, 11, 24, 12, 30, 0, 123456, tzinfo=UTC)
FACT = Fact(NOW, NOW.date(), Weather.FINE, (Part("a"), Part("b")), {"a": NOW}, {"first": 12, "second": None})
FACTS = StatusCache("test_facts", Fact, ttl_seconds=60)


@pytest.mark.parametrize("fact", [FACT, replace(FACT, day=None, parts=(), since={}, took_ms={})])
def test_a_fact_is_read_as_it_was_saved(fact: Fact) -> None:
    FACTS.save(fact, "one")
    assert FACTS.read("one") == fact
    assert FACTS.read_all(["none", "one"]) == {"one": fact}


def test_facts_are_stored_as_json(settings: LazySettings) -> None:
    FACTS.save(FACT, "raw")
    with Redis.from_url(settings.REDIS_URL) as redis:
        raw = redis.get(cache.make_key(FACTS.key("raw")))
    assert isinstance(raw, bytes)
    assert orjson.loads(raw)["parts"] == [{"id": "a"}, {"id": "b"}]


@pytest.mark.parametrize("shape", [{}, {"at": 7}, "a word", ["a", "list"], None])
def test_a_fact_of_another_shape_counts_as_missing(shape: object) -> None:
    cache.set(FACTS.key("old"), shape)
    assert FACTS.read("old") is None


def test_a_value_that_is_not_json_counts_as_missing(settings: LazySettings) -> None:
    with Redis.from_url(settings.REDIS_URL) as redis:
        redis.set(cache.make_key(FACTS.key("pickled")), b"\x80\x05N.")
    assert FACTS.read("pickled") is None


def test_neither_reader_nor_writer_fails_while_the_cache_is_away(settings: LazySettings) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": nowhere}}
    with capture_logs() as logs:
        FACTS.save(FACT, "one")
        FACTS.save(FACT, "two")
    assert [line["event"] for line in logs] == ["status_not_saved"]
    assert FACTS.read("one") is None
    assert FACTS.read_all(["one"]) == {}


# Values in memory -----------------------------------------------------------------------------------------------------


def test_a_value_is_computed_again_when_it_is_old_or_forgotten() -> None:
    seconds = [60.0]
    values = iter("abc")
    recent = Recent(lambda: next(values), lambda: seconds[0])
    assert [recent.get(), recent.get()] == ["a", "a"]
    seconds[0] = 0
    assert recent.get() == "b"
    seconds[0] = 60
    recent.forget()
    assert [recent.get(), recent.get()] == ["c", "c"]


def test_the_last_value_is_returned_while_another_thread_computes_a_new_one() -> None:
    asked, may_answer = Event(), Event()

    def find() -> int:
        if found:
            asked.set()
            assert may_answer.wait(10)
        found.append(None)
        return len(found)

    found: list[None] = []
    recent = Recent(find, lambda: 0)
    assert recent.get() == 1
    thread = Thread(target=recent.get)
    thread.start()
    assert asked.wait(10)
    assert recent.get() == 1
    may_answer.set()
    thread.join(10)
    assert len(found) == 2


def test_a_computation_that_failed_is_repeated() -> None:
    answers = [ValueError(), 7]

    def find() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recent = Recent(find, lambda: 60)
    with pytest.raises(ValueError):  # noqa: PT011 - the only one there is
        recent.get()
    assert recent.get() == 7


@pytest.mark.parametrize(
    ("conditions", "changed"),
    [
        ([""], [False]),
        (["away", "away"], [True, False]),
        (["away", "full", "away"], [True, True, True]),
        (["away", "", "", "away"], [True, True, False, True]),
    ],
)
def test_a_condition_has_changed_when_it_differs_from_the_last_one(conditions: list[str], changed: list[bool]) -> None:
    change_filter = ChangeFilter()

    assert [change_filter.has_changed(words) for words in conditions] == changed
