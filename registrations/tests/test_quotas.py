"""Quotas of registrations, which never refuse changes of known installations, and the full table of them."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.db import connection, transaction

from kit.buckets.shared import Share, SharedBuckets
from registrations import quotas, registering
from registrations.lookup import note_delivered
from registrations.models import Grant, Registration, RegistrationEvent, Route
from registrations.registering import Submission
from registrations.rules import PROVEN_PER_ADDRESS, Acceptance, Refusal
from registrations.tests.test_registering import MESSAGE, NOW
from tests.rig.statements import at_once, other_session, statements

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
    outcomes = registering.register(submissions, bridge="waku", gateway="gorush", is_import=is_import, now=now)
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
        each for batch in batches for each in registering.register(batch, bridge="waku", gateway="a gateway", now=NOW)
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


def test_a_batch_that_is_rolled_back_and_refused_installations_take_nothing_from_the_bucket(
    settings: LazySettings, buckets: SharedBuckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 10
    monkeypatch.setattr(quotas, "INSTALLATIONS_PER_KEY", 1)
    for first in (0, 2, 20):
        with transaction.atomic():
            register(*map(registration_of, range(first, first + 2 + first // 2)))
            transaction.set_rollback(True)
        buckets.take_back()
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


# The full table -------------------------------------------------------------------------------------------------------


HOUR = timedelta(hours=1)


def stored() -> set[int]:
    return {int.from_bytes(each) for each in Registration.objects.values_list("public_key_hash", flat=True)}


def test_new_installations_of_one_batch_replace_those_of_the_fullest_hours_evenly(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 15
    for hour, numbers in enumerate((range(2), range(10, 18), range(20, 25))):
        register(*map(registration_of, numbers), now=NOW + hour * HOUR)
    later = NOW + 9 * HOUR
    assert register(*map(registration_of, range(30, 38)), now=later) == [Acceptance.REGISTER] * 8
    assert stored() >= {0, 1, *range(30, 38)}  # the hours with 8, 5 and 2 have 3 (or 2), 2 (or 3) and 2
    assert {len(stored() & set(numbers)) for numbers in (range(10, 18), range(20, 25))} == {2, 3}
    assert Route.objects.count() == Grant.objects.count() == Registration.objects.count() == 15
    assert RegistrationEvent.objects.filter(kind="expired", at=later).count() == 8


def test_a_registration_that_another_session_keeps_locked_is_passed_over(
    settings: LazySettings, transactional_db: None
) -> None:
    settings.MAX_REGISTRATIONS = 2
    register(*map(registration_of, range(2)))
    with other_session() as other:
        other.execute("SELECT FROM registrations_registration WHERE public_key_hash = %s FOR UPDATE", [key(0)])
        assert register(*map(registration_of, (5, 6)), now=NOW + HOUR) == [Acceptance.REGISTER, Refusal.FULL]
        other.rollback()
    assert stored() == {0, 5}


@pytest.mark.django_db(transaction=True)
def test_eight_workers_replace_registrations_at_the_same_time(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 250
    register(*map(registration_of, range(250)))

    def work(worker: int) -> list[Acceptance | Refusal]:
        decisions = []
        for batch in range(4):  # each of three new ones, and of one that may just be replaced
            numbers = [1000 + 100 * worker + 10 * batch + each for each in range(3)]
            known = registration_of(10 * worker + batch, version=2)
            decisions += register(*map(registration_of, numbers), known, now=NOW + HOUR)
        return decisions

    decided = at_once(*(partial(work, worker) for worker in range(8)))
    assert {decision for decisions in decided for decision in decisions} == {Acceptance.REGISTER}
    assert 250 <= Registration.objects.count() <= 282  # a batch may return one that another batch has just replaced
    assert Route.objects.count() == Registration.objects.count() == Grant.objects.count()


def test_an_imported_installation_stays(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS = 2
    register(registration_of(1), is_import=True)
    register(registration_of(2))
    assert register(*map(registration_of, (3, 4)), now=NOW + HOUR) == [Acceptance.REGISTER, Refusal.FULL]
    assert stored() == {1, 3}


def test_an_installation_that_moves_to_another_address_leaves_no_room_for_one_more() -> None:
    register(*map(registration_of, range(PROVEN_PER_ADDRESS + 1)))
    digests = dict(Route.objects.values_list("pk", "address_digest"))
    note_delivered(digests, now=NOW)
    register(*(registration_of(n, version=2, device_token="made-up" * 20) for n in range(PROVEN_PER_ADDRESS)))
    note_delivered({max(digests): digests[max(digests)]}, now=NOW + 2 * HOUR)
    assert not Route.objects.filter(is_proven=True).exists()


def test_tombstones_of_what_was_reached_or_imported_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_FORGETTABLE", 2)
    register(registration_of(1), registration_of(2))
    Route.objects.filter(registration__public_key_hash=key(1)).update(delivered_digest=b"some other address")
    register(registration_of(3), unregistration_of(4), is_import=True)
    for number in (1, 2, 3, 4, 5, 6, 7):
        register(unregistration_of(number), now=NOW + number * HOUR)
    assert stored() == {1, 3, 4, 6, 7}
    register(registration_of(7, version=3), unregistration_of(8), now=NOW + 9 * HOUR)
    assert stored() == {1, 3, 4, 6, 7, 8}


def test_a_tombstone_that_a_process_of_the_release_before_registered_again_stays(
    monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    monkeypatch.setattr(quotas, "MAX_FORGETTABLE", 2)
    register(registration_of(1))
    Registration.objects.update(is_forgettable=True)  # that release does not write the column
    for number in (2, 3):
        register(unregistration_of(number), now=NOW + number * HOUR)
    assert stored() == {1, 3}
