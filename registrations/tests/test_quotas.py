"""How much anybody can register, and that what is known already is never refused for it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.db import connection, transaction

from kit.buckets.share import Share
from kit.buckets.shared import SharedBuckets
from registrations.models import Registration, Route
from registrations.registering import intake, quotas
from registrations.registering.intake import Submission
from registrations.rules import Acceptance, Refusal
from registrations.tests.test_intake import MESSAGE, NOW
from tests import factories
from tests.statements import statements

pytestmark = pytest.mark.django_db


def key(number: int) -> bytes:
    return number.to_bytes(64)


def shown(number: int, installation: int = 1, *, version: int = 1, **fields: Any) -> Submission:
    """What the key of this number says about its installation of that number."""
    message = replace(MESSAGE, installation_id=str(UUID(int=installation)), version=version, **fields)
    return Submission(key(number), repr(message).encode(), message, grant_verified=True)


def left(number: int, installation: int = 1, *, version: int = 2) -> Submission:
    return shown(number, installation, version=version, unregister=True)


def register(*submissions: Submission) -> list[Acceptance | Refusal]:
    outcomes = intake.register(submissions, bridge="waku", gateway="a gateway", now=NOW)
    return [outcome.decision for outcome in outcomes]


@pytest.fixture(autouse=True)
def buckets(monkeypatch: pytest.MonkeyPatch) -> SharedBuckets:
    own = SharedBuckets(Share())
    monkeypatch.setattr(quotas, "own_buckets", lambda: own)
    return own


class OneOfEight(Share):
    part = 1 / 8


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_key_has_so_many_installations_and_no_more(monkeypatch: pytest.MonkeyPatch, is_one_batch: bool) -> None:
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 3)
    submissions = [shown(1, installation) for installation in range(5)]
    decisions = register(*submissions) if is_one_batch else [register(each)[0] for each in submissions]
    assert decisions == [Acceptance.REGISTER] * 3 + [Refusal.TOO_MANY_INSTALLATIONS] * 2
    assert register(shown(2)) == [Acceptance.REGISTER]


def test_who_has_them_all_can_change_them_and_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 2)
    register(shown(1, 1), shown(1, 2))
    assert register(shown(1, 1, version=2), left(1, 2), shown(1, 3)) == [
        Acceptance.REGISTER,
        Acceptance.UNREGISTER,
        Acceptance.REGISTER,
    ]
    assert register(shown(1, 2, version=3)) == [Refusal.TOO_MANY_INSTALLATIONS]  # a tombstone does not come back


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_the_longest_dead_installation_makes_room(monkeypatch: pytest.MonkeyPatch, is_one_batch: bool) -> None:
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 3)
    register(*[shown(1, installation) for installation in range(3)], shown(2))
    routes = []
    for installation, day in ((0, 3), (1, 2)):
        route = Registration.objects.get(public_key_hash=key(1), installation_id=str(UUID(int=installation))).route
        assert route is not None
        route.state, route.disabled_at = Route.State.DISABLED, NOW + timedelta(days=day)
        route.save()
        routes.append(route.pk)
    submissions = [shown(1, installation) for installation in (3, 4, 5)]
    batches = [submissions] if is_one_batch else [[each] for each in submissions]
    outcomes = [
        each for batch in batches for each in intake.register(batch, bridge="waku", gateway="a gateway", now=NOW)
    ]
    assert [each.decision for each in outcomes] == [Acceptance.REGISTER] * 2 + [Refusal.TOO_MANY_INSTALLATIONS]
    assert [list(each.removed_route_ids) for each in outcomes] == [[routes[1]], [routes[0]], []]
    active = Registration.objects.filter(public_key_hash=key(1), state=Registration.State.ACTIVE)
    assert {UUID(each.installation_id).int for each in active} == {2, 3, 4}
    assert Route.objects.count() == 4


def test_what_nobody_knew_is_taken_so_often_a_minute(settings: LazySettings) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 1  # and ten are saved up
    assert register(*map(shown, range(4)), *map(left, range(4, 8))).count(Acceptance.UNREGISTER) == 4
    decisions = register(*map(shown, range(8, 12)), shown(1, version=2), left(2))
    assert decisions[:2] == [Acceptance.REGISTER] * 2
    assert decisions[2:4] == [Refusal.TOO_MANY_NEW] * 2
    assert decisions[4:] == [Acceptance.REGISTER, Acceptance.UNREGISTER]  # known ones, whatever else goes on
    assert Registration.objects.count() == 10


def test_in_a_day_no_more_are_taken_than_would_fill_the_table_in_weeks(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 10
    monkeypatch.setattr(quotas, "MINUTES_WORTH_A_DAY", 15)
    decisions, began_at = [], NOW
    for hour in range(24):
        monkeypatch.setattr("registrations.tests.test_quotas.NOW", began_at + timedelta(hours=hour))
        decisions += register(*map(shown, range(100 * hour, 100 * hour + 100)))
    assert 150 <= decisions.count(Acceptance.REGISTER) <= 2 * 150 + 2


def test_a_batch_that_is_rolled_back_takes_nothing_from_the_bucket(
    settings: LazySettings, buckets: SharedBuckets
) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 1
    for first in (0, 2, 20):
        with transaction.atomic():
            register(*map(shown, range(first, first + 2 + first // 2)))
            transaction.set_rollback(True)
        buckets.take_back()
    assert register(*map(shown, range(40, 50))) == [Acceptance.REGISTER] * 10


def test_what_is_refused_takes_nothing_from_the_bucket(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 1
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 1)
    register(shown(1))
    for _ in range(20):
        refused = register(shown(1, 2), shown(1, 3))
        assert refused == [Refusal.TOO_MANY_INSTALLATIONS] * 2
    assert register(*map(shown, range(10, 20))).count(Acceptance.REGISTER) == 9


def test_all_workers_together_take_no_more_than_one(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 1
    decisions = []
    for worker in range(8):
        monkeypatch.setattr(quotas, "own_buckets", lambda own=SharedBuckets(OneOfEight()): own)  # noqa: B008
        decisions += register(*map(shown, range(worker * 10, worker * 10 + 10)))
    assert 10 <= decisions.count(Acceptance.REGISTER) <= 12


def test_so_many_are_stored_in_all(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 3
    factories.make_registration()
    assert register(shown(1), shown(2), shown(3)) == [Acceptance.REGISTER, Acceptance.REGISTER, Refusal.FULL]
    assert register(shown(1, version=2), shown(2, version=2)) == [Acceptance.REGISTER] * 2


def test_a_batch_that_brings_nothing_new_counts_nothing() -> None:
    register(shown(1))
    with statements() as known:
        register(shown(1, version=2))
    with statements() as new:
        register(shown(2))
    assert ["pg_class" in " ".join(sent) for sent in (known, new)] == [False, True]


def test_what_is_unregistered_without_being_known_has_a_bound_of_its_own(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 8
    assert register(*map(left, range(4))) == [Acceptance.UNREGISTER] * 2 + [Refusal.FULL] * 2
    assert register(*map(shown, range(10, 20))) == [Acceptance.REGISTER] * 8 + [Refusal.FULL] * 2
    assert register(*map(left, range(10, 14))) == [Acceptance.UNREGISTER] * 4  # known ones, however many there are
    assert register(left(4)) == [Refusal.FULL]
    assert register(*(shown(number, version=3) for number in (0, 1, 10, 11, 12))) == [
        *[Acceptance.REGISTER] * 4,
        Refusal.FULL,
    ]


def test_tombstones_are_told_from_registrations_by_statistics_too() -> None:
    Registration.objects.bulk_create(
        Registration(
            public_key_hash=key(number),
            installation_id="1",
            version=1,
            state="unregistered" if number % 4 else "active",
            content_digest=b"",
            created_at=NOW,
            updated_at=NOW,
        )
        for number in range(4000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE registrations_registration")
        capacity = quotas.capacity_for([], 0, now=NOW)
        Registration.objects.all().delete()
        cursor.execute("ANALYZE registrations_registration")  # no rollback undoes what an ANALYZE wrote
    assert capacity.registrations == pytest.approx(2_000_000 - 1000, abs=1)
    assert capacity.tombstones == pytest.approx(500_000 - 3000, abs=1)


def test_who_registers_and_unregisters_again_and_again_fills_no_more_rows(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 8
    decisions = []
    for number in range(30):
        decisions += register(shown(number), left(number))
    assert Registration.objects.count() == 10
    assert decisions.count(Acceptance.REGISTER) == 10
    assert register(shown(0, version=3)) == [Acceptance.REGISTER]  # known, and there is no row for it to add
    assert quotas.filled(1, 9) == 8


def test_what_comes_back_is_new_as_well(settings: LazySettings) -> None:
    """Or many that were registered and unregistered for weeks would fill the table in an hour."""
    settings.NEW_INSTALLATIONS_PER_MINUTE = 1  # and ten are saved up
    for number in range(5):
        assert register(shown(number), left(number)) == [Acceptance.REGISTER, Acceptance.UNREGISTER]
    decisions = register(*(shown(number, version=3) for number in range(5)))
    assert decisions == [Acceptance.REGISTER] * 5
    assert register(left(0, version=4), shown(0, version=5)) == [Acceptance.UNREGISTER, Acceptance.REGISTER]
    assert register(left(0, version=6)) == [Acceptance.UNREGISTER]
    assert register(shown(0, version=7)) == [Refusal.TOO_MANY_NEW]
