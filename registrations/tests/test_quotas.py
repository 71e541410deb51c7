"""Tests of the quotas of registrations, which never refuse changes of known installations."""

from dataclasses import replace
from datetime import datetime, timedelta
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
from tests.rig.statements import statements

pytestmark = pytest.mark.django_db


def key(number: int) -> bytes:
    return number.to_bytes(64)


def registration_of(number: int, installation: int = 1, *, version: int = 1, **fields: Any) -> Submission:
    """Return the registration of an installation of a key, both given by number."""
    message = replace(MESSAGE, installation_id=str(UUID(int=installation)), version=version, **fields)
    return Submission(key(number), repr(message).encode(), message, grant_verified=True)


def unregistration_of(number: int, installation: int = 1, *, version: int = 2) -> Submission:
    return registration_of(number, installation, version=version, unregister=True)


def register(*submissions: Submission, now: datetime = NOW, is_import: bool = False) -> list[Acceptance | Refusal]:
    outcomes = intake.register(submissions, bridge="waku", gateway="gorush", is_import=is_import, now=now)
    return [outcome.decision for outcome in outcomes]


@pytest.fixture(autouse=True)
def buckets(monkeypatch: pytest.MonkeyPatch) -> SharedBuckets:
    own = SharedBuckets(Share())
    monkeypatch.setattr(quotas, "own_buckets", lambda: own)
    return own


def test_a_key_at_its_limit_can_change_its_installations_and_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 2)
    register(registration_of(1, 1), registration_of(1, 2))
    assert register(registration_of(1, 1, version=2), unregistration_of(1, 2), registration_of(1, 3)) == [
        Acceptance.REGISTER,
        Acceptance.UNREGISTER,
        Acceptance.REGISTER,
    ]
    assert register(registration_of(1, 2, version=3)) == [
        Refusal.TOO_MANY_INSTALLATIONS
    ]  # a tombstone does not come back


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_new_installation_replaces_the_one_that_has_been_dead_for_longest(
    monkeypatch: pytest.MonkeyPatch, is_one_batch: bool
) -> None:
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 3)
    register(*[registration_of(1, installation) for installation in range(3)], registration_of(2))
    routes = []
    for installation, day in ((0, 3), (1, 2)):
        route = Registration.objects.get(public_key_hash=key(1), installation_id=str(UUID(int=installation))).route
        assert route is not None
        route.state, route.disabled_at = Route.State.DISABLED, NOW + timedelta(days=day)
        route.save()
        routes.append(route.pk)
    submissions = [registration_of(1, installation) for installation in (3, 4, 5)]
    batches = [submissions] if is_one_batch else [[each] for each in submissions]
    outcomes = [
        each for batch in batches for each in intake.register(batch, bridge="waku", gateway="a gateway", now=NOW)
    ]
    assert [each.decision for each in outcomes] == [Acceptance.REGISTER] * 2 + [Refusal.TOO_MANY_INSTALLATIONS]
    assert [list(each.removed_route_ids) for each in outcomes] == [[routes[1]], [routes[0]], []]
    active = Registration.objects.filter(public_key_hash=key(1), state=Registration.State.ACTIVE)
    assert {UUID(each.installation_id).int for each in active} == {2, 3, 4}
    assert Route.objects.count() == 4


def test_new_installations_are_limited_and_known_ones_are_not(settings: LazySettings) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 10
    assert register(*map(registration_of, range(12))).count(Acceptance.REGISTER) == 10
    decisions = register(registration_of(1, version=2), *map(unregistration_of, range(5000, 5020)))
    assert decisions == [Acceptance.REGISTER] + [Acceptance.UNREGISTER] * 20


def test_a_batch_that_is_rolled_back_takes_nothing_from_the_bucket(
    settings: LazySettings, buckets: SharedBuckets
) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 10
    for first in (0, 2, 20):
        with transaction.atomic():
            register(*map(registration_of, range(first, first + 2 + first // 2)))
            transaction.set_rollback(True)
        buckets.take_back()
    assert register(*map(registration_of, range(40, 50))) == [Acceptance.REGISTER] * 10


def test_a_refused_installation_takes_nothing_from_the_bucket(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 10
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 1)
    register(registration_of(1))
    for _ in range(20):
        refused = register(registration_of(1, 2), registration_of(1, 3))
        assert refused == [Refusal.TOO_MANY_INSTALLATIONS] * 2
    assert register(*map(registration_of, range(10, 20))).count(Acceptance.REGISTER) == 9


def test_a_batch_without_new_installations_counts_no_rows() -> None:
    register(registration_of(1))
    with statements() as known:
        register(registration_of(1, version=2))
    with statements() as new:
        register(registration_of(2))
    assert ["pg_class" in " ".join(sent) for sent in (known, new)] == [False, True]


def test_statistics_distinguish_tombstones_from_registrations() -> None:
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
        capacity = quotas.capacity_for([], [], bridge="waku", is_paced=True, now=NOW)
        Registration.objects.all().delete()
        cursor.execute("ANALYZE registrations_registration")  # a rollback does not undo the first ANALYZE
    assert capacity.free == pytest.approx(2_000_000 - 1000, abs=1)
