"""Tests of the full table of registrations: replaced ones, proven ones, and tombstones that are forgotten."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db import connection, transaction

from registrations.models import Grant, Registration, RegistrationEvent, Route
from registrations.routes.routes import note_delivered
from registrations.rules import PROVEN_PER_ADDRESS, Acceptance, Refusal
from registrations.tests.test_intake import NOW
from registrations.tests.test_quotas import key, register, registration_of, unregistration_of
from registrations.upkeep import stock
from tests.rig.statements import other_session

HOUR = timedelta(hours=1)
pytestmark = pytest.mark.django_db


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


def test_each_of_an_hour_is_as_likely_to_go_as_another(settings: LazySettings) -> None:
    settings.MAX_REGISTRATIONS, went = 10, set[int]()
    register(*map(registration_of, range(10)))
    for _ in range(60):
        with transaction.atomic():
            register(registration_of(99), now=NOW + 2 * HOUR)
            went |= set(range(10)) - stored()
            transaction.set_rollback(True)
    assert len(went) >= 8


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
    start = threading.Barrier(8, timeout=10)

    def work(worker: int) -> list[Acceptance | Refusal]:
        start.wait()
        try:
            decisions = []
            for batch in range(4):  # each of three new ones, and of one that may just be replaced
                numbers = [1000 + 100 * worker + 10 * batch + each for each in range(3)]
                known = registration_of(10 * worker + batch, version=2)
                decisions += register(*map(registration_of, numbers), known, now=NOW + HOUR)
            return decisions
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as workers:
        decisions = [each for found in workers.map(work, range(8)) for each in found]
    assert set(decisions) == {Acceptance.REGISTER}
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
    monkeypatch.setattr(stock, "MAX_FORGETTABLE", 2)
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
    monkeypatch.setattr(stock, "MAX_FORGETTABLE", 2)
    register(registration_of(1))
    Registration.objects.update(is_forgettable=True)  # that release does not write the column
    for number in (2, 3):
        register(unregistration_of(number), now=NOW + number * HOUR)
    assert stored() == {1, 3}
