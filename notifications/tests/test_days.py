"""Tests of the partitions by day: ended rows move to their day, repeats are still recognised, and old days are dropped.

The cases are midnight, clocks that jump, a missing partition, another worker that was faster, and replayed requests.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import LazySettings
from django.db import DatabaseError, IntegrityError, transaction
from django.utils import timezone

from kit.db.base import fetch
from kit.db.clock import with_days
from kit.db.partitions import MADE_AHEAD
from kit.db.reasons import is_conflict
from notifications import retention, tasks
from notifications.acceptance import storing
from notifications.acceptance.statements import REFUSE_ENDED
from notifications.acceptance.tests.test_acceptance import (
    BRIDGE,
    SENDER,
    accept,
    incoming,
    make_recipient,
    push,
    reported,
    settled,
)
from notifications.acceptance.tests.test_storing import pushed, store_as
from notifications.messages import ReportError
from notifications.models import (
    Attempt,
    EndedNotification,
    Notification,
    NotificationRequest,
    OpenNotification,
    RequestDigest,
)
from notifications.queues.ending import end
from tests.rig import databases
from tests.rig.rows import BEHIND, make_answered_request, make_attempt, make_notification, make_request
from tests.rig.statements import generic_plan, statements

pytestmark = pytest.mark.django_db
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT = timedelta(milliseconds=100)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
State = Notification.State


@pytest.fixture(params=["days", "default"], scope="module", autouse=True)
def _partitions(request, django_db_setup, django_db_blocker, new_database) -> Iterator[None]:
    """Connect to a database with partitions of the days, or to one where all rows are in the default partition."""
    with databases.connected_to(new_database("days")):
        if request.param == "days":
            with django_db_blocker.unblock(), transaction.atomic():
                for table in retention.BY_DAY:
                    table.make_from(MIDNIGHT - 3 * DAY, to=MIDNIGHT + 3 * DAY)
        yield


def partitions(model: type[Notification | NotificationRequest]) -> list[str]:
    """Return where the rows are: open, on a day, or in the default partition."""
    open_rows, ended = (table._meta.db_table for table in BEHIND[model])
    sql = f"SELECT id, 'open' FROM {open_rows} UNION ALL SELECT id, tableoid::regclass::text FROM {ended} ORDER BY 1"
    return [name.removeprefix(f"{ended}_") for _, name in fetch(sql)]


def deliver(accepted, *, at: datetime, state=State.DELIVERED) -> None:
    """End the accepted notifications."""
    ids = [claim.notification_id for claim in accepted.claims]
    OpenNotification.objects.filter(pk__in=ids).update(state=State.RETRYING)
    assert end(ids, state, now=at) == len(ids) > 0


def repeat(*, at: datetime, amm: bytes = b"\x02" * 32):
    """Accept the same push in another request."""
    return accept([incoming(push(), amm=amm)], now=at)


# Moving ---------------------------------------------------------------------------------------------------------------


def test_open_rows_share_one_table_and_ended_rows_are_on_their_day(request) -> None:
    day = "d20260101" if "days" in request.node.name else "default"
    make_recipient()
    accepted = accept([incoming(push())], now=MIDNIGHT - HOUR)
    assert (partitions(Notification), partitions(NotificationRequest)) == (["open"], ["open"])
    deliver(accepted, at=MIDNIGHT - MOMENT)
    settled(accepted, now=MIDNIGHT - MOMENT)
    assert (partitions(Notification), partitions(NotificationRequest)) == ([day], [day])


def test_a_request_that_is_answered_at_once_is_never_under_way() -> None:
    storing.store_pushes(BRIDGE, [(pushed(), SENDER)], now=MIDNIGHT)
    assert partitions(NotificationRequest) not in ([], ["open"])


@pytest.mark.parametrize("state", [state for state in State if state.is_terminal])
def test_no_ended_notification_can_be_among_the_open_ones(state: State) -> None:
    notification = make_notification()
    with pytest.raises(IntegrityError, match="open_notification_state"), transaction.atomic():
        OpenNotification.objects.filter(pk=notification.pk).update(state=state)


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
    [answer] = settled(again, now=repeated_at + MINUTE)
    assert (again.claims, answer.reports[0].error) == ([], ReportError.NONE)


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


def is_refused(store: Callable[[], None]) -> bool:
    """Return whether the database refuses what is stored because of another worker's."""
    try:
        with transaction.atomic():
            store()
            fetch("SELECT")
    except DatabaseError as error:
        return is_conflict(error)
    return False


def test_a_key_that_another_worker_stored_and_ended_meanwhile_is_refused() -> None:
    """The unique index of the rows under way does not have the key any more."""
    first, second = pushed(), pushed()
    storing.store_pushes(BRIDGE, [(first, SENDER)], now=MIDNIGHT - MOMENT)
    assert end([Notification.objects.get().pk], State.EXPIRED, now=MIDNIGHT - MOMENT) == 1
    assert is_refused(lambda: storing.store_pushes(BRIDGE, [(second, SENDER)], now=MIDNIGHT + MOMENT))
    assert Notification.objects.count() == 1


def test_a_request_that_another_worker_stored_meanwhile_is_refused() -> None:
    first, second = pushed(key=b"1" * 32), pushed(key=b"2" * 32)
    store_as([first], [b"r" * 32])
    assert is_refused(lambda: store_as([second], [b"r" * 32]))


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
    """Return which tables of notifications a statement plans for: that of open ones, and partitions."""
    return set(re.findall(r" notifications_(?:(?=open)|endednotification_)(open|default|d\d{8})", generic_plan(sql)))


def test_keys_are_looked_up_in_three_days_and_no_more() -> None:
    days = {f"d{MIDNIGHT + number * DAY:%Y%m%d}" for number in (-1, 0, 1)}
    found = planned(storing.find_known(BRIDGE, [], [], now=MIDNIGHT)[0])
    assert found in ({"open", *days}, {"open", "default"})
    assert planned(with_days(REFUSE_ENDED, MIDNIGHT)) <= found


# Retention: whole days are dropped, without rows under way and without rows that others refer to ----------------------

KEEP = 30 * DAY
NOW, OLD = MIDNIGHT + KEEP + DAY, MIDNIGHT


def left() -> list[int]:
    return [model.objects.count() for model in (NotificationRequest, Notification)]


def make_ended(*, ended_at=OLD) -> Notification:
    return make_notification(request=make_answered_request(at=OLD), state="delivered", at=OLD, finished_at=ended_at)


def purge() -> None:
    for _ in retention.purge(now=NOW, keep=KEEP):
        pass


@pytest.mark.parametrize("are_over", [True, False])
def test_a_day_is_dropped_with_all_that_ended_on_it_and_what_is_under_way_stays_with_its_request(
    are_over: bool,
) -> None:
    states = [state for state in State if state.is_terminal is are_over]
    for state in states:
        ended = {"finished_at": OLD} if are_over else {}
        make_notification(request=make_answered_request(at=OLD), state=state, at=OLD, **ended)
    purge()
    assert left() == [0 if are_over else len(states)] * 2


def test_an_old_request_that_waits_for_its_answer_stays() -> None:
    make_request(at=OLD)
    purge()
    assert left() == [1, 0]


def test_a_request_is_kept_for_as_long_as_a_notification_of_it_that_ended_days_later() -> None:
    notification = make_ended(ended_at=OLD + 3 * DAY)
    purge()
    assert left() == [1, 1]
    EndedNotification.objects.filter(pk=notification.pk).delete()
    purge()
    assert left() == [0, 0]


def test_attempts_are_dropped_with_their_day_and_new_days_are_made() -> None:
    attempts = [make_attempt(started_at=at) for at in (OLD, NOW - KEEP, NOW)]
    purge()
    assert list(Attempt.objects.order_by("pk")) == attempts[1:]
    for table in retention.BY_DAY:
        assert {NOW.date(), (NOW + MADE_AHEAD * DAY).date()} <= table.days()
        assert min(table.days()) >= (NOW - KEEP).date() or table is retention.REQUESTS


def test_as_many_statements_remove_a_hundred_requests_as_one() -> None:
    def sent_for(number: int) -> list[str]:
        for _ in range(number):
            make_attempt(make_ended())
        with statements() as sent:
            purge()
        assert left() == [0, 0]
        return sent

    for table in retention.BY_DAY:
        table.make_from(OLD, to=NOW)
        table.make_ahead(now=NOW)
    sent_for(1)
    assert len(sent_for(100)) == len(sent_for(1))


# Keys of requests, which outlive their rows, because the protocol signs no time ---------------------------------------


def accept_and_purge(**fields) -> None:
    """Accept a push that is delivered, and remove it when its time has come. Its key would stay for longer."""
    make_recipient()
    accepted = accept([incoming(push(), **fields)], now=OLD)
    deliver(accepted, at=OLD)
    settled(accepted, now=OLD + MINUTE)
    purge()
    assert sum(retention.purge_digests(now=NOW, keep=3 * KEEP)) == 0
    assert not NotificationRequest.objects.exists()


def test_a_recording_is_neither_carried_out_nor_answered_once_its_request_is_removed():
    accept_and_purge()
    replayed = accept([incoming(push(), envelope=b"\x0f" * 32)], now=NOW)
    assert (replayed.claims, replayed.waiting, replayed.answers) == ([], [], [])
    assert replayed.replayed == {b"\x0f" * 32}
    assert not NotificationRequest.objects.exists()


def test_the_key_of_a_request_that_is_never_repeated_is_not_kept():
    accept_and_purge(amm=b"a key that ends with the time of the push")
    assert not RequestDigest.objects.exists()


def test_the_task_keeps_the_keys_of_all_requests_that_are_there(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
):
    settings.NOTIFICATION_RETENTION_DAYS = 30
    monkeypatch.setattr(tasks, "KEYS_KEPT", DAY)
    for days in (29, 31):
        RequestDigest.objects.create(digest=b"%016d" % days, received_at=timezone.now() - days * DAY)
    tasks.purge()
    assert [bytes(each.digest) for each in RequestDigest.objects.all()] == [b"%016d" % 29]
