"""Tests of the partitions by day: ended rows move to their day, and repeats are still recognised.

The cases are midnight, clocks that jump, a missing partition, and another worker that was faster.
"""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, IntegrityError, transaction

from kit.db.partitions import with_days
from kit.db.reasons import is_conflict
from kit.db.statements import fetch
from notifications import retention
from notifications.acceptance import storing
from notifications.acceptance.storing import NewRequest
from notifications.acceptance.tests.test_acceptance import (
    BRIDGE,
    accept,
    incoming,
    make_recipient,
    push,
    reported,
    settled,
)
from notifications.acceptance.tests.test_storing import pushed
from notifications.messages import ReportError
from notifications.models import Notification, NotificationRequest
from notifications.rules.transitions import end
from tests.rig.rows import make_notification, make_request
from tests.rig.statements import generic_plan

pytestmark = pytest.mark.django_db
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT = timedelta(milliseconds=100)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
State = Notification.State


@pytest.fixture(params=["days", "default"], autouse=True)
def _partitions(request: pytest.FixtureRequest) -> None:
    """Create the partitions of the days, or leave the rows to the default partition."""
    if request.param == "days":
        for table in retention.BY_DAY:
            table.make_from(MIDNIGHT - 3 * DAY, to=MIDNIGHT + 3 * DAY)


def partitions(model: type[Notification | NotificationRequest]) -> list[str]:
    """Return the partitions of the rows: under way, a day, or the default partition."""
    table = model._meta.db_table
    rows = fetch(f"SELECT replace(tableoid::regclass::text, '{table}_', '') FROM {table} ORDER BY id")
    return [name for (name,) in rows]


def deliver(accepted, *, at: datetime, state=State.DELIVERED) -> None:
    """End the accepted notifications."""
    ids = [claim.notification_id for claim in accepted.claims]
    assert end(Notification.objects.filter(pk__in=ids), state, now=at) == len(ids) > 0


def repeat(*, at: datetime, amm: bytes = b"\x02" * 32):
    """Accept the same push in another request."""
    return accept([incoming(push(), amm=amm)], now=at)


# Moving ---------------------------------------------------------------------------------------------------------------


def test_rows_under_way_share_one_partition_and_ended_rows_are_on_their_day(request) -> None:
    day = "d20260101" if "days" in request.node.name else "default"
    make_recipient()
    accepted = accept([incoming(push())], now=MIDNIGHT - HOUR)
    assert (partitions(Notification), partitions(NotificationRequest)) == (["under_way"], ["under_way"])
    deliver(accepted, at=MIDNIGHT - MOMENT)
    settled(accepted, now=MIDNIGHT - MOMENT)
    assert (partitions(Notification), partitions(NotificationRequest)) == ([day], [day])


def test_a_request_that_is_answered_at_once_is_never_under_way() -> None:
    storing.store_pushes(BRIDGE, [pushed()], now=MIDNIGHT)
    assert partitions(NotificationRequest) not in ([], ["under_way"])


@pytest.mark.parametrize("state", [state for state in State if not state.is_terminal])
def test_no_open_notification_can_be_on_a_day(state: State) -> None:
    with pytest.raises(IntegrityError, match="notification_under_way"), transaction.atomic():
        make_notification(state=state, ended_on=MIDNIGHT.date())


def test_no_request_that_waits_can_be_on_a_day() -> None:
    with pytest.raises(IntegrityError, match="request_under_way"), transaction.atomic():
        make_request(ended_on=MIDNIGHT.date())


# Repeats --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended_at", "repeated_at"),
    [
        (MIDNIGHT - MOMENT, MIDNIGHT + MOMENT),
        (MIDNIGHT - DAY + MOMENT, MIDNIGHT - MOMENT),
        (MIDNIGHT - DAY + MOMENT, MIDNIGHT),
        (MIDNIGHT + MOMENT, MIDNIGHT - MOMENT),  # the clock was set back
        (MIDNIGHT + HOUR, MIDNIGHT - 20 * HOUR),
    ],
)
def test_a_push_is_recognised_for_a_day_across_midnight(ended_at: datetime, repeated_at: datetime) -> None:
    make_recipient()
    deliver(accept([incoming(push())], now=ended_at), at=ended_at)
    again = repeat(at=repeated_at)
    assert (again.claims, again.waiting[0].answer().reports[0].error) == ([], ReportError.NONE)


@pytest.mark.parametrize("ended_after", [MOMENT, 2 * HOUR, 23 * HOUR])
def test_a_push_is_recognised_for_24_hours_and_no_longer(ended_after: timedelta) -> None:
    make_recipient()
    began = MIDNIGHT - 2 * HOUR
    deliver(accept([incoming(push())], now=began), at=began + ended_after)
    assert repeat(at=began + DAY - MOMENT).claims == []
    assert len(repeat(at=began + DAY, amm=b"\x03" * 32).claims) == 1


def test_a_push_that_reached_nobody_yesterday_may_be_sent_again() -> None:
    make_recipient()
    deliver(accept([incoming(push())], now=MIDNIGHT - MOMENT), at=MIDNIGHT - MOMENT, state=State.DEAD_TOKEN)
    assert len(repeat(at=MIDNIGHT + MOMENT).claims) == 1


def is_refused(push: NewRequest, *, at: datetime) -> bool:
    """Return whether the database refuses a push because of another worker's."""
    try:
        with transaction.atomic():
            storing.store_pushes(BRIDGE, [push], now=at)
            fetch("SELECT")
    except DatabaseError as error:
        return is_conflict(error)
    return False


def test_a_key_that_another_worker_stored_and_ended_meanwhile_is_refused() -> None:
    """The unique index of the rows under way does not have the key any more."""
    first, second = pushed(), pushed()
    storing.store_pushes(BRIDGE, [first], now=MIDNIGHT - MOMENT)
    assert end(Notification.objects.all(), State.EXPIRED, now=MIDNIGHT - MOMENT) == 1
    assert is_refused(second, at=MIDNIGHT + MOMENT)
    assert Notification.objects.count() == 1


def test_a_request_that_another_worker_stored_meanwhile_is_refused() -> None:
    first, second = (replace(pushed(key=key), request_key=b"r" * 32) for key in (b"1" * 32, b"2" * 32))
    storing.store_pushes(BRIDGE, [first], now=MIDNIGHT)
    assert is_refused(second, at=MIDNIGHT)


def test_a_repeated_request_is_answered_as_yesterday_and_delivers_nothing() -> None:
    make_recipient()
    accepted = accept([incoming(push(), push(access_token="wrong"))], now=MIDNIGHT - HOUR)
    deliver(accepted, at=MIDNIGHT - MOMENT)
    [first] = settled(accepted, now=MIDNIGHT - MOMENT)
    again = accept([incoming(push(), push(access_token="wrong"))], now=MIDNIGHT + MOMENT)
    assert again.claims == []
    assert [reported(answer) for answer in again.answers] == [reported(first)]


def test_a_request_that_waits_across_midnight_is_answered_with_results_of_the_day_before() -> None:
    make_recipient()
    accepted = accept([incoming(push())], now=MIDNIGHT - HOUR)
    deliver(accepted, at=MIDNIGHT - MOMENT, state=State.DEAD_TOKEN)
    [answer] = settled(accepted, now=MIDNIGHT + 5 * DAY)
    assert [report.success for report in answer.reports] == [False]
    assert Notification.objects.get().report == "not_registered"


# Plans ----------------------------------------------------------------------------------------------------------------


def planned(sql: str) -> set[str]:
    """Return which partitions a statement plans for."""
    return set(re.findall(r" on notifications_notification(?:request)?_(under_way|default|d\d{8})", generic_plan(sql)))


def test_keys_are_looked_up_in_three_days_and_no_more() -> None:
    days = {f"d{MIDNIGHT + number * DAY:%Y%m%d}" for number in (-1, 0, 1)}
    found = planned(storing.find_known(BRIDGE, [], [], now=MIDNIGHT)[0])
    assert found in ({"under_way", *days}, {"under_way", "default"})
    assert planned(with_days(storing._REFUSE_ENDED, MIDNIGHT)) <= found
