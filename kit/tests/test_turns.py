"""Turns: one commit for all stages, what becomes of it when a stage trips, and who wakes the thread that makes them."""

import select
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from time import monotonic
from unittest.mock import patch
from uuid import uuid4

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone
from structlog.testing import capture_logs

from kit.db.reasons import REASONS
from kit.db.statements import fetch
from kit.leader import BATCHES
from kit.turns import (
    CALL_FOR_HELP,
    CHANNEL,
    LIMIT,
    OLD,
    OLDEST_EVERY_SECONDS,
    RECENT,
    WAITS,
    BaseStage,
    Bell,
    Work,
    Worker,
    wake,
)
from registrations.models import TopicKey
from tests.delivering import other_session
from tests.statements import statements

pytestmark = pytest.mark.django_db
in_threads = pytest.mark.django_db(transaction=True)


class Numbers(BaseStage):
    """Works off numbers, each by a row with its name. ``hook`` is called with each before it is written, and
    ``hand`` makes of each what the stages behind it get.
    """

    def __init__(self, *numbers, hook=lambda _: None, hand=None):
        self.numbers = list(numbers)
        self.hook = hook
        self.hand = hand
        self.told = []
        self.limits = []
        self.set_aside_numbers = []
        self.put_off_numbers = []

    def next_at(self):
        return 0.0 if self.numbers else None

    def work(self, batch):
        self.limits.append(batch.limit)
        batch.taken = self.numbers[: batch.limit]
        for number in batch.taken:
            self.hook(number)
            write(number)
        handed = [self.hand(number) for number in batch.taken] if self.hand else []
        return Work(batch.taken, handed, is_more_left=len(self.numbers) > batch.limit)

    def committed(self, decided):
        self.told.append(f"committed {len(decided)}")
        self.numbers = self.numbers[len(decided) :]

    def undone(self, batch):
        self.told.append(f"undone {len(batch.taken)}")

    def set_aside(self, error, batch):
        super().set_aside(error, batch)
        [number] = batch.taken
        self.numbers.remove(number)
        self.set_aside_numbers.append(number)

    def put_off(self, batch):
        [number] = batch.taken
        self.numbers.remove(number)
        self.put_off_numbers.append(number)
        return True


class Follower(BaseStage):
    """Writes what other stages handed on, in the commit of those stages."""

    follows = True

    def __init__(self):
        self.sent = []

    def work(self, batch):
        for number in batch.handed:
            write(f"answer to {number}")
        return Work(list(batch.handed))

    def committed(self, decided):
        self.sent += decided


class Rows(BaseStage):
    """Removes rows that wait, and notes how many each time."""

    waits = "SELECT FROM registrations_topickey WHERE topic = 7"

    def __init__(self):
        self.counts = []

    def work(self, batch):
        ids = [key.pk for key in TopicKey.objects.filter(topic=7)[: batch.limit]]
        TopicKey.objects.filter(pk__in=ids).delete()
        self.counts.append(len(ids))
        return Work(None, is_more_left=len(ids) == batch.limit)


def write(name):
    fetch(
        "INSERT INTO registrations_topickey (name, topic, key_encrypted, created_at) VALUES (%s, 1, '', now())",
        [str(name)],
    )


def written():
    return set(TopicKey.objects.filter(topic=1).values_list("name", flat=True))


def add_row():
    """One that a stage of rows waits for."""
    TopicKey.objects.create(name=uuid4().hex, topic=7, key_encrypted=b"", created_at=timezone.now())


def names(*numbers):
    return set(map(str, numbers))


def turn(*stages):
    return Worker(stages, Bell()).turn(now=timezone.now())


def transaction_count():
    """In how many transactions the rows were written."""
    return len(set(fetch("SELECT xmin::text FROM registrations_topickey")))


# One commit -----------------------------------------------------------------------------------------------------------


def test_all_stages_work_in_one_transaction():
    one, other, follower = Numbers(1, 2), Numbers(3), Follower()
    one.hand = int
    assert turn(one, other, follower) is False
    assert written() == names(1, 2, 3, "answer to 1", "answer to 2")
    assert transaction_count() == 1
    assert (one.told, other.told, follower.sent) == (["committed 2"], ["committed 1"], [1, 2])


def test_a_turn_takes_no_more_of_a_stage_than_its_limit_and_says_that_there_is_more():
    stage = Numbers(*range(LIMIT + 1))
    worker = Worker([stage], Bell())
    assert worker.turn(now=timezone.now()) is True
    assert len(written()) == LIMIT
    assert worker.turn(now=timezone.now()) is False
    assert (len(written()), stage.numbers) == (LIMIT + 1, [])


def test_a_turn_without_anything_to_do_writes_nothing():
    stage, rows = Numbers(), Rows()
    with statements() as sent:
        turn(stage, rows)
    assert (stage.limits, rows.counts) == ([], [])
    assert not any("INSERT" in sql or "DELETE" in sql for sql in sent)


def test_stages_without_rows_cost_one_look_for_all_of_them():
    worker = Worker([Rows(), Rows(), Rows()], Bell())
    worker.turn(now=timezone.now())
    worker._look_at = 0.0
    with statements() as sent:
        worker.turn(now=timezone.now())
    assert len([sql for sql in sent if "EXISTS" in sql]) == 1


def test_nothing_is_sent_before_the_commit():
    stage = Numbers(1)
    seen = []
    stage.hook = lambda _: seen.append(list(stage.told))
    turn(stage)
    assert (seen, stage.told) == ([[]], ["committed 1"])


def test_a_stage_that_fails_after_the_commit_keeps_no_other_from_sending():
    def fail():
        raise ValueError

    broken, other = Numbers(1), Numbers(2)
    broken.committed = fail
    turn(broken, other)
    assert written() == names(1, 2)
    assert other.told == ["committed 1"]


class TimedRows(Rows):
    """Rows that are found by the time at which they came."""

    waits = f"{Rows.waits} AND created_at >= %(nothing_before)s"
    oldest = waits.replace("SELECT", "SELECT min(created_at)")


def test_rows_of_any_age_are_found_by_a_worker_that_starts_and_old_ones_that_come_later_after_a_while():
    long_ago, stage = timezone.now() - timedelta(days=3), TimedRows()
    worker = Worker([stage], Bell())

    def turn_after(*, is_oldest_due=False, is_beginning_due=False):
        worker._look_at = 0.0
        worker._oldest_at = 0.0 if is_oldest_due or is_beginning_due else worker._oldest_at
        worker._beginning_at = 0.0 if is_beginning_due else worker._beginning_at
        worker.turn(now=timezone.now())

    def add_old_row():
        add_row()
        TopicKey.objects.update(created_at=long_ago)

    add_old_row()
    worker.turn(now=timezone.now())
    assert stage.counts == [1]
    turn_after(is_beginning_due=True)  # nothing waits
    add_old_row()
    turn_after(is_oldest_due=True)
    assert stage.counts == [1]
    add_row()
    turn_after()
    assert stage.counts == [1, 2]  # what has just come is found at once
    add_old_row()
    turn_after(is_beginning_due=True)
    assert stage.counts == [1, 2, 1]


def test_what_comes_after_the_clock_was_put_back_is_found_at_once():
    stage = TimedRows()
    worker = Worker([stage], Bell())
    for _ in range(2):
        worker._look_at = 0.0
        worker.turn(now=timezone.now() + timedelta(hours=1))
        assert worker._nothing_before == {}
    worker._look_at = 0.0
    worker.turn(now=timezone.now())
    add_row()
    worker._look_at = 0.0
    worker.turn(now=timezone.now())
    assert stage.counts == [1]


SLOW_FROM_THE_BEGINNING = """
    SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL::timestamptz ELSE now() END
    FROM (SELECT CASE WHEN %(nothing_before)s > '2000-01-01' THEN NULL ELSE pg_sleep(20)::text END) AS slept
"""


@in_threads
def test_a_search_for_the_oldest_that_takes_too_long_stops_nobody(monkeypatch):
    """As when somebody keeps an old snapshot open for hours. What was told to be old is found when that is over."""
    stage = TimedRows()
    stage.oldest = SLOW_FROM_THE_BEGINNING
    monkeypatch.setattr("kit.turns.OLDEST_TIMEOUT", "50ms")
    worker = Worker([stage], Bell())
    for _ in range(3):
        worker._look_at = worker._oldest_at = worker._beginning_at = 0.0
        add_row()
        worker.turn(now=(now := timezone.now()))
        assert worker._nothing_before == {stage: now - RECENT}  # from the last mark on it is found out in any case
        assert worker._oldest_at == 0.0 or monotonic() < worker._beginning_at < monotonic() + 2 * OLDEST_EVERY_SECONDS
    assert stage.counts == [1, 1, 1]
    connection.close()  # with the lock of the worker on duty


# A stage that trips ---------------------------------------------------------------------------------------------------


def refuse(*bad):
    def hook(number):
        if number in bad:
            raise ValueError(number)

    return hook


def work_off(worker, *stages, turns=200):
    for _ in range(turns):
        if not any(stage.numbers for stage in stages):
            return
        worker.turn(now=timezone.now())
    pytest.fail("it goes round in circles")


@pytest.mark.parametrize("bad", [[0], [7], [49], [0, 1], [3, 20, 21, 49]])
def test_the_one_that_a_stage_trips_over_is_set_aside_and_all_others_are_processed(bad):
    stage, other = Numbers(*range(50), hook=refuse(*bad)), Numbers(*range(100, 110))
    work_off(Worker([stage, other], Bell()), stage, other)
    assert stage.set_aside_numbers == bad
    assert written() == names(*set(range(50)) - set(bad), *range(100, 110))


def test_items_are_halved_until_the_one_is_alone():
    stage = Numbers(*range(5), hook=refuse(0))
    turn(stage)
    assert stage.limits == [LIMIT, LIMIT, 2, 1]
    assert stage.told == ["undone 5"] * 2 + ["undone 2", "undone 1"]


def test_a_stage_that_trips_does_not_keep_the_others_from_working_in_the_same_turn():
    first, broken, last = Numbers(1), Numbers(2, hook=refuse(2)), Numbers(3)
    turn(first, broken, last)
    assert written() == names(1, 3)
    assert broken.set_aside_numbers == [2]


def test_what_follows_is_in_the_same_commit_also_when_stages_work_apart():
    follower = Follower()
    stage, broken = Numbers(1, 2, hand=int), Numbers(3, hook=refuse(3))
    turn(stage, broken, follower)
    assert written() == names(1, 2, "answer to 1", "answer to 2")
    assert transaction_count() == 1
    assert follower.sent == [1, 2]


def test_who_causes_what_follows_to_trip_is_to_blame():
    follower = Follower()

    stage = Numbers(1, 2, 3, hand=lambda number: "x" * 10_000 if number == 2 else number)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE registrations_topickey ADD CONSTRAINT short CHECK (length(name) < 100)")
    try:
        work_off(Worker([stage, follower], Bell()), stage)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE registrations_topickey DROP CONSTRAINT short")
    assert stage.set_aside_numbers == [2]
    assert written() == names(1, 3, "answer to 1", "answer to 3")
    assert follower.sent == [1, 3]


def test_every_stage_that_had_begun_gets_its_batch_back_when_nothing_was_written():
    first, broken, later = Numbers(1), Numbers(2, hook=refuse(2)), Numbers(3)
    turn(first, broken, later)
    assert (first.told, broken.told[:2], later.told) == (
        ["undone 1", "committed 1"],
        ["undone 1"] * 2,
        ["committed 1"],
    )


def test_what_was_handed_on_goes_to_the_stages_behind_it_in_their_order_and_to_no_later_turn():
    before, follower, behind = Follower(), Follower(), Numbers(1000, hand=int)
    stage = Numbers(*range(LIMIT + 1), hand=int)
    worker = Worker([before, stage, follower, behind], Bell())
    worker.turn(now=timezone.now())
    assert (before.sent, follower.sent) == ([], list(range(LIMIT)))
    worker.turn(now=timezone.now())
    assert (before.sent, follower.sent[LIMIT:]) == ([], [LIMIT])


# Others ---------------------------------------------------------------------------------------------------------------


def fails(error, *, times):
    left = iter([error] * times)

    def hook(_number):
        for raised in left:
            raise raised

    return hook


def refused(sqlstate, kind=OperationalError):
    error = kind("quotes a row")
    error.__cause__ = psycopg.errors.lookup(sqlstate)()
    return error


CONFLICTS = [refused("23505", IntegrityError), refused("40001"), refused("40P01")]


@pytest.mark.parametrize("error", CONFLICTS)
def test_what_collides_with_another_worker_is_done_again_as_it_was(error):
    stage, other = Numbers(1, 2, hook=fails(error, times=2)), Numbers(3)
    assert turn(stage, other) is False
    assert stage.limits == [LIMIT] * 3
    assert written() == names(1, 2, 3)
    assert transaction_count() == 1


@pytest.mark.parametrize("error", CONFLICTS)
def test_what_collides_again_and_again_is_not_set_aside(error):
    stage = Numbers(1, hook=fails(error, times=40))
    worker, collisions = Worker([stage], Bell()), 0
    while not written():
        try:
            worker.turn(now=timezone.now())
        except (IntegrityError, OperationalError):
            collisions += 1
    assert collisions > 3
    assert stage.set_aside_numbers == []


def test_conflicts_that_pass_are_forgotten():
    """Dozens of them in the life of a worker are no reason to give anything up."""
    stage = Numbers()
    worker = Worker([stage], Bell())
    for number in range(3 * WAITS):
        stage.numbers, stage.hook = [number], fails(CONFLICTS[0], times=3 + len([LIMIT, 1]))
        with pytest.raises(IntegrityError):
            worker.turn(now=timezone.now())
        while stage.numbers:
            worker.turn(now=timezone.now())
    assert stage.set_aside_numbers == []


def test_who_waits_for_a_conflict_does_not_stop_the_stages_behind():
    stage, behind = Numbers(1, hook=fails(CONFLICTS[1], times=100)), Numbers(2)
    with pytest.raises(OperationalError):
        turn(stage, behind)
    assert written() == names(2)


def test_a_row_that_stays_in_the_way_does_not_stop_all_others():
    """No other session holds it: the statement itself is wrong about what is there."""
    stage = Numbers(1, 2, hook=lambda number: fails(CONFLICTS[0], times=1)(number) if number == 1 else None)
    busy = Numbers()
    worker, collisions, numbers = Worker([busy, stage], Bell()), 0, count(100)
    while "2" not in written():
        busy.numbers = [next(numbers)]
        try:
            worker.turn(now=timezone.now())
        except IntegrityError:
            collisions += 1
    assert collisions == WAITS
    assert stage.set_aside_numbers == [1]


@in_threads
def test_a_row_that_another_worker_inserted_meanwhile_is_found_when_the_turn_is_repeated():
    stage = Numbers(1, 2)

    def lose_a_race(number):
        if number == 1 and stage.limits == [LIMIT]:
            with other_session() as other:
                other.execute(
                    "INSERT INTO registrations_topickey (name, topic, key_encrypted, created_at)"
                    " VALUES ('1', 1, '', now())"
                )

    stage.hook = lose_a_race
    stage.work, work = lambda batch: skip_known(stage, work, batch), stage.work
    assert turn(stage) is False
    assert (written(), stage.limits) == (names(1, 2), [LIMIT] * 2)


@in_threads
@pytest.mark.parametrize("held", [{0}, {3}, {8}, {0, 1, 2, 3}, {n for n in range(60) if n % 5 == 2}])
def test_items_whose_rows_somebody_keeps_locked_are_put_off_at_once_and_all_others_go_on(held):
    key = TopicKey.objects.create(name="held", topic=3, key_encrypted=b"", created_at=timezone.now())

    def need(number):
        if number in held:
            fetch("SELECT 1 FROM registrations_topickey WHERE id = %s FOR UPDATE", [key.pk])

    stage, other = Numbers(*range(60), hook=need), Numbers(100)
    worker = Worker([stage, other], Bell())
    with other_session() as session, patch("kit.turns.LOCK_TIMEOUT", "10ms"):
        session.execute("SELECT FROM registrations_topickey WHERE id = %s FOR UPDATE", [key.pk])
        worker.turn(now=timezone.now())
    assert (stage.put_off_numbers, stage.set_aside_numbers) == (sorted(held), [])
    assert written() == names(*{*range(60), 100} - held)


@in_threads
def test_who_has_waited_for_a_lock_waits_no_longer_than_a_moment_for_the_next_ones():
    """Each turn would otherwise wait as long for what comes about the same row."""
    stage, seen = Numbers(1), []

    def need(number):
        seen.extend(value for (value,) in fetch("SHOW lock_timeout"))
        if number == 1:
            raise refused("55P03")

    stage.hook = need
    worker = Worker([stage], Bell())
    for numbers in ([1], [2], [3]):
        stage.numbers = numbers
        worker.turn(now=timezone.now())
    worker._wary_until = 0.0
    stage.numbers = [4]
    worker.turn(now=timezone.now())
    assert seen == ["1s", "100ms", "100ms", "100ms", "100ms", "1s"]


@in_threads
def test_what_cannot_be_put_off_waits_for_the_lock_however_long_that_takes_and_the_others_work(monkeypatch):
    monkeypatch.setattr("kit.turns.LOCK_TIMEOUT", "1ms")
    stage, busy, numbers = Numbers(1), Numbers(), count(100)
    stage.put_off = lambda _: False
    stage.hook = fails(refused("55P03"), times=10 * (WAITS + 3))
    worker = Worker([stage, busy], Bell())
    while not written() & names(1):
        busy.numbers = [next(numbers)]
        with suppress(OperationalError):
            worker.turn(now=timezone.now())
        assert not busy.numbers
    assert stage.set_aside_numbers == []


def skip_known(stage, work, batch):
    stage.numbers = [number for number in stage.numbers if str(number) not in written()]
    return work(batch)


# The thread -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def running():
    """Start a worker in a thread of its own; they all end with the test."""
    workers = []

    def start(*stages):
        bell = Bell()
        worker = Worker(stages, bell)
        thread = threading.Thread(target=worker.run)
        workers.append((worker, thread))
        thread.start()
        return worker, bell

    yield start
    for worker, thread in workers:
        worker.stop(patience_seconds=0)
        thread.join(20)
        assert not thread.is_alive()


def eventually(is_so, seconds=20):
    deadline, pause = monotonic() + seconds, threading.Event()
    while not is_so():
        assert monotonic() < deadline, "it does not happen"
        pause.wait(0.005)


@pytest.fixture
def deaf(monkeypatch):
    """What is found in these tests is found because somebody rang."""
    monkeypatch.setattr("kit.turns.LOOK_SECONDS", 1000.0)


@in_threads
@pytest.mark.usefixtures("deaf")
def test_the_bell_wakes_at_once(running):
    stage = Numbers(1)
    _, bell = running(stage)
    for number in range(2, 20):
        eventually(lambda: not stage.numbers)
        stage.numbers = [number]
        bell.ring()
    eventually(lambda: written() == names(*range(1, 20)))


@in_threads
@pytest.mark.usefixtures("deaf")
def test_a_bell_that_brings_nothing_to_do_makes_no_turn(running, monkeypatch):
    """What comes next would wait for the pause after it."""
    turns, make = [], Worker.turn
    monkeypatch.setattr(Worker, "turn", lambda worker, *, now: turns.append(now) or make(worker, now=now))
    due, stage = monotonic() + 1000, Numbers()
    stage.next_at = lambda: 0.0 if stage.numbers else due
    worker, bell = running(stage)
    eventually(lambda: worker._is_on_duty and worker._look_at > monotonic() + 500)
    before = len(turns)
    for _ in range(20):
        bell.ring()
        eventually(lambda: not bell._is_rung)
    stage.numbers = [1]
    bell.ring()
    eventually(lambda: written() == names(1))
    assert len(turns) <= before + 2


@in_threads
@pytest.mark.usefixtures("deaf")
def test_an_announcement_of_rows_wakes_at_once(running):
    rows = Rows()
    worker, _ = running(rows)
    eventually(lambda: worker._listening is not None and worker._look_at > monotonic() + 500)
    for _ in range(10):
        with transaction.atomic():
            add_row()
            wake()
        eventually(lambda: not TopicKey.objects.exists())
    assert sum(rows.counts) == 10


@in_threads
@pytest.mark.usefixtures("deaf")
def test_what_somebody_wants_worked_off_again_is_found_at_once_however_old_it_is(running, monkeypatch):
    monkeypatch.setattr("kit.turns.OLDEST_SHARE", 1000)  # on a busy machine a search takes a while
    worker, _ = running(TimedRows())
    eventually(lambda: worker._is_on_duty and worker._look_at > monotonic() + 500)
    for age in (timedelta(), timedelta(days=3)):
        with transaction.atomic():
            add_row()
            TopicKey.objects.update(created_at=timezone.now() - age)
            wake(OLD)
        eventually(lambda: not TopicKey.objects.exists())


@in_threads
def test_what_is_told_all_the_time_makes_nobody_ask_for_the_oldest(monkeypatch):
    """That reads what was worked off, as long as somebody keeps an old snapshot."""
    stage = TimedRows()
    worker = Worker([stage], Bell())
    worker.turn(now=timezone.now())
    worker.turn(now=timezone.now())  # on duty
    asked = []
    monkeypatch.setattr(worker, "_find_oldest", asked.append)
    with other_session() as other:
        other.autocommit = True
        for channel, payload in ((CHANNEL, ""), (CALL_FOR_HELP, ""), (CHANNEL, "inbox")):
            other.execute("SELECT pg_notify(%s, %s)", [channel, payload])
            worker._hear()
            worker.turn(now=timezone.now())
        assert asked == []
        other.execute("SELECT pg_notify(%s, %s)", [CHANNEL, OLD])
    worker._oldest_not_before = monotonic() + 1000  # it took long the last time
    worker._hear()
    worker.turn(now=timezone.now())
    assert asked == []
    worker._oldest_not_before = 0.0
    wake(OLD)
    worker._hear()
    worker.turn(now=timezone.now())
    assert len(asked) == 1
    connection.close()  # with the lock of the worker on duty


@in_threads
@pytest.mark.usefixtures("deaf")
def test_an_announcement_that_comes_during_a_turn_is_heard(running):
    rows, busy = Rows(), threading.Event()
    working = threading.Event()

    def hook(_number):
        working.set()
        assert busy.wait(20)

    stage = Numbers(1, hook=hook)
    running(stage, rows)
    assert working.wait(20)
    add_row()
    wake()
    busy.set()
    eventually(lambda: sum(rows.counts) == 1)


class Endless(BaseStage):
    """Has more to do after every turn."""

    waits = "SELECT 1"

    def work(self, batch):  # noqa: ARG002 - the signature of a stage
        return Work(None, is_more_left=True)


@in_threads
@pytest.mark.usefixtures("deaf")
def test_what_is_announced_does_not_wait_for_what_is_left_of_something_else(running):
    rows = Rows()
    rows.announced_as = "rows"
    worker, _ = running(rows, Endless())
    eventually(lambda: worker._is_on_duty and worker._look_at > monotonic() + 500)
    add_row()
    fetch("SELECT pg_notify('turns', 'rows')")
    eventually(lambda: sum(rows.counts) == 1)


@in_threads
def test_rows_that_nobody_announced_are_found(running):
    rows = Rows()
    running(rows)
    add_row()
    eventually(lambda: sum(rows.counts) == 1)


class ForOne(BaseStage):
    waits = "SELECT 1"
    is_for_one = True
    count = 0

    def work(self, batch):  # noqa: ARG002 - as stages do
        self.count += 1
        return Work(None)


@in_threads
def test_a_worker_that_lost_the_leader_lock_is_on_duty_no_more(monkeypatch):
    """As where a pooler gave the server's session to somebody else."""
    now = 1000.0
    monkeypatch.setattr("kit.turns.monotonic", lambda: now)
    stage = ForOne()
    worker = Worker([stage], Bell())

    def looks(times):
        nonlocal now
        for _ in range(times):
            now += 1.0
            worker.turn(now=timezone.now())

    looks(3)
    assert stage.count > 0
    with other_session() as other:
        fetch("SELECT pg_advisory_unlock_all()")
        other.execute("SELECT pg_advisory_lock(%s)", [BATCHES])
        looks(1)
        count = stage.count
        looks(3)
        assert stage.count == count
        other.execute("SELECT pg_advisory_unlock_all()")
    looks(3)
    assert stage.count > count
    connection.close()


@in_threads
def test_an_announcement_is_made_with_the_commit_and_not_without_it():
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}, autocommit=True) as other:
        other.execute(f"LISTEN {CHANNEL}")
        with transaction.atomic():
            wake()
            transaction.set_rollback(True)
        assert list(other.notifies(timeout=0.1)) == []
        wake()
        assert [notice.channel for notice in other.notifies(timeout=20, stop_after=1)] == [CHANNEL]


@in_threads
@pytest.mark.usefixtures("deaf")
def test_more_than_one_turn_can_take_is_worked_off_without_another_word(running):
    stage = Numbers(*range(3 * LIMIT + 5))
    running(stage)
    eventually(lambda: len(written()) == 3 * LIMIT + 5)


@in_threads
@pytest.mark.usefixtures("deaf")
def test_what_is_due_at_once_is_not_waited_for(running):
    """A stage that takes one item at a time and does not say that there is more."""
    stage = Numbers(*range(20))
    work = stage.work
    stage.work = lambda batch: replace(work(replace(batch, limit=1)), is_more_left=False)
    running(stage)
    eventually(lambda: not stage.numbers)


class Away:
    """A database that goes away: every session but the test's own is ended, as often as it is told."""

    def __call__(self, _number):
        with other_session() as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])


@in_threads
def test_while_the_database_is_away_nothing_is_lost_and_turns_go_on(running):
    away, kills = Away(), iter(range(3))

    def hook(number):
        for _ in kills:
            away(number)
            break

    stage, rows = Numbers(1, 2, 3, hook=hook), Rows()
    running(stage, rows)
    eventually(lambda: written() == names(1, 2, 3))
    assert stage.set_aside_numbers == []
    assert set(stage.limits) == {LIMIT}
    add_row()
    wake()
    eventually(lambda: sum(rows.counts) == 1)


@in_threads
def test_what_keeps_turns_from_being_made_is_told_once_and_so_is_its_end(running):
    refusals = iter([psycopg.errors.DiskFull, psycopg.errors.DiskFull, psycopg.errors.CannotConnectNow])

    def refuse(_number):
        for kind in refusals:
            raise OperationalError from kind()

    with capture_logs() as logs:
        running(Numbers(1, hook=refuse))
        eventually(lambda: [entry["event"] for entry in logs][-1:] == ["turns_go_on"])
    assert [entry.get("reason") for entry in logs] == [REASONS["53100"], REASONS["57P03"], None]
    assert written() == names(1)


@in_threads
def test_a_standby_is_waited_for_until_it_is_the_primary(running):
    """New sessions of a read-only server may read only, as those of a standby. Nothing is dropped meanwhile."""
    with other_session() as other:
        other.autocommit = True
        name = psycopg.sql.Identifier(other.info.dbname)
        other.execute(psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        try:
            connection.close()
            stage = Numbers(1, 2)
            with capture_logs() as logs:
                running(stage)
                eventually(lambda: REASONS["25006"] in [entry.get("reason") for entry in logs])
        finally:
            other.execute(psycopg.sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
    eventually(lambda: written() == names(1, 2))
    assert stage.set_aside_numbers == []


@in_threads
def test_a_database_that_cannot_be_reached_for_hours_is_waited_for(running, monkeypatch):
    pauses, connect = [], Worker._listen
    hook = fails(refused("57P03"), times=10_000)
    monkeypatch.setattr("kit.turns.sleep", pauses.append)
    monkeypatch.setattr(Worker, "_listen", lambda worker: (hook(0), connect(worker)))
    with capture_logs():
        running(Numbers(1))
        eventually(lambda: written() == names(1))
    assert len(pauses) >= 10_000
    assert max(pauses) <= 2.0


@in_threads
def test_a_connection_that_ends_while_nothing_happens_is_replaced(running):
    rows = Rows()
    worker, _ = running(rows)
    eventually(lambda: worker._listening is not None)
    first = worker._listening
    with other_session() as other:
        other.execute("SELECT pg_terminate_backend(%s)", [first.info.backend_pid])
    add_row()
    eventually(lambda: sum(rows.counts) == 1)
    eventually(lambda: worker._listening not in {None, first})


class UnderWay(Numbers):
    """Sends what it wrote, and gets results later, from another thread: more numbers to be worked off."""

    def __init__(self, *numbers):
        super().__init__(*numbers)
        self.under_way = 0
        self.bell = None

    def is_under_way(self):
        return self.under_way > 0 or bool(self.numbers)

    def committed(self, decided):
        sent = [number for number in decided if number < 100]
        self.under_way -= len(decided) - len(sent)
        self.under_way += len(sent)
        super().committed(decided)
        for number in sent:
            threading.Timer(0.1, self._answer, [number + 100]).start()

    def _answer(self, number):
        self.numbers.append(number)
        self.bell.ring()


def run_until_stopped(*stages, patience_seconds):
    bell = Bell()
    worker = Worker(stages, bell)
    for stage in stages:
        stage.bell = bell
    thread = threading.Thread(target=worker.run)
    thread.start()
    eventually(lambda: stages[0].told)
    worker.stop(patience_seconds=patience_seconds)
    thread.join(20)
    assert not thread.is_alive()


@in_threads
def test_stopping_waits_for_what_is_under_way_and_writes_its_results():
    stage = UnderWay(1, 2)
    run_until_stopped(stage, patience_seconds=20)
    assert written() == names(1, 2, 101, 102)


@in_threads
def test_stopping_takes_no_more_rows():
    stage, rows = UnderWay(1), Rows()
    stage.hook = lambda number: add_row() if number == 1 else None
    rows.waits = "SELECT FROM registrations_topickey WHERE topic = 7 AND EXISTS (SELECT WHERE FALSE)"
    run_until_stopped(stage, rows, patience_seconds=20)
    assert (rows.counts, TopicKey.objects.filter(topic=7).count()) == ([], 1)


@in_threads
def test_stopping_ends_with_the_patience_whatever_is_under_way():
    stage = UnderWay(1)
    stage._answer = lambda _number: None
    run_until_stopped(stage, patience_seconds=0.05)
    assert stage.under_way == 1


# The bell -------------------------------------------------------------------------------------------------------------


def test_a_bell_that_is_rung_twice_is_heard_once_and_can_be_rung_again():
    bell = Bell()
    for _ in range(3):
        bell.ring()
        bell.ring()
        bell.hush()
        with pytest.raises(BlockingIOError):
            bell.hush()


def test_a_bell_that_many_ring_while_it_is_hushed_does_not_stop_ringing():
    bell, is_over, heard = Bell(), threading.Event(), 0

    def ring():
        while not is_over.is_set():
            bell.ring()

    ringers = [threading.Thread(target=ring) for _ in range(3)]
    for ringer in ringers:
        ringer.start()
    while heard < 100:
        readable, _, _ = select.select([bell], [], [], 20)
        assert readable
        bell.hush()
        heard += 1
    is_over.set()
    for ringer in ringers:
        ringer.join()


@in_threads
def test_the_time_of_a_turn_is_that_of_the_database_whatever_the_clock_of_this_machine_says(monkeypatch):
    hour = timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) - hour)

    class Telling(BaseStage):
        waits = "SELECT"
        now = None

        def work(self, batch):
            self.now = batch.now
            worker.stop(patience_seconds=0)
            return Work(None)

    stage = Telling()
    worker = Worker([stage], Bell())
    worker.run()
    [(told,)] = fetch("SELECT clock_timestamp()")
    assert abs(told - stage.now) < hour / 2
