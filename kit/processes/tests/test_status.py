"""Tests of what processes report: shared facts have their types, and a lasting condition is reported once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from enum import StrEnum

import orjson
import pytest
from django.conf import LazySettings
from django.core.cache import cache
from redis import Redis

from embedded.servers.ports import free_port
from kit.processes.status import ChangeFilter, StatusCache
from tests.rig.logs import capture_logs


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


@dataclass(frozen=True, slots=True)
class Widened(Part):
    since: Mapping[str, datetime] = field(default_factory=dict)


def test_a_field_that_the_version_before_did_not_save_has_its_default() -> None:
    StatusCache("test_parts", Part, ttl_seconds=60).save(Part("a"))
    assert StatusCache("test_parts", Widened, ttl_seconds=60).read() == Widened("a")


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
